"""The modules of version 1: TensorFlow's compat.v1 with the names that it lacks."""

import importlib
import sys
import types

import tensorflow.compat.v1 as tf

from epl.tf1.name_tables import RENAMED, refusal, unknown
from epl.tf_compat import moved

# Programs ask for it where versions differ, and refuse those of version 2: of these names it is the last version.
_VERSION = "1.15.5"
_LAZY_MODULES = ("contrib", "examples", "python", "core", "tools")


class Version1(types.ModuleType):
    """What `import tensorflow` gives: the attributes of compat.v1, asked for each time.

    Args:
      original: the module that TensorFlow has made; of its names only those of its files and folders are taken.
    """

    def __init__(self, original):
        super(Version1, self).__init__("tensorflow", original.__doc__)
        for name in ("__path__", "__file__", "__spec__", "__loader__", "__package__"):
            setattr(self, name, getattr(original, name))
        self.__version__ = self.VERSION = _VERSION

    def __getattr__(self, name):
        return _lookup(name)  # each time: EPL puts functions of its own into compat.v1 when it begins

    def __dir__(self):
        old = [name for name in RENAMED if "." not in name]
        return sorted(set(self.__dict__) | set(dir(tf)) | set(_LAZY_MODULES) | set(old))


def _lookup(name):
    if name.startswith("__"):
        raise AttributeError("module 'tensorflow' has no attribute '%s'" % name)
    if hasattr(tf, name):
        return getattr(tf, name)
    if name in RENAMED:
        return attribute(RENAMED[name])
    if name in _LAZY_MODULES:
        return importlib.import_module("tensorflow." + name)
    raise AttributeError(refusal(name) or unknown(name))


def attribute(path):
    """The attribute of compat.v1 by its dotted path."""
    value = tf
    for name in path.split("."):
        value = getattr(value, name)
    return value


def of_version_1(original):
    """Turns the behaviour of version 2 off, and makes what takes the place of TensorFlow's module.

    Returns:
      (the module, (name, the module that takes its place) pairs of further modules).
    """
    with moved.quiet():
        tf.disable_v2_behavior()
    moved.seed_as_before()
    _add_old_names()
    moved.forget_twins(sys.modules)
    inside = [name for name in sys.modules if name.startswith(moved.INSIDE + ".")]
    moved.serve_moved(sys.modules, inside)
    return Version1(original), moved.ONE_OF_TWO + moved.MOVED


def _add_old_names():
    """Gives modules of compat.v1 (tf.nn, tf.train) the attributes that they had before TensorFlow 1.0."""
    for path, replacement in RENAMED.items():
        folder, _, name = path.rpartition(".")
        if folder:
            setattr(attribute(folder), name, attribute(replacement))
