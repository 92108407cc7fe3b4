"""What lets tests build graphs in less time, of which most of them are made."""

import gc
import importlib
import sys

# Objects that are made before Python looks for garbage among the young; graphs are hundreds of thousands of objects,
# and few of them are garbage.
_YOUNG = 20000


def build_graphs_quickly():
    """To be called when all has been imported.

    The garbage collector leaves out what there is now, and looks less often. And TensorFlow, if it is there, does not
    look at the signature of each deprecated function at each call, which it does to warn once of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    if hasattr(sys.modules.get("tensorflow"), "__version__"):
        importlib.import_module("tensorflow.python.util.deprecation")._PRINT_DEPRECATION_WARNINGS = False
