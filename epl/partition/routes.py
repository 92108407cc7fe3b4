r"""Which rows travel to the shard that has them in its part of a table, and what is computed of them there.

    ids of the batch      -> Reshape \
                                      IndexedSlices -> ... -> update of the table
    gradient of the rows  -> Reshape /

The gradient of a lookup is rows of the table that is updated, with their ids. Where shards have parts of the batch,
each sends every row to its owner at the two Reshapes. From there on to the updates all is `routed`: in another order
than on one device, but rows and their ids in the same. This is possible where everything on the way computes row by
row, or for rows of the same id; where something else is, nothing is changed.
"""

import collections
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from epl.graph.index import NodeInput as Tensor
from epl.partition.conversion import conversion_cost, route_cost
from epl.partition.dims import last_of_rows
from epl.partition.lookup_gradients import lists_of_rows
from epl.partition.rule import Partitioning
from epl.partition.table import ROWS_OF_COPY
from epl.program.placement import RAGGED, ROUTED, WHOLE, Placement, partial, sharded
from epl.rules import effects, tensors

_IDS, _ROWS, _PLACES, _SHAPE, _COUNT = "ids", "rows", "places", "shape", "count"
_ELEMENTWISE = frozenset(["...->...", "...,...->...", "...,...,...->..."])
_HANDED_ON = tensors.SAME_OR_CAST | {ROWS_OF_COPY}
_SCALING = frozenset(["Mul", "RealDiv", "MulNoNan", "Neg"])
_ADDING = frozenset(["ScatterAdd", "ScatterSub", "ResourceScatterAdd", "ResourceScatterSub"])


@dataclass(frozen=True)
class Route:
    """How rows of some ids travel.

    Attributes:
      ids: the tensor.
      placement: of the ids, as the shards divide them.
      rows: of the table.
      unique: whether rows of the same id are added up, or come once, before they are sent.
      summed: whether the owner adds up the rows of an id that come from several shards.
    """

    ids: Tensor
    placement: Placement
    rows: int
    unique: bool = True
    summed: bool = False


def route(facts, choices, shards):
    """The Choices in which gradients of lookups go to the shards that update their rows, where that is less to send.

    Args:
      facts: Facts of the graph.
      choices: as `propagate` has made them; stays as it is.
      shards: how many parts.
    """
    found = replace(
        choices,
        strategy=dict(choices.strategy),
        placements=dict(choices.placements),
        routes={name: _route_of(facts, name, s) for name, s in choices.strategy.items() if s.routed},
    )
    apart, done = set(), set()
    begins = [
        b for lookup in facts.graph.find(tensors.LOOKUPS.__contains__) for b in _gradients(facts, choices, lookup)
    ]
    begins += [begin for lookup in found.routes for begin in _gradients_of_combined(facts, choices, lookup)]
    for begin in begins:
        if begin.rows in done:
            continue
        region = _Region(facts, choices, begins, begin).grown()
        if region is None or not all(_pays(facts, choices, each, shards) for each in region.begins):
            continue
        found.strategy.update(region.strategies)
        for name, strategy in region.strategies.items():
            for index, placement in enumerate(strategy.outputs):
                found.placements[Tensor(name, index)] = placement
                if placement == WHOLE:
                    del found.placements[Tensor(name, index)]
        for each in region.begins:
            found.routes.update((tensor.node, each.route) for tensor in (each.rows, each.ids))
            done.add(each.rows)
            if not region.adds_up and not each.route.summed:
                apart.add(each.route.ids)
    for name, each in found.routes.items():
        if each.ids in apart:
            found.routes[name] = replace(each, unique=False)
    return found


def _route_of(facts, lookup, strategy):
    table, ids = facts.inputs(lookup)[:2]
    return Route(ids, strategy.inputs[1], facts.shape(table)[0])


@dataclass(frozen=True)
class _Begin:
    """The gradient of a lookup.

    Attributes:
      lookup: its name.
      rows, ids: the tensors that it is.
      wants: the node of each to the placements in which that wants its inputs.
      given: the gradient before it is a list of rows.
      route: the Route.
    """

    lookup: str
    rows: Tensor
    ids: Tensor
    wants: Tuple[Tuple[str, Tuple[Optional[Placement], ...]], ...]
    given: Tensor
    route: Route


