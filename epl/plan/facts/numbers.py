"""Numbers that follow from constants alone, such as how many elements a batch of fixed size has."""

import numpy as np

from epl.graph.types import BOOL, FLOAT32, FLOAT64, INT32, INT64

_DTYPES = {FLOAT32: np.float32, FLOAT64: np.float64, INT32: np.int32, INT64: np.int64, BOOL: np.bool_}
_FIELDS = {FLOAT32: "float_val", FLOAT64: "double_val", INT32: "int_val", INT64: "int64_val", BOOL: "bool_val"}
_MOST = 1 << 20  # elements of an array that is looked into
_DEPTH = 30  # operations that follow each other

_COMPUTED = {
    "Identity": lambda x: x,
    "StopGradient": lambda x: x,
    "Cast": lambda x: x,
    "Neg": lambda x: -x,
    "Add": lambda x, y: x + y,
    "AddV2": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "RealDiv": lambda x, y: x / y,
    "Maximum": np.maximum,
    "Equal": lambda x, y: x == y,
    "NotEqual": lambda x, y: x != y,
    "Greater": lambda x, y: x > y,
    "Select": np.where,
    "SelectV2": np.where,
    "ZerosLike": np.zeros_like,
    "OnesLike": np.ones_like,
    "Prod": lambda x, axes: np.prod(x, axis=tuple(np.ravel(axes).astype(int))),
    "Sum": lambda x, axes: np.sum(x, axis=tuple(np.ravel(axes).astype(int))),
}


def number(graph, facts, tensor):
    """The value of a tensor of one element that is made of constants; None of any other.

    Args:
      graph: the Graph.
      facts: the epl.partition.facts.Facts about it.
      tensor: a NodeInput.
    """
    value = _array(graph, facts, tensor, _DEPTH)
    return None if value is None or np.size(value) != 1 else float(np.ravel(value)[0])


def _array(graph, facts, tensor, depth):
    node = graph.nodes[tensor.node]
    if node.op == "Const":
        return _constant(node.attr["value"].tensor)
    shape = facts.shape(tensor)
    if depth == 0 or shape is None or None in shape or np.prod(shape) > _MOST:
        return None
    known = facts.value(tensor)
    if known is not None and all(each is not None for each in np.ravel(known)):
        return np.asarray(known, np.float64)
    inputs = [each for each in graph.inputs[tensor.node] if each.index >= 0]
    if node.op in ("Fill", "BroadcastTo"):
        value = _array(graph, facts, inputs[1 if node.op == "Fill" else 0], depth - 1)
        return None if value is None else np.broadcast_to(value, shape)
    if node.op not in _COMPUTED:
        return None
    values = [_array(graph, facts, each, depth - 1) for each in inputs]
    if any(value is None for value in values):
        return None
    return _COMPUTED[node.op](*values)


def _constant(tensor):
    dims = [dim.size for dim in tensor.tensor_shape.dim]
    count = int(np.prod(dims)) if dims else 1
    if tensor.dtype not in _DTYPES or count > _MOST:
        return None
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, _DTYPES[tensor.dtype]).reshape(dims).astype(np.float64)
    given = np.array(list(getattr(tensor, _FIELDS[tensor.dtype])) or [0], np.float64)[:count]
    filled = np.concatenate([given, np.repeat(given[-1:], count - len(given))])  # the last one stands for all others
    return filled.reshape(dims)
