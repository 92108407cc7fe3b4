"""Values of small integer tensors, as far as the graph tells them: shapes, axes, targets of reshapes.

A value is a numpy array of objects, of rank 0 to 2: integers, and None for what is only known when a step runs (the
batch size, say).
"""

import numpy as np

from epl.graph.types import INDEX_TYPES
from epl.rules import tensors

# More elements than that are not looked at: no shape and no list of axes has as many.
_MOST = 64
_DTYPES = {3: np.int32, 9: np.int64, 10: np.bool_, 1: np.float32, 2: np.float64}
_FIELDS = {3: "int_val", 9: "int64_val", 10: "bool_val", 1: "float_val", 2: "double_val"}


def constant_value(tensor):
    """The small array that a TensorProto holds; None for large ones, for strings and for rare types."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    count = int(np.prod(shape)) if shape else 1
    if tensor.dtype not in _DTYPES or count > _MOST or len(shape) > 2:
        return None
    if tensor.tensor_content:
        found = np.frombuffer(tensor.tensor_content, _DTYPES[tensor.dtype])
    else:
        found = np.array(list(getattr(tensor, _FIELDS[tensor.dtype])) or [0], _DTYPES[tensor.dtype])
        if len(found) < count:  # the last one stands for all that follow
            found = np.concatenate([found, np.repeat(found[-1:], count - len(found))])
        found = found[:count]
    return found.reshape(shape).astype(object)


def _on_known(function):
    """A function on integers, on arrays of integers and Nones."""
    ufunc = np.frompyfunc(lambda *args: None if None in args else function(*args), function.__code__.co_argcount, 1)
    return lambda node, *args: ufunc(*args)


def _array(values):
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _product(node, values, axes):
    del node, axes
    found = 1
    for each in np.ravel(values):
        found = None if found is None or each is None else found * each
    return np.array(found, dtype=object)


def _pack(node, *parts):
    return _array([part[()] for part in parts]) if all(part.ndim == 0 for part in parts) else None


def _concat(node, *parts):
    return np.concatenate(parts[:-1], axis=int(parts[-1][()]))


def _strided_slice(node, values, begin, end, strides):
    masks = {key: node.attr[key].i for key in ("begin_mask", "end_mask", "shrink_axis_mask")}
    if values.ndim != 1 or len(begin) != 1 or node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i:
        return None
    if begin[0] is None or end[0] is None or strides[0] is None:
        return None
    if masks["shrink_axis_mask"]:
        return np.array(values[begin[0]], dtype=object)
    return values[slice(None if masks["begin_mask"] else begin[0], None if masks["end_mask"] else end[0], strides[0])]


def _slice(node, values, begin, size):
    if values.ndim != 1 or len(begin) != 1 or begin[0] is None or size[0] is None:
        return None
    return values[begin[0] :] if size[0] == -1 else values[begin[0] : begin[0] + size[0]]


def _range(node, start, limit, delta):
    bounds = [each[()] for each in (start, limit, delta)]
    if None in bounds or bounds[2] == 0 or abs((bounds[1] - bounds[0]) / bounds[2]) > _MOST:
        return None
    return _array(list(range(*bounds)))


def _broadcast_axes(node, *shapes):
    """The dimensions over which the gradients of two broadcast tensors are summed. Unknown sizes are taken as equal."""
    rank = max(len(shape) for shape in shapes)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [_array([i for i in range(rank) if mine[i] == 1]) for mine in padded]


def _gather(node, values, indices, axis=None):
    if values.ndim != 1 or indices.ndim > 1 or None in np.ravel(indices):
        return None
    return values[indices.astype(int)] if indices.ndim else np.array(values[indices[()]], dtype=object)


def _invert(node, values):
    if None in values:
        return None
    found = [0] * len(values)
    for i, each in enumerate(values):
        found[each] = i
    return _array(found)


def _stitch(node, *args):
    found = {}
    half = len(args) // 2
    for places, values in zip(args[:half], args[half:]):
        if None in np.ravel(places):
            return None
        found.update(zip(np.ravel(places), np.ravel(values)))
    return _array([found.get(i) for i in range(1 + max(found))]) if found else _array([])


def _reshape(node, values, shape):
    if shape.ndim != 1 or len(shape) > 2 or None in shape:
        return None
    return values.reshape([int(size) for size in shape])


def _expand_dims(node, values, axis):
    return values.reshape([1]) if values.ndim == 0 else None


def _squeeze(node, values):
    return values.reshape([]) if values.size == 1 else None


def _fill(node, shape, value):
    if shape.ndim != 1 or len(shape) > 1 or None in shape or any(size > _MOST for size in shape):
        return None
    return _array([value[()]] * (shape[0] if len(shape) else 1)).reshape([int(size) for size in shape])


def _same(node, values):
    return values


_EVALUATED = {
    "Identity": _same,
    "Cast": _same,
    "StopGradient": _same,
    "Pack": _pack,
    "ConcatV2": _concat,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Range": _range,
    "Prod": _product,
    "GatherV2": _gather,
    "InvertPermutation": _invert,
    "DynamicStitch": _stitch,
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Fill": _fill,
    "Add": _on_known(lambda a, b: a + b),
    "AddV2": _on_known(lambda a, b: a + b),
    "Sub": _on_known(lambda a, b: a - b),
    "Mul": _on_known(lambda a, b: a * b),
    "FloorDiv": _on_known(lambda a, b: a // b if b else None),
    "FloorMod": _on_known(lambda a, b: a % b if b else None),
    "Maximum": _on_known(lambda a, b: max(a, b)),
    "Minimum": _on_known(lambda a, b: min(a, b)),
    "Neg": _on_known(lambda a: -a),
}
_OF_MATRICES = frozenset(["Identity", "Cast", "Reshape", "ConcatV2"])  # paddings have two dimensions


class Values(object):
    """Values of the small tensors of one graph, found when they are asked for.

    Args:
      graph: an epl.graph.index.Graph.
      shape_of: function from a canonical tensor name to its shape, or None.
      dtype_of: function from one to its DataType number.
    """

    def __init__(self, graph, shape_of, dtype_of):
        self._graph = graph
        self._shape_of = shape_of
        self._dtype_of = dtype_of
        self._known = {}

    def of(self, producer, index=0):
        """The value of an output of a node, or None."""
        stack = [producer]
        while stack:  # long chains of such operations are no reason to end in a RecursionError
            name = stack[-1]
            if name in self._known:
                stack.pop()
                continue
            waits = [each for each in self._needed(name) if each not in self._known]
            if waits and len(stack) < len(self._graph.nodes):
                stack.extend(waits)
                continue
            self._known[stack.pop()] = self._evaluate(name)
        found = self._known[producer]
        return found[index] if found is not None and index < len(found) else None

    def _needed(self, name):
        node = self._graph.nodes[name]
        if node.op not in _EVALUATED and node.op != "BroadcastGradientArgs":
            return []
        if self._dtype_of(name) not in INDEX_TYPES:
            return []
        return [each.node for each in self._graph.inputs[name] if each.index >= 0]

    def _evaluate(self, name):
        """A list of the values of a node's outputs, or None."""
        node = self._graph.nodes[name]
        data = [each for each in self._graph.inputs[name] if each.index >= 0]
        if node.op == "Const":
            value = constant_value(node.attr["value"].tensor)
            return None if value is None else [value]
        if node.op in tensors.SHAPE_ONLY:
            shapes = [self._shape_of(each) for each in data]
            return [_of_shape(node.op, shape) for shape in shapes]
        if not self._needed(name):
            return None
        args = [self._known[each.node] for each in data]
        args = [found[each.index] if found is not None else None for found, each in zip(args, data)]
        if any(arg is None or (arg.ndim > 1 and node.op not in _OF_MATRICES) for arg in args):
            return None
        if node.op == "BroadcastGradientArgs":
            return _broadcast_axes(node, *args)
        found = _EVALUATED[node.op](node, *args)
        return None if found is None else [np.asarray(found, dtype=object)]


def _of_shape(op, shape):
    if shape is None:
        return None
    if op == "Rank":
        return np.array(len(shape), dtype=object)
    return _product(None, _array(list(shape)), None) if op == "Size" else _array(list(shape))
