"""What each tensor of a forward pass has of the rows of a batch: rows along a dimension, or a number of all of them.

The rules of epl.partition say which dimensions of an operation's inputs and outputs go together. So rows are followed
from the data to the loss, and what is made of all rows together is seen where their dimension ends: in a sum, a mean,
or in another way. Where an operation sets rows against each other, such as the product of a batch with its transpose,
the result is no batch of rows any more.

    x [B, 4] -> MatMul with w [4, 1] -> [B, 1] rows along 0 -> Mean -> a mean over the rows
    x [B, 4] -> MatMul with y' [4, B] -> [B, B] rows are compared
    x [B, 4] -> GatherV2 with Where(mask) [?] -> [?, 4] rows that the data chooses -> Mean -> a sum over the rows,
                                                 divided by how many these are
"""

import collections
from dataclasses import dataclass, replace
from typing import Optional, Tuple

import numpy as np

from epl.graph import tags
from epl.graph.index import NodeInput, format_input
from epl.graph.types import HANDLES
from epl.partition.facts import Facts
from epl.partition.rule import expand
from epl.partition.table import ELEMENT_BY_ELEMENT, notation_of
from epl.rules import effects, tensors

# What a tensor has. Of UNKNOWN nothing is known but that it differs between copies of the model.
SAME, ROWS, UNKNOWN, COMPARED = "same", "rows", "unknown", "compared"
# Of all rows: their sum, their mean, their sum divided by what the data says, or something else.
SUM, MEAN, RATIO, OTHER = "sum", "mean", "ratio", "other"
# The shape of a tensor with rows; the number of rows, or as many times more; another length, such as a sequence's.
SHAPE, COUNT, LENGTH = "shape", "count", "length"

NUMBERS = frozenset([SAME, SUM, MEAN, RATIO, OTHER, COUNT, LENGTH])
_SIZES = frozenset([SHAPE, COUNT, LENGTH, SAME])

# Operations without which a number of all rows stays one of them, or becomes one times a constant.
ADDS = frozenset("Add AddV2 AddN Sub Neg".split())
PASSES = tensors.ALIASES | {"Cast", "Snapshot", "EnsureShape"} | tensors.JOINS
REDUCTIONS = {"Sum": SUM, "Mean": MEAN, "Max": OTHER, "Min": OTHER, "Prod": OTHER, "All": OTHER, "Any": OTHER}
_SHAPES = frozenset(["Shape", "ShapeN", "VariableShape"])
_FILLED = frozenset("Fill BroadcastTo Tile Range Reshape".split())
# Along a dimension with rows these set one row against others.
_ALONG = frozenset("Softmax LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits".split())
_ALONG = _ALONG | frozenset(["Cumsum", "Cumprod", "TopKV2"])
_SEGMENTS = frozenset("SegmentSum SegmentMean SegmentMax SegmentMin UnsortedSegmentSum UnsortedSegmentMax".split())
_GATHERS = frozenset("Gather GatherV2 GatherNd".split())
_SUMS = frozenset("MatMul BatchMatMul BatchMatMulV2 Einsum L2Loss".split())


@dataclass(frozen=True)
class State:
    """What a tensor has.

    Attributes:
      kind: one of the above.
      dim: of ROWS and SHAPE the dimension of the rows; None where it is not known.
      node: of COMPARED and OTHER the node that made it so.
      by: of RATIO the tensor by which a sum is divided, and the sum of all rows in it; of a MEAN that is a quotient the
        number of rows, twice.
      rows: of a MEAN that is none the tensor of which it is the mean, and the dimension of its rows.
      each: of ROWS how many places along the dimension each row has: 5 where [B, 5] has become [B * 5]; None where that
        is not known.
      chosen: of ROWS that they are those that the data chooses (tf.boolean_mask), so that nobody knows how many they
        are; of RATIO the tensor of these of which it is the mean, in the place of `by`.
    """

    kind: str
    dim: Optional[int] = None
    node: Optional[str] = None
    by: Optional[Tuple[str, str]] = None
    chosen: Optional[str] = None
    each: Optional[int] = 1
    rows: Optional[Tuple[str, Optional[int]]] = None


_SAME, _UNKNOWN = State(SAME), State(UNKNOWN)


