"""`tf.contrib.distributions`: those that stayed in `tf.distributions`; others are in tensorflow_probability."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__, modules=("tensorflow.python.ops.distributions.distributions",), names={"python": __name__}
)
