"""What SciPy has moved or dropped and programs of TensorFlow 1's time use: scipy.misc.imread, sparse.linalg.eigen."""

import importlib

SCIPY = "scipy"
# Modules that are others now.
MODULES = {
    "scipy.sparse.linalg.eigen": "scipy.sparse.linalg",
    "scipy.sparse.linalg.eigen.arpack": "scipy.sparse.linalg",
    "scipy.sparse.linalg.eigen.arpack.arpack": "scipy.sparse.linalg",
}
_PICTURES = "epl.tf1.old_pictures"
_SPECIAL = "scipy.special"
# The module that functions have gone from, and the modules that have them.
EMPTIED = "scipy.misc"
_GONE = {
    "bytescale": _PICTURES,
    "comb": _SPECIAL,
    "factorial": _SPECIAL,
    "factorial2": _SPECIAL,
    "factorialk": _SPECIAL,
    "fromimage": _PICTURES,
    "imread": _PICTURES,
    "imresize": _PICTURES,
    "imrotate": _PICTURES,
    "imsave": _PICTURES,
    "logsumexp": _SPECIAL,
    "toimage": _PICTURES,
}


def serve_gone(module):
    """Lets `scipy.misc` give what it had, each when it is first asked for.

    Args:
      module: it, just loaded.
    """
    own = module.__dict__.get("__getattr__")

    def gone(name):
        if name in _GONE:
            value = getattr(importlib.import_module(_GONE[name]), name)
            setattr(module, name, value)
            return value
        if own is None:
            raise AttributeError("module '%s' has no attribute '%s'" % (module.__name__, name))
        return own(name)

    module.__getattr__ = gone