class RowStates(object):
    """The States of the tensors that some nodes are made of.

    Args:
      program: an epl.program.program.Program with one copy of the model.
      varying: nodes whose values differ from copy to copy.
      ends: names of the nodes.

    Attributes:
      facts: the Facts about the program's tensors.
      rows: how many rows the data has, where the graph knows it; else None.
    """

    def __init__(self, program, varying, ends):
        self._graph, self._varying = program.graph, varying
        self.facts = Facts(program.graph, program.spec_of)
        names = program.graph.in_order(program.graph.ancestors(ends, data_only=True) & varying)
        self._sizes, self.rows = self._of_data(names), None
        known = [size for sizes in self._sizes.values() for size in sizes if size != 0]
        if known and None not in known:
            self.rows = collections.Counter(known).most_common(1)[0][0]
        self._known = {}
        for name in names:
            self._known[name] = self._find(program.graph.nodes[name])

    def _of_data(self, names):
        """dict of what gives data to the first dimension of each output: None for an open one, 0 without rows."""
        found = {}
        for name in names:
            node = self._graph.nodes[name]
            if node.op in effects.SOURCES | effects.PLACEHOLDERS:
                count = 1 + max([0] + [index for _, index in self._taken(name)])
                found[name] = [self._first_size(NodeInput(name, index)) for index in range(count)]
        return found

    def _taken(self, name):
        return [self._graph.inputs[consumer][place] for consumer, place in self._graph.consumers.get(name, ())]

    def _first_size(self, tensor):
        shape = self.facts.shape(tensor)
        if tags.SPARSE in self._graph.nodes[tensor.node].attr or self.facts.dtype(tensor) in HANDLES:
            return 0
        return None if shape is None else shape[0] if shape else 0

    def of(self, tensor):
        """The State of a NodeInput."""
        if tensor.node not in self._varying:
            return _SAME
        known = self._known.get(tensor.node, _UNKNOWN)
        if isinstance(known, State):
            return known
        return known[tensor.index] if tensor.index < len(known) else _UNKNOWN

    def _find(self, node):
        """The State of all outputs of a node, or a list of one for each."""
        inputs = self.facts.inputs(node.name)
        if tags.phase(node) != tags.FORWARD:
            return _UNKNOWN
        if node.op in effects.SOURCES or node.op in effects.PLACEHOLDERS:
            return self._given(node)
        states = [self.of(each) for each in inputs]
        kinds = {state.kind for state in states}
        if node.op in _SHAPES or node.op == "Size":
            return [_size(node.op, state) for state in states]
        if not inputs or kinds == {SAME}:
            return _UNKNOWN  # random numbers
        if node.op in ("ZerosLike", "OnesLike"):
            return states[0] if states[0].kind == ROWS else _UNKNOWN
        if COMPARED in kinds:
            return next(state for state in states if state.kind == COMPARED)
        if kinds <= _SIZES:
            return self._of_sizes(node, inputs, states)
        if kinds <= NUMBERS:
            return self._of_numbers(node, inputs, states)
        if ROWS in kinds:
            return self._of_rows(node, inputs, states)
        return State(SUM) if self._adds_up_open_rows(node, inputs) else _UNKNOWN

    def _adds_up_open_rows(self, node, inputs):
        """Whether all elements of a tensor are added up that has as many rows, open or not, as the data has, though
        nobody knows what these are made of: embeddings that are looked up by sparse ids, say."""
        sums = node.op == "L2Loss" or node.op == "Sum" and self.facts.shape(NodeInput(node.name, 0)) == ()
        shape = self.facts.shape(inputs[0]) if sums else None
        return bool(shape) and (shape[0] is None or shape[0] == self.rows)

    def _given(self, node):
        """Of what gives data. Where the graph knows how many rows others have, what has another number has none."""
        has_rows = (size is None or size > 0 and size == self.rows for size in self._sizes[node.name])
        return [State(ROWS, 0) if each else _UNKNOWN for each in has_rows]

    def _of_sizes(self, node, inputs, states):
        """Of what is made of shapes and sizes."""
        kinds, first = {state.kind for state in states} - {SAME}, states[0]
        if node.op in _FILLED and first.kind != SHAPE or node.op == "Fill":
            shape = self.facts.shape(NodeInput(node.name, 0))
            return State(ROWS, 0) if shape is None or len(shape) > 0 else _UNKNOWN
        if node.op == "Prod":
            return State(COUNT) if first.kind in (SHAPE, COUNT) else first
        if node.op in ("StridedSlice", "GatherV2", "Gather", "Slice"):
            picked = self.facts.value(inputs[1])
            shrinks = node.op != "StridedSlice" or node.attr["shrink_axis_mask"].i == 1
            if first.kind != SHAPE or node.op == "Slice" or not shrinks or picked is None or picked.size != 1:
                return _UNKNOWN
            return State(COUNT if picked.ravel()[0] == first.dim else LENGTH)
        if node.op in PASSES and len(kinds) == 1 and node.op != "Reshape":
            return next(state for state in states if state.kind != SAME)
        if node.op in ("Mul", "FloorDiv", "Add", "AddV2", "Sub", "Maximum") and SHAPE not in kinds:
            return State(COUNT if COUNT in kinds else LENGTH)
        return _UNKNOWN

    def _of_numbers(self, node, inputs, states):
        if node.op in tensors.DIVISIONS and states[0].kind == SUM:
            counted = self._counted(inputs[1], states[1])
            if counted is not None:
                return State(RATIO, by=(format_input(*inputs[1]), format_input(*counted)))
            if states[1].kind == COUNT:
                return State(MEAN, by=(format_input(*inputs[1]),) * 2)
        return _of_numbers(node, inputs, states)

    def _counted(self, tensor, state):
        """What is added up of all rows in a number by which a sum is divided: itself, or of "at least 1" the other."""
        if state.kind == SUM:
            return tensor
        if self._graph.nodes[tensor.node].op != "Maximum":
            return None
        inputs = self.facts.inputs(tensor.node)
        kinds = [self.of(each).kind for each in inputs]
        return inputs[kinds.index(SUM)] if sorted(kinds) == sorted([SUM, SAME]) else None

    def _of_rows(self, node, inputs, states):
        if node.op == "Where" and len(inputs) == 1:
            return State(ROWS, 0, chosen=node.name)
        if node.op in _GATHERS and states[1].chosen and not states[0].chosen:
            return self._gathered(inputs, states)
        chosen = {state.chosen for state in states if state.kind == ROWS}
        if None in chosen and len(chosen) > 1:
            return _UNKNOWN  # some rows beside all of them
        found = self._of_all_rows(node, inputs, states)
        # Masks of labels and of logits are two nodes each; that they choose the same rows is seen at the first step.
        return found if chosen == {None} else _of_chosen(found, inputs, min(chosen))

    def _gathered(self, inputs, states):
        """Of the rows that the data chooses: those at some indices along the rows' dimension."""
        axis = self.facts.value(inputs[2]) if len(inputs) > 2 else 0
        along = states[0].kind == ROWS and states[0].dim in (None, 0) and axis is not None and int(axis) == 0
        return State(ROWS, 0, chosen=states[1].chosen) if along else _UNKNOWN

    def _of_all_rows(self, node, inputs, states):
        if node.op == "Reshape" and states[0].kind == ROWS:
            reshaped = self._reshaped(node, inputs[0], states[0])
            if reshaped is not None:
                return reshaped
        each = {state.each for state in states if state.kind == ROWS}
        each = each.pop() if len(each) == 1 else None
        found = self._of_known_rows(node, inputs, states)
        if isinstance(found, list):
            return [replace(state, each=each) if state.kind == ROWS else state for state in found]
        return replace(found, each=each) if found.kind == ROWS else found

    def _reshaped(self, node, given, state):
        """Of rows that come first, before and after: what each of them has stays together. None where that is not
        known."""
        before, after = self.facts.shape(given), self.facts.shape(NodeInput(node.name, 0))
        if state.dim != 0 or not before or not after:
            return None
        for merged in range(1, len(before) + 1):
            if after[1:] == before[merged:]:
                places = (state.each,) + before[1:merged]
                return State(ROWS, 0, each=None if None in places else int(np.prod(places)))
        if None in before[1:] + after[1:] or state.each is None:
            return None
        size, places = state.each * np.prod(before[1:], dtype=int), np.prod(after[1:], dtype=int)
        return State(ROWS, 0, each=int(size // places)) if places and size % places == 0 else None

    def _of_known_rows(self, node, inputs, states):
        if node.op in tensors.FUSED_NORMS:
            return [states[0]] + [State(OTHER, node=node.name)] * 5
        if node.op == "EnsureShape":
            return states[0]
        if node.op == "StridedSlice":
            return self._sliced(node, inputs, states[0])
        if node.op in _SEGMENTS and states[0].kind == ROWS and states[1].kind == ROWS:
            return State(COMPARED, node=node.name)
        if node.op in ("Concat", "ConcatV2"):
            dims = {state.dim for state in states if state.kind == ROWS}
            return State(ROWS, dims.pop()) if len(dims) == 1 else _UNKNOWN
        rule = self._rule(node, inputs)
        if rule is None:
            return self._reduced_anyhow(node, states)
        labels = self._labels(node, inputs, states, rule)
        if labels is None:
            return self._reduced_anyhow(node, states)
        if node.op in _ALONG and (None in labels or labels & rule.notation.resolved):
            return State(COMPARED, node=node.name)
        if None in labels:
            return _UNKNOWN
        found = [self._result(node, labels, output) for output in rule.outputs]
        return found[0] if len(found) == 1 else found

    def _rule(self, node, inputs):
        notation = notation_of(node, inputs, self.facts)
        if notation is None:
            return None
        count = max(1, notation.text.split("->")[1].count(",") + 1)
        shapes = (
            tuple(map(self.facts.shape, inputs)),
            tuple(self.facts.shape(NodeInput(node.name, index)) for index in range(count)),
        )
        return expand(notation, *shapes)

    def _labels(self, node, inputs, states, rule):
        """The factors of the rows; None among them where rows are in a dimension that cannot be divided; None where it
        is not known where rows are."""
        found = set()
        for tensor, state, labels in zip(inputs, states, rule.inputs):
            if state.kind != ROWS:
                continue
            if state.dim is None or not isinstance(labels, tuple) or state.dim >= len(labels):
                return None
            size = self.facts.shape(tensor)[state.dim]
            if labels[state.dim] is None and size is not None and size <= 1:
                return None  # a batch of one row
            found.add(labels[state.dim])
        return found

    def _result(self, node, labels, output):
        if not isinstance(output, tuple):
            return _UNKNOWN
        dims = [dim for dim, label in enumerate(output) if label in labels]
        if len(dims) > 1:
            return State(COMPARED, node=node.name)
        if dims:
            return State(ROWS, dims[0]) if len(labels) == 1 else _UNKNOWN
        if node.op in _SUMS:
            return State(SUM)
        return self._reduced(node) if node.op in REDUCTIONS else _UNKNOWN

    def _reduced(self, node):
        """Of what comes of all elements."""
        kind, given = REDUCTIONS[node.op], self.facts.inputs(node.name)[0]
        if kind == MEAN:
            return State(MEAN, rows=(format_input(*given), self.of(given).dim))
        return State(kind, node=node.name if kind == OTHER else None)

    def _reduced_anyhow(self, node, states):
        """Of rows that are in a dimension which is not known; what comes of all elements is clear all the same."""
        shape = self.facts.shape(NodeInput(node.name, 0))
        if node.op in REDUCTIONS and shape == ():
            return self._reduced(node)
        if node.op == "L2Loss":
            return State(SUM)
        keeps = node.op in PASSES or node.op in ELEMENT_BY_ELEMENT
        return State(ROWS) if keeps and shape != () else _UNKNOWN

    def _sliced(self, node, inputs, state):
        """Of `x[:, 0]`, `x[:, None]` and the like, which leave all rows."""
        begin, strides = self.facts.value(inputs[1]), self.facts.value(inputs[3])
        masks = {name: node.attr[name + "_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
        if state.kind != ROWS or state.dim is None or begin is None or strides is None or masks["ellipsis"]:
            return _UNKNOWN
        before, after = 0, 0
        for place in range(len(begin)):
            bit = 1 << place
            if masks["new_axis"] & bit:
                after += 1
                continue
            if before == state.dim:
                starts = masks["begin"] & bit or begin[place] == 0
                whole = starts and masks["end"] & bit and strides[place] == 1 and not masks["shrink_axis"] & bit
                return State(ROWS, after) if whole else _UNKNOWN
            before, after = before + 1, after + (not masks["shrink_axis"] & bit)
        return State(ROWS, after + state.dim - before)


def _of_chosen(found, inputs, chosen):
    """The States of the outputs of a node that computes on some rows alone, which the data chooses; `found`: what they
    would be if it took all rows."""
    if isinstance(found, list):
        return [_of_chosen(each, inputs, chosen) for each in found]
    if found.kind == ROWS:
        return replace(found, chosen=chosen)
    if found.kind == MEAN:
        return State(RATIO, chosen=format_input(*inputs[0]))
    return found


def _size(op, state):
    if state.kind != ROWS:
        return _SAME if state.kind == SAME else _UNKNOWN
    if state.chosen:
        return State(SUM) if op == "Size" else _UNKNOWN
    return State(COUNT) if op == "Size" else State(SHAPE, state.dim)


def _of_numbers(node, inputs, states):
    """Of what is made of numbers of all rows alone."""
    kinds = [state.kind for state in states]
    different = set(kinds) - {SAME, LENGTH}
    reduces = node.op in ("Sum", "Mean", "StridedSlice", "GatherV2")
    if node.op in ADDS | PASSES or reduces:
        if len(different) == 1 and COUNT not in different:
            found = [state for state in states if state.kind in different]
            means_of = {(state.rows, state.by) for state in found if state.kind == MEAN}
            return found[0] if len(means_of) < 2 else State(MEAN)  # over rows of different tensors
        return State(OTHER, node=node.name)
    if node.op == "Mul" and kinds.count(SAME) + kinds.count(LENGTH) == 1 and COUNT not in different:
        return next(state for state in states if state.kind in different)
    if node.op in tensors.DIVISIONS and kinds[1] in (SAME, LENGTH):
        return states[0]
    return State(OTHER, node=node.name)
