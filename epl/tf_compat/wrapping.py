"""How TensorFlow's functions are wrapped, and which TensorFlow it is."""

import functools
import sys

import tensorflow.compat.v1 as tf

ORIGINAL = "_epl_original"


def line():
    """Which of the two supported TensorFlow lines runs: "tf1" (1.15) or "tf2" (2.15)."""
    return "tf1" if tf.__version__.startswith("1.") else "tf2"


def version():
    """TensorFlow's version, e.g. "1.15.5"."""
    return tf.__version__


def wrap(owner, name, wrapper):
    """Replaces `owner.name` by a function that calls `wrapper(original, ...)`; a second wrap replaces the first."""
    if isinstance(owner, type):
        current = owner.__dict__[name]
    else:  # the modules of 1.15's API stand behind others, which warn of what is deprecated
        current = getattr(getattr(owner, "_tfmw_wrapped_module", owner), name)
    original = getattr(current, ORIGINAL, current)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    setattr(wrapped, ORIGINAL, original)
    setattr(owner, name, wrapped)


def public(name):
    """The modules behind `tf.<name>`, for programs that import tensorflow.compat.v1 and for those that do not."""
    return getattr(tf, name), getattr(sys.modules["tensorflow"], name)
