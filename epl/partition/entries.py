r"""Batches with any number of entries in each row, and ids that were flattened: what is computed entry by entry.

    ids [n], row of each [n] -> Unique -> look up -> SparseSegmentMean -> [batch, width]  (embedding_lookup_sparse)
    ids [batch, fields] -> Reshape [batch * fields] -> look up -> Reshape -> [batch, fields, width]

Where devices divide the rows of a batch, each has the entries of its rows, computes what lies between just as one
device computes it, and has its rows of what comes of it. Entries are not divided evenly, so that such tensors lie
`ragged`. A region is all that does, from where entries begin to where rows come again, and the same backward. It is
taken as a whole or not at all: where something else uses what lies in it, nothing is changed.
"""

import collections
from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Optional

from epl.graph import tags
from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.graph.types import INDEX_TYPES
from epl.partition.lookup_gradients import lists_of_rows
from epl.partition.rule import Partitioning
from epl.partition.sparse_batches import lists_before
from epl.partition.table import notation_of
from epl.program.placement import WHOLE, ragged, sharded
from epl.rules import effects, tensors

_KINDS = ("Sum", "Mean", "SqrtN")
SPARSE_SEGMENTS = frozenset("SparseSegment" + kind + more for kind in _KINDS for more in ("", "WithNumSegments"))
COMBINES = SPARSE_SEGMENTS | frozenset(["SegmentSum"])
# They add up the gradient of each id by themselves: rows with ids, each once.
_LISTS_OF_ROWS = frozenset("SparseSegment%sGradV2" % kind for kind in _KINDS)
_GRADIENTS = frozenset("SparseSegment%sGrad" % kind for kind in _KINDS)
_ELEMENTWISE = frozenset(["...->...", "...,...->...", "...,...,...->..."])
_OF_SHAPES = frozenset("Shape ShapeN Size Rank".split())
_OF_NUMBERS = frozenset(
    "Identity Cast Pack ConcatV2 Slice StridedSlice Prod GatherV2 Reshape ExpandDims Squeeze Add AddV2 Sub Mul "
    "FloorDiv Maximum Minimum BroadcastGradientArgs Fill".split()
)
ENTRIES = "entries"


@dataclass(frozen=True)
class RowCount:
    """How many rows there are where rows come again.

    Attributes:
      segments: the tensor with the row of each entry, which is one less than the number of rows at its end; or None.
      count: a scalar tensor with their number, where the graph has one; or None.
      like: a tensor with as many rows, where there are no segments.
    """

    segments: Optional[Tensor] = None
    count: Optional[Tensor] = None
    like: Optional[Tensor] = None


@dataclass
class Region:
    """What is computed entry by entry.

    Attributes:
      tables: the variables that are looked up.
      strategies: node to its Partitioning.
      rows: node at which rows come again to its RowCount.
      begins: nodes at which the gradients of tables are lists of rows.
      segments: tensors with the row of each entry.
      before: nodes before it that every shard computes for all entries.
      lists: tensors before it whose first dimension counts entries, or the dimensions of a batch, and not its rows.
    """

    tables: FrozenSet[str]
    strategies: Dict[str, Partitioning] = field(default_factory=dict)
    rows: Dict[str, RowCount] = field(default_factory=dict)
    begins: FrozenSet[str] = frozenset()
    segments: FrozenSet[Tensor] = frozenset()
    before: FrozenSet[str] = frozenset()
    lists: FrozenSet[Tensor] = frozenset()


