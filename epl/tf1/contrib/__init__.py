"""`tf.contrib` on TensorFlow 2.15: one module for each that programs import, from packages or written anew."""

import importlib
import os

from epl.tf1.name_tables import refusal, unknown

_MODULES = sorted(name.partition(".")[0] for name in os.listdir(os.path.dirname(__file__)) if not name.startswith("_"))


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module("tensorflow.contrib." + name)
    raise AttributeError(refusal("contrib." + name) or unknown("contrib." + name))


def __dir__():
    return _MODULES
