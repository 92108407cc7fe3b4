"""What a shard of rows has of each tensor that an update computes, when every shard computes it by itself.

A tensor has the shard's rows in its first dimension, or some of them that a sparse gradient picked, or it is the same
for all shards: a number, or a sum over all rows, such as a mean of each column, which shards add up.
"""

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from epl.graph.index import canonical_tensor, node_of
from epl.graph.types import LONG_FLOATS
from epl.partition.rule import Notation
from epl.partition.table import RULES
from epl.partition.values import constant_value
from epl.rules import tensors

# All rows of a shard; those of them that a sparse gradient has, or their numbers; the same for all shards.
ROWS, PICKED, SAME = "rows", "picked", "same"

_EACH = frozenset(["...->...", "...,...->...", "...,...,...->..."])
_KERNELS = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]\w*$|(Resource)?Scatter(Add|Sub|Update|Mul|Div|Min|Max)$")
_CHANGES = frozenset("Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp".split())
_ALSO = frozenset(["AddN", "Cast", "Select"])
_OF_PICKED = frozenset(["Unique", "UnsortedSegmentSum", "Shape", "StridedSlice"])
_REDUCTIONS = frozenset(["Sum", "Mean"])


@dataclass(frozen=True)
class Held:
    """What a shard has of a tensor.

    Attributes:
      kind: "rows", "picked" or "same".
      shape: of the tensor when it is whole; None where rows are picked.
    """

    kind: str
    shape: Optional[Tuple[int, ...]] = None


@dataclass(frozen=True)
class RowTotal:
    """What shards add up over all rows.

    Attributes:
      shape: of the sum.
      count: of a mean, the numbers of which each of its elements is the mean; 0 for a sum.
    """

    shape: Tuple[int, ...]
    count: int = 0


def kinds_of(program, gradient, region, holders, reads, shape):
    """What shards have of each tensor of an update, and what they add up.

    Args:
      program: an epl.program.program.Program.
      gradient: the Gradient that the update is given.
      region: names of the nodes of the update.
      holders: dict of the variable and its slots to their Held.
      reads: dict of nodes that read one of them, outside of the update, to what they read.
      shape: of the variable.

    Returns:
      (dict of node to "rows", "picked" or "same", dict of node to its RowTotal); None where rows of the update depend
      on others in another way than by sums.
    """
    return _Kinds(program, gradient, region, holders, reads, shape).found()


class _Kinds(object):
    """Goes through an update in the order of its nodes."""

    def __init__(self, program, gradient, region, holders, reads, shape):
        self._program, self._graph, self._region = program, program.graph, region
        self._holders, self._shape = holders, shape
        self._held = {name: holders[holder] for name, holder in reads.items()}
        given = Held(ROWS, shape) if gradient.indices is None else Held(PICKED)
        self._given = {canonical_tensor(text): given for text in gradient if text is not None}
        self._added = {}

    def found(self):
        for name in sorted(self._region, key=self._graph.order.__getitem__):
            held = self._of_node(name, self._graph.nodes[name])
            if held is None:
                return None
            self._held[name] = held
        return {name: held.kind for name, held in self._held.items()}, self._added

    def _of_node(self, name, node):
        """The Held of what a node gives; None where shards cannot compute it."""
        texts, taken = [text for text in node.input if text[0] != "^"], []
        for position, text in enumerate(texts):
            source = node_of(text)
            held = self._given.get(canonical_tensor(text)) or self._held.get(source) or self._holders.get(source)
            if source in self._holders and not _takes_holder(node, position):
                return None
            if held is None and not (position and node.op in _SHAPED) and not self._is_number(text):
                return None
            taken.append(held)
        if node.op in _SHAPED and taken[0] is not None and taken[0].kind != PICKED:
            return self._shaped(name, node, texts, taken)
        if (
            node.op == "L2Loss"
            and taken[0] is not None
            and taken[0].kind == ROWS
            and node.attr["T"].type in LONG_FLOATS
        ):
            self._added[name] = RowTotal(())
            return Held(SAME, ())
        if node.op in _REDUCTIONS:
            return None
        if makes_dense(self._graph, node, self._shape):
            kinds = [held and held.kind for held in taken]
            return Held(ROWS, self._shape) if kinds == [PICKED, PICKED, None] else None
        return self._result(node, texts, [held for held in taken if held is not None])

    def _shaped(self, name, node, texts, taken):
        """Of an operation that a constant tells about dimensions."""
        if any(held is not None for held in taken[1:]):
            return None
        options = [constant_of(self._graph, node_of(text)) for text in texts[1:]]
        if None in options:
            return None
        held, make = taken[0], _SHAPED[node.op]
        shape, keeps_rows = make(node, held.shape, *options)
        if shape is None or held.kind == SAME:
            return None if shape is None else Held(SAME, shape)
        if keeps_rows:
            return Held(ROWS, shape)
        if node.op not in _REDUCTIONS or node.attr["T"].type not in LONG_FLOATS:
            return None
        count = _size(held.shape) // max(1, _size(shape)) if node.op == "Mean" else 0
        self._added[name] = RowTotal(shape, count)
        return Held(SAME, shape)

    def _is_number(self, text):
        spec = self._program.spec_of(text)
        return spec is not None and spec.shape is not None and len(spec.shape) == 0

    def _result(self, node, texts, taken):
        """Of an operation that computes rows from those of its inputs."""
        op, kinds = node.op, {held.kind for held in taken}
        if not taken and op != "NoOp":  # such as a learning rate, which waits for weight decay
            plain = op in tensors.READS or op == "Const" or self._is_element_wise(op)
            return Held(SAME, ()) if plain and self._is_number(node.name) else None
        if op in _CHANGES:
            return _changed(taken)
        if _KERNELS.match(op):
            return taken[0] if taken[0].kind == ROWS and not _vectors(taken) else None
        if op == "NoOp":
            return Held(ROWS, self._shape)
        if op in tensors.LOOKUPS and kinds == {ROWS, PICKED} and not node.attr["batch_dims"].i:
            by_rows = op != "GatherV2" or constant_of(self._graph, node_of(texts[2])) == 0
            return Held(PICKED) if by_rows else None
        if op in _OF_PICKED:
            return Held(PICKED) if kinds - {SAME} == {PICKED} and not _vectors(taken) else None
        if op == "Select" and len({held.shape for held in taken} - {()}) > 1:
            return None  # a vector would choose rows
        return _each(taken) if op in tensors.READS or self._is_element_wise(op) else None

    @staticmethod
    def _is_element_wise(op):
        rule = RULES.get(op)
        return op in _ALSO or isinstance(rule, Notation) and rule.text in _EACH


