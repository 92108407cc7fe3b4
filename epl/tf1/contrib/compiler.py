"""`tf.contrib.compiler`: scopes for XLA."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    names={
        "experimental_jit_scope": "tensorflow:xla.experimental.jit_scope",
        "jit": __name__,
        "xla": "tensorflow:xla.experimental",
    },
)
