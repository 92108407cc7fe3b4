"""TensorFlow's warnings of what is deprecated, which tests do without."""

import importlib
import sys


def leave_unchecked():
    """To warn once of a function, TensorFlow looks at the signature of a deprecated one at each call: a tenth of the
    time that it takes to build a graph. Does nothing where TensorFlow has not been imported."""
    if "tensorflow" in sys.modules:
        importlib.import_module("tensorflow.python.util.deprecation")._PRINT_DEPRECATION_WARNINGS = False