class RegionFinder(object):
    """Finds the Region of a list of entries.

    Args:
      facts, marks: as of `regions`.
      of: the tensor by which it is divided.
      flattened: the tensor of ids of which the entries are made, or None.
    """

    def __init__(self, facts, marks, of, flattened=None):
        self._facts, self._marks, self._graph = facts, marks, facts.graph
        self._of, self._flattened = of, flattened
        self._known = {}  # Tensor -> what it is: a word, and the list that it belongs to
        self._cut, self._segments = set(), None
        self._strategies, self._rows, self._tables = {}, {}, set()
        self._ends, self._begins = set(), set()  # where gradients become lists of rows: where they may, where they do
        self._pending, self._needed = collections.OrderedDict(), set()
        self.wanted = set()

    def cut(self, tensor, kind):
        """Says what a tensor is that every shard has whole, and takes its entries of."""
        self._known[tensor] = kind
        self._cut.add(tensor)
        if kind == ("segments",):
            self._segments = tensor

    def begin_at(self, names):
        self._pending.update((name, True) for name in sorted(names, key=self._graph.order.__getitem__))

    def table_of(self, tensor):
        """The divided variable whose value a tensor is, or None."""
        while self._graph.nodes[tensor.node].op in tensors.READS_OR_CASTS:
            tensor = self._facts.inputs(tensor.node)[0]
        shape = self._facts.shape(tensor)
        is_table = tensor.node in self._marks.variables and shape and (shape[0] or 0) >= self._marks.shards
        return tensor.node if is_table and self._marks.placements.get(tensor.node, sharded(0)) == sharded(0) else None

    def looks_up(self, name, ids):
        """Whether a node looks up rows of a divided table by some ids."""
        node = self._graph.nodes[name]
        if node.op not in tensors.LOOKUPS:
            return False
        inputs = self._facts.inputs(name)
        return inputs[1] == ids and self._axis_is_first(node, inputs) and self.table_of(inputs[0]) is not None

    def looks_up_once(self, name):
        """Whether a node looks up ids each of which is there once."""
        if self._graph.nodes[name].op not in tensors.LOOKUPS:
            return False
        ids = self._facts.inputs(name)[1]
        return ids.index == 0 and self._graph.nodes[ids.node].op == "Unique" and self.looks_up(name, ids)

    def _axis_is_first(self, node, inputs):
        axis = self._facts.value(inputs[2]) if len(inputs) > 2 else None
        batched = "batch_dims" in node.attr and node.attr["batch_dims"].i
        return not batched and (len(inputs) < 3 or axis is not None and axis[()] == 0)

    def region(self):
        """The Region, or None."""
        if self._segments is not None:
            self.begin_at(self._backward_of(self._segments))
        progress = True
        while progress:
            progress = False
            for name in list(self._pending):
                if self._take(name):
                    del self._pending[name]
                    progress = True
        left = self._needed.difference(self._strategies, self._begins)
        if left or not self._tables or not self._rows or not self.wanted.issubset(self._strategies):
            return None
        made = (format_input(name, i) for name, each in self._strategies.items() for i in range(len(each.outputs)))
        if not self._marks.tensors.keys().isdisjoint(made):  # it is to lie otherwise
            return None
        nodes = {tensor.node for tensor in self._cut}
        nodes.update(self._others_combined())
        before = self._graph.ancestors(nodes, data_only=True)
        if any(self._graph.nodes[each].op in effects.VARIABLES for each in before):
            return None
        for name, strategy in self._strategies.items():  # of some inputs it was found later what they are
            inputs = self._facts.inputs(name)
            pairs = zip(inputs, strategy.inputs, self._wants(inputs))
            wants = tuple(own if t in self._known else want for t, want, own in pairs)
            self._strategies[name] = replace(strategy, inputs=wants)
        segments = frozenset() if self._segments is None else frozenset([self._segments])
        return Region(
            frozenset(self._tables),
            self._strategies,
            self._rows,
            frozenset(self._begins),
            segments,
            before,
            lists_before(self._facts, before),
        )

    def _others_combined(self):
        """What else is combined by the same segments, such as the sums of weights: all shards compute all of it."""
        names = self._graph.edges.data_consumers.get(self._segments.node, ()) if self._segments is not None else ()
        return [each for each in names if self._graph.nodes[each].op in COMBINES and each not in self._strategies]

    def _backward_of(self, segments):
        """What takes the gradients of rows and the row of each entry."""
        kinds = _LISTS_OF_ROWS | _GRADIENTS | tensors.LOOKUPS
        names = self._graph.edges.data_consumers.get(segments.node, ())
        return [name for name in names if self._graph.nodes[name].op in kinds and self._is_backward(name)]

    def _is_backward(self, name):
        return tags.phase(self._graph.nodes[name]) == tags.BACKWARD

    def _take(self, name):
        """Takes a node into the region if it is known what it gives; returns whether that is so."""
        if name in self._strategies or name in self._begins:
            return True
        inputs = self._facts.inputs(name)
        kinds = [self._kind(tensor) for tensor in inputs]
        if name in self._ends:
            self._begins.update([name] if kinds[0] is not None else ())
            return kinds[0] is not None
        found = self._visit(self._graph.nodes[name], inputs, kinds)
        if found is None:
            return False
        if name in self._begins:
            return True
        outputs, wants, routed = found
        placements = tuple(self._place(outputs[i]) for i in sorted(outputs))
        self._strategies[name] = Partitioning(None, wants, placements, routed)
        made = [Tensor(name, i) for i, kind in outputs.items() if kind != "rows again"]
        self._known.update((Tensor(name, i), kind) for i, kind in outputs.items() if kind != "rows again")
        for consumer, position in self._graph.consumers.get(name, ()):
            if self._graph.inputs[consumer][position] in made:
                self._pending[consumer] = True
                self._needed.add(consumer)
        return True

    def _kind(self, tensor):
        if tensor not in self._known:  # the shape of something that is cut
            node = self._graph.nodes[tensor.node]
            if node.op in _OF_SHAPES and all(each in self._cut for each in self._facts.inputs(tensor.node)):
                self._take(tensor.node)
        return self._known.get(tensor)

    def _place(self, kind):
        if kind == "rows again":
            return sharded(0)
        return ragged(self._of, kind in (("ids", ENTRIES), ("rows", ENTRIES)))

    def _wants(self, inputs, **others):
        """What a node wants of its inputs: what is known as it lies here, all else whole."""
        found = [self._place(self._known[t]) if t in self._known else WHOLE for t in inputs]
        found = [ragged(self._of) if t in self._cut else each for t, each in zip(inputs, found)]
        for position, value in others.items():
            found[int(position[1:])] = value
        return tuple(found)

    def _visit(self, node, inputs, kinds):
        """(output to what it is, the Partitioning's inputs, whether it is routed) or None."""
        op, words = node.op, [kind and kind[0] for kind in kinds]
        if self._flattened is not None and format_input(node.name, 0) == self._of:
            return {0: ("ids", ENTRIES)}, (sharded(0), WHOLE), False
        if op in COMBINES:
            return self._combine(node, inputs, kinds, words)
        if op in _LISTS_OF_ROWS:
            if words[1:3] == ["ids", "segments"] and kinds[1][1] == ENTRIES and self._is_backward(node.name):
                self._begins.add(node.name)
                return {}, self._wants(inputs, _0=sharded(0)), False
            return None
        if op in _GRADIENTS:
            if words[0] is None and words[1:3] == ["places", "segments"] and self._is_backward(node.name):
                return {0: ("rows", kinds[1][1])}, self._wants(inputs, _0=sharded(0)), False
            return None
        if op in tensors.LOOKUPS:
            return self._look_up(node, inputs, kinds, words)
        if op == "Unique" and words == ["ids"]:
            own = "unique", node.name
            return {0: ("ids", own), 1: ("places", own, kinds[0][1])}, self._wants(inputs), False
        if op == "UnsortedSegmentSum" and words == ["rows", "places", "number"] and kinds[0][1] == kinds[1][2]:
            return {0: ("rows", kinds[1][1])}, self._wants(inputs), False
        if op in _OF_SHAPES and None not in words:
            return {i: ("number",) for i in range(len(inputs))}, self._wants(inputs), False
        if "number" in words and op in _OF_NUMBERS and all(word in ("number", None) for word in words):
            unknown = [t for t, word in zip(inputs, words) if word is None]
            if all(self._is_known_value(t) for t in unknown):
                count = 2 if op == "BroadcastGradientArgs" else 1
                return {i: ("number",) for i in range(count)}, self._wants(inputs), False
        if op in tensors.SAME_OR_CAST and words[0] is not None:
            return {0: kinds[0]}, self._wants(inputs), False
        if op == "Reshape":
            return self._reshape(node, inputs, kinds, words)
        if op == "Sum" and words[0] == "rows":
            axes = self._facts.value(inputs[1])
            rank = len(self._facts.shape(inputs[0]) or ())
            if axes is None or not rank or any(axis is None or axis % rank == 0 for axis in axes.ravel()):
                return None
            return {0: kinds[0]}, self._wants(inputs), False
        return self._elementwise(node, inputs, kinds, words)

    def _is_known_value(self, tensor):
        value = self._facts.value(tensor)
        return self._graph.nodes[tensor.node].op == "Const" or value is not None and None not in value.ravel()

    def _combine(self, node, inputs, kinds, words):
        rows_at = 1 if node.op == "SegmentSum" else 2
        if words[rows_at] != "segments":
            return None
        count = inputs[3] if node.op.endswith("WithNumSegments") else None
        if count is not None and words[3] is not None:
            return None
        self._rows[node.name] = RowCount(inputs[rows_at], count)
        if node.op == "SegmentSum":
            fits = kinds[0] == ("rows", ENTRIES)
        elif words[0] == "rows":
            fits = words[1] == "places" and kinds[1][1:] == (kinds[0][1], ENTRIES)
        else:
            table = self.table_of(inputs[0])
            fits = table is not None and kinds[1] == ("ids", ENTRIES) and self._facts.dtype(inputs[1]) in INDEX_TYPES
            if fits:
                self._tables.add(table)
                return {0: "rows again"}, self._wants(inputs, _0=sharded(0)), True
        return ({0: "rows again"}, self._wants(inputs), False) if fits else None

    def _look_up(self, node, inputs, kinds, words):
        if not self._axis_is_first(node, inputs):
            return None
        table = self.table_of(inputs[0]) if words[0] is None else None
        if table is not None and words[1] == "ids":
            self._tables.add(table)
            self._ends.update(each for pair in lists_of_rows(self._facts, node.name) for each in pair)
            return {0: ("rows", kinds[1][1])}, self._wants(inputs, _0=sharded(0)), True
        if words[:2] == ["rows", "places"] and kinds[0][1] == kinds[1][1]:
            return {0: ("rows", kinds[1][2])}, self._wants(inputs), False
        if words[:2] == [None, "segments"] and self._is_backward(node.name):
            return {0: ("rows", ENTRIES)}, self._wants(inputs, _0=sharded(0)), False
        return None

    def _reshape(self, node, inputs, kinds, words):
        """Entries in another shape, or where rows of a batch come again, or their gradient becomes that of entries."""
        before, after = self._facts.shape(inputs[0]), self._facts.shape(Tensor(node.name, 0))
        if not before or not after or None in before[1:] or None in after[1:]:
            return None
        sizes = [_product(before[1:]), _product(after[1:])]
        if words[0] in ("rows", "ids", "places") and sizes[0] == sizes[1]:
            return {0: kinds[0]}, self._wants(inputs), False
        if self._flattened is None:
            return None
        fields = _product(self._facts.shape(self._flattened)[1:])
        if kinds[0] == ("rows", ENTRIES) and sizes[1] == fields * sizes[0] and words[1] is None:
            self._rows[node.name] = RowCount(like=self._flattened)
            return {0: "rows again"}, self._wants(inputs), False
        if kinds[0] is None and words[1] == "number" and sizes[0] == fields * sizes[1]:
            if self._is_backward(node.name):
                return {0: ("rows", ENTRIES)}, self._wants(inputs, _0=sharded(0)), False
        return None

    def _elementwise(self, node, inputs, kinds, words):
        notation = notation_of(node, inputs, self._facts)
        rows = [kind for kind in kinds if kind is not None]
        if notation is None or notation.text not in _ELEMENTWISE or not rows or set(rows) != {("rows", rows[0][-1])}:
            return None
        shape = self._facts.shape(inputs[words.index("rows")])
        for tensor, kind in zip(inputs, kinds):
            if kind is not None or self._facts.shape(tensor) == ():
                continue
            own = self._facts.shape(tensor)
            if (
                rows[0][1] != ENTRIES
                or self._segments is None
                or not own
                or len(own) != len(shape)
                or own[0] is not None
            ):
                return None
            self.cut(tensor, ("rows", ENTRIES))
        return {0: rows[0]}, self._wants(inputs), False


def _product(sizes):
    found = 1
    for size in sizes:
        found *= size
    return found
