"""`tf.contrib.metrics`, from tf_slim."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tf_slim.metrics",),
    names={
        "confusion_matrix": "tensorflow:math.confusion_matrix",
        "python": __name__,
        "set_difference": "tensorflow:sets.set_difference",
        "set_intersection": "tensorflow:sets.set_intersection",
        "set_size": "tensorflow:sets.set_size",
        "set_union": "tensorflow:sets.set_union",
    },
)
