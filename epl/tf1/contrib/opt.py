"""`tf.contrib.opt`: optimizers (epl.tf1.opt)."""

from epl.tf1.gathered import gathered

_FILES = ("weight_decay", "adam_variants", "sign_optimizers", "wrappers", "external")

__getattr__, __dir__ = gathered(
    __name__, modules=tuple("epl.tf1.opt." + name for name in _FILES), names={"python": __name__, "training": __name__}
)
