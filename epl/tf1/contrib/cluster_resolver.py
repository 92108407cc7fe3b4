"""`tf.contrib.cluster_resolver`."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__, modules=("tensorflow:distribute.cluster_resolver",), names={"python": __name__}
)
