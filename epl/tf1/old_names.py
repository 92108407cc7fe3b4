"""What Python and NumPy have dropped and programs of TensorFlow 1's time use: np.int, ragged arrays, getargspec."""

import collections
import collections.abc
import functools
import inspect
import time

import numpy as np

_OF_NUMPY = {
    "bool": bool,
    "complex": complex,
    "float": float,
    "int": int,
    "long": int,
    "object": object,
    "str": str,
    "unicode": str,
}
ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def _getargspec(function):
    """inspect.getargspec, as it was until Python 3.10."""
    full = inspect.getfullargspec(function)
    if full.kwonlyargs or full.annotations:
        raise ValueError(
            "Function has keyword-only parameters or annotations, use inspect.signature() API which can support them"
        )
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def _ragged(function):
    """np.array or np.asarray, as it was until NumPy 1.23: of lists of different lengths, an array of objects."""

    @functools.wraps(function)
    def made(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            if "inhomogeneous" not in str(error) or len(args) > 1 or kwargs.get("dtype") is not None:
                raise
        return function(*args, **dict(kwargs, dtype=object))

    return made


def serve():
    """Gives modules the names again that they do not have, and `np.array` what it did."""
    _add(np, _OF_NUMPY)
    np.array, np.asarray = _ragged(np.array), _ragged(np.asarray)
    _add(collections, {name: getattr(collections.abc, name) for name in collections.abc.__all__})
    _add(inspect, {"ArgSpec": ArgSpec, "getargspec": _getargspec})
    _add(time, {"clock": time.perf_counter})


def _add(module, names):
    for name, value in names.items():
        if name not in module.__dict__:
            setattr(module, name, value)
