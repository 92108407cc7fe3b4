"""`tf.contrib.losses`, from tf_slim."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tf_slim.losses",),
    names={"metric_learning": "tf_slim.losses.metric_learning", "python": __name__},
)
