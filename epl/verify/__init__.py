"""Does a strategy compute what one device computes? Of a program (`python -m epl.verify`), and of two checkpoints."""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epl.verify.compared_checkpoints import compare as compare
else:

    def __getattr__(name):
        """Loads TensorFlow when `compare` is first used: the command says before how much TensorFlow is to print."""
        if name != "compare":
            raise AttributeError("module 'epl.verify' has no attribute %r" % name)
        globals()[name] = _importlib.import_module("epl.verify.compared_checkpoints").compare
        return globals()[name]