def _gradients(facts, choices, lookup):
    """The _Begins of a lookup in a table of which shards have rows, where these have parts of its gradient.

    So are those of other lookups of the same ids, in tables of as many rows: which is whose makes no difference.
    """
    (table, ids), found = facts.inputs(lookup)[:2], []
    if choices.of(table) != sharded(0) or facts.shape(ids) is None:
        return found
    rank = len(facts.shape(ids))
    for values, lists in lists_of_rows(facts, lookup):
        given = facts.inputs(values)[0]
        placement, dims, summed = choices.of(given), facts.shape(given), False
        if placement.kind == RAGGED:
            fits, summed = placement == choices.of(ids), placement.dim < 0  # each id is there once
        else:
            fits = placement.kind == "sharded" and placement.dim < rank and dims is not None
            fits = fits and len(dims) - rank == len(facts.shape(table)) - 1 and choices.of(ids) in (WHOLE, placement)
        if fits:
            known = Route(ids, placement, facts.shape(table)[0], summed=summed)
            wants = (values, (placement, None)), (lists, (placement, None))
            found.append(_Begin(lookup, Tensor(values, 0), Tensor(lists, 0), wants, given, known))
    return found


def _gradients_of_combined(facts, choices, lookup):
    """The _Begins of what looks up rows and combines them."""
    strategy, inputs = choices.strategy[lookup], facts.inputs(lookup)
    if not facts.graph.nodes[lookup].op.startswith("SparseSegment"):
        return []
    rows, found = facts.shape(inputs[0])[0], []
    for name in sorted(set(facts.graph.edges.data_consumers.get(inputs[2].node, ()))):
        given = facts.inputs(name)
        if (
            facts.graph.nodes[name].op.endswith("GradV2")
            and given[1:3] == inputs[1:3]
            and facts.value(given[3]) == rows
        ):
            known = Route(inputs[1], strategy.inputs[1], rows, summed=True)
            wants = ((name, (sharded(0),) + strategy.inputs[1:3] + (None,)),)
            found.append(_Begin(lookup, Tensor(name, 0), Tensor(name, 1), wants, given[0], known))
    return found


def _pays(facts, choices, begin, shards):
    if begin.route.placement.kind == RAGGED:
        return True
    num_bytes, ids = facts.num_bytes(begin.given), facts.num_bytes(begin.route.ids)
    if choices.strategy[begin.lookup].routed:  # the owners have the ids already
        ids = 0
    link = facts.machine.worker
    whole = conversion_cost(choices.of(begin.given), WHOLE, num_bytes, shards, link)
    return route_cost(num_bytes, ids, shards, link) < whole


