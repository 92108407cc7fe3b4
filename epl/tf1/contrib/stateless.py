"""`tf.contrib.stateless`: random numbers that follow from a seed."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    names={
        name: "tensorflow:random." + name
        for name in ("stateless_multinomial", "stateless_normal", "stateless_truncated_normal", "stateless_uniform")
    },
)