def _vectors(taken):
    return [held for held in taken if held.kind == SAME and held.shape != ()]


def _each(taken):
    """Of an operation that works element by element; shapes are aligned from the right."""
    kinds = {held.kind for held in taken} - {SAME} or {SAME}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind == PICKED:
        return Held(PICKED) if not _vectors(taken) else None
    shape = _broadcast([held.shape for held in taken])
    if shape is None or kind == SAME:
        return None if shape is None else Held(SAME, shape)
    for held in taken:
        first = len(shape) - len(held.shape)
        # Rows come together with rows alone.
        if held.kind == ROWS and first or held.kind == SAME and not first and held.shape[0] != 1:
            return None
    return Held(ROWS, shape)


def _changed(taken):
    """Of what assigns to a variable, adds or subtracts."""
    holder = taken[0]
    if any(held.kind != holder.kind or held.shape != holder.shape for held in taken[1:]):
        return None
    return holder


def _broadcast(shapes):
    ndims, found = max(map(len, shapes)), []
    for place in range(-ndims, 0):
        sizes = {shape[place] for shape in shapes if len(shape) >= -place} - {1} or {1}
        if len(sizes) > 1:
            return None
        found.append(sizes.pop())
    return tuple(found)


def _size(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def _takes_holder(node, position):
    op = node.op
    return op in tensors.READS or op == "ResourceGather" or op in _CHANGES and not position or bool(_KERNELS.match(op))


# For an operation, the shape of its input and what its constants are: the shape of the result, or None, and whether its
# first dimension is that of the input.


def _reduced(node, shape, dims):
    dims = {dim % max(1, len(shape)) for dim in (dims if isinstance(dims, list) else [dims])}
    keep = node.attr["keep_dims"].b
    left = tuple(1 if d in dims else size for d, size in enumerate(shape) if keep or d not in dims)
    return left, 0 not in dims


def _expanded(node, shape, dim):
    dim = dim[0] if isinstance(dim, list) else dim
    dim %= len(shape) + 1
    return shape[:dim] + (1,) + shape[dim:], dim > 0


def _squeezed(node, shape):
    dims = {dim % len(shape) for dim in node.attr["squeeze_dims"].list.i} if shape else set()
    dims = dims or {d for d, size in enumerate(shape) if size == 1}
    return tuple(size for d, size in enumerate(shape) if d not in dims), 0 not in dims


def _sliced(node, shape, begin, end, strides):
    """Of `x[:, None]` and the like, which leaves all elements and adds dimensions."""
    masks = {name: node.attr[name + "_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    left, found = list(shape), []
    for place, stride in enumerate(strides):
        if masks["new_axis"] >> place & 1:
            found.append(1)
            continue
        whole = masks["begin"] & masks["end"] & ~masks["ellipsis"] & ~masks["shrink_axis"]
        if not left or stride != 1 or not whole >> place & 1:
            return None, False
        found.append(left.pop(0))
    return tuple(found + left), not masks["new_axis"] & 1


_SHAPED = {
    "Sum": _reduced,
    "Mean": _reduced,
    "ExpandDims": _expanded,
    "Squeeze": _squeezed,
    "StridedSlice": _sliced,
}


def makes_dense(graph, node, shape):
    """Whether a node puts slices of a sparse gradient into a tensor of the variable's shape."""
    return node.op == "UnsortedSegmentSum" and _first_size(graph, node_of(node.input[2]), shape)


def _first_size(graph, name, shape):
    """Whether a node gives the number of rows of a variable of this shape: a constant, or taken of its shape's."""
    node = graph.nodes[name]
    if node.op != "StridedSlice":
        return constant_of(graph, name) == shape[0]
    whole, begin, end, strides = [constant_of(graph, node_of(text)) for text in node.input[:4]]
    return whole == list(shape) and [begin, end, strides] == [[0], [1], [1]] and node.attr["shrink_axis_mask"].i == 1


def constant_of(graph, name):
    """What a small constant holds, as a list or a number; None for what is no constant."""
    node = graph.nodes[name]
    while node.op in tensors.SAME_OR_CAST:
        node = graph.nodes[node_of(node.input[0])]
    value = constant_value(node.attr["value"].tensor) if node.op == "Const" else None
    return None if value is None else value.tolist()