class _Region(object):
    """What is computed of routed rows, as far as the updates.

    Args:
      facts, choices: as of `route`.
      begins: all gradients of lookups, of which some may come together with the first one.
      first: the _Begin that it is grown from.

    Attributes:
      begins: those that are in it.
      strategies: node to its Partitioning.
      adds_up: whether rows of the same id may be added up before they are sent.
    """

    def __init__(self, facts, choices, begins, first):
        self._facts, self._choices, self._graph = facts, choices, facts.graph
        fit = [begin for begin in begins if begin.route.rows == first.route.rows]
        self._others = {tensor: begin for begin in fit for tensor in (begin.rows, begin.ids)}
        self._rows = first.route.rows
        # Tensor -> (what it is, which list of rows or ids: lists of the same name have the same order)
        self._known, self._waiting = {}, collections.deque()
        self.begins, self.strategies, self.adds_up = [], {}, True
        self._add(first)

    def _add(self, begin):
        self.begins.append(begin)
        what = ("unique", begin.route) if begin.route.summed else begin.route
        self._known.update({begin.rows: (_ROWS, what), begin.ids: (_IDS, what)})
        for name, placements in begin.wants:
            outputs = (ROUTED,) * (2 if begin.rows.node == begin.ids.node else 1)
            self.strategies[name] = Partitioning(None, placements, outputs, routed=True)
            self._waiting.append(name)

    def grown(self):
        """This region with all that follows; None where something does not go with rows in another order."""
        undecided, waiting = set(), self._waiting
        while waiting:
            name = waiting.popleft()
            for consumer in sorted(set(self._graph.edges.data_consumers.get(name, ()))):
                if consumer in self.strategies:
                    continue
                inputs = self._facts.inputs(consumer)
                found = self._visit(self._graph.nodes[consumer], inputs)
                if found is None:  # another input may still come to be known
                    undecided.add(consumer)
                    continue
                strategy, kinds = found
                self.strategies[consumer] = strategy
                self._known.update((Tensor(consumer, i), kind) for i, kind in kinds.items())
                if kinds:
                    waiting.append(consumer)
        return self if undecided.issubset(self.strategies) else None

    def _visit(self, node, inputs):
        """(Partitioning, number of an output to what it is) of a node that takes what is routed; None for others."""
        kinds = [self._known.get(tensor) for tensor in inputs]
        words = [kind and kind[0] for kind in kinds]
        op = node.op
        if op in _HANDED_ON and words[0] in (_ROWS, _IDS):
            return self._made(inputs, kinds[0])
        if op == "ConcatV2" and words[0] in (_ROWS, _IDS):
            for tensor in inputs:
                if tensor in self._others and tensor not in self._known:
                    self._add(self._others[tensor])
            kinds = [self._known.get(tensor) for tensor in inputs]
            words, axis = [kind and kind[0] for kind in kinds], self._facts.value(inputs[-1])
            if set(words[:-1]) != {words[0]} or axis is None or axis[()] != 0:
                return None
            return self._made(inputs, (words[0], tuple(kind[1] for kind in kinds[:-1])))
        if op == "Unique" and words == [_IDS]:
            unique = "unique", kinds[0][1]
            places = _PLACES, unique
            return Partitioning(None, (ROUTED,), (ROUTED, ROUTED)), {0: (_IDS, unique), 1: places}
        if op == "Shape" and words == [_IDS]:
            return Partitioning(None, (None,), (WHOLE,)), {0: (_SHAPE, kinds[0][1])}
        if op == "StridedSlice" and words[0] == _SHAPE and node.attr["shrink_axis_mask"].i == 1:
            return Partitioning(None, (WHOLE,) * 4, (WHOLE,)), {0: (_COUNT, kinds[0][1])}
        if op == "UnsortedSegmentSum" and words == [_ROWS, _PLACES, _COUNT]:
            if kinds[1][1] == kinds[2][1] == ("unique", kinds[0][1]):
                return Partitioning(None, (ROUTED, ROUTED, WHOLE), (ROUTED,)), {0: (_ROWS, kinds[1][1])}
            return None
        if op == "L2Loss" and words == [_ROWS]:
            self._comes_apart(kinds)
            return Partitioning(None, (ROUTED,), (partial(),)), {}
        if op in tensors.LOOKUPS and words[1] == _IDS and self._is_sharded_table(inputs[0]):
            self._comes_apart(kinds[1:2])
            placements = (sharded(0), ROUTED) + (WHOLE,) * (len(inputs) - 2)
            return Partitioning(None, placements, (ROUTED,)), {0: (_ROWS, kinds[1][1])}
        if effects.is_write(op):
            return self._update(node, inputs, kinds)
        return self._elementwise(node, inputs, kinds)

    def _made(self, inputs, kind):
        placements = tuple(ROUTED if tensor in self._known else WHOLE for tensor in inputs)
        return Partitioning(None, placements, (ROUTED,)), {0: kind}

    def _comes_apart(self, kinds):
        """Notes that something is not the same for a sum of rows, where these could still be of the same id."""
        if not all(isinstance(kind[1], tuple) and kind[1][:1] == ("unique",) for kind in kinds if kind):
            self.adds_up = False

    def _is_sharded_table(self, tensor):
        shape = self._facts.shape(tensor)
        return self._choices.of(tensor) == sharded(0) and bool(shape) and shape[0] == self._rows

    def _update(self, node, inputs, kinds):
        """A change of some rows of a table."""
        if "SparseApply" not in node.op and "Scatter" not in node.op or not self._is_sharded_table(inputs[0]):
            return None
        at = last_of_rows(inputs, self._facts) if "SparseApply" in node.op else 1
        values = at - 1 if "SparseApply" in node.op else 2
        if kinds[at] is None or kinds[values] is None or kinds[at][1] != kinds[values][1]:
            return None
        if (kinds[at][0], kinds[values][0]) != (_IDS, _ROWS) or sum(kind is not None for kind in kinds) != 2:
            return None
        if node.op not in _ADDING:
            self._comes_apart([kinds[at]])
        before = self._choices.strategy[node.name]
        placements = tuple(ROUTED if kind else placement for kind, placement in zip(kinds, before.inputs))
        return replace(before, inputs=placements), {}

    def _elementwise(self, node, inputs, kinds):
        rule = self._choices.rule.get(node.name)
        rows = [kind for kind in kinds if kind is not None]
        if rule is None or rule.notation.text not in _ELEMENTWISE or any(kind[0] != _ROWS for kind in rows):
            return None
        if len({kind[1] for kind in rows}) != 1:
            return None
        others = [tensor for tensor, kind in zip(inputs, kinds) if kind is None]
        if any(self._facts.shape(tensor) != () for tensor in others):
            return None
        if node.op not in _SCALING or len(rows) > 1 or kinds[0] is None and node.op == "RealDiv":
            self._comes_apart(rows)
        return self._made(inputs, rows[0])
