"""Values that one worker sends to another as plain data: JSON, with arrays as their bytes. Nothing in it can run."""

import base64
import json

import numpy as np

from epl.errors import UnsupportedError

_KIND = "kind"


def pack(value):
    """Bytes of a value made of None, booleans, numbers, text, bytes, NumPy arrays and scalars, lists, tuples and dicts.

    Raises:
      UnsupportedError: there is anything else in it.
    """
    return json.dumps(_encode(value)).encode("ascii")


def unpack(data):
    """The value that `pack` made bytes of.

    Raises:
      ValueError, KeyError, TypeError: the bytes are something else.
    """
    return _decode(json.loads(data.decode("ascii")))


def _encode(value):
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, bytes):
        return {_KIND: "bytes", "value": base64.b64encode(value).decode("ascii")}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        array = np.asarray(value)
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
        scalar = isinstance(value, np.generic)
        return {_KIND: "array", "dtype": array.dtype.str, "shape": array.shape, "value": data, "scalar": scalar}
    if type(value) in (list, tuple):
        return {_KIND: type(value).__name__, "value": [_encode(each) for each in value]}
    if isinstance(value, dict):
        return {_KIND: "dict", "value": [[_encode(key), _encode(each)] for key, each in value.items()]}
    raise UnsupportedError(
        "a %s (%.80r) cannot be sent to the other workers: numbers, text, bytes, NumPy arrays and lists, tuples and "
        "dicts of them can." % (type(value).__name__, value)
    )


def _decode(value):
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind == "bytes":
        return base64.b64decode(value["value"])
    if kind == "array":
        dtype = np.dtype(value["dtype"])
        if dtype.hasobject:
            raise ValueError("an array of objects is no plain data")
        array = np.frombuffer(base64.b64decode(value["value"]), dtype).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    if kind == "dict":
        return {_decode(key): _decode(each) for key, each in value["value"]}
    return {"list": list, "tuple": tuple}[kind](_decode(each) for each in value["value"])
