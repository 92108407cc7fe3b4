"""Which updates of optimizers are divided by rows under ZeRO, as whole variables would not come out even.

A variable whose rows are divided has shards: of its slots, which stay where they are, and of itself: while an update is
made, or for good where parameters are divided (`epl.plan.parameters`). What the update computes has to be the same for
each row by itself, whatever the others are: an operation of TensorFlow's optimizers, or plain ones that work element by
element or on the rows of a sparse gradient. Sums over all elements, of which norms are made (LAMB, LARS), are added up
over the shards.
"""

import re
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Tuple

from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.partition.rule import Notation
from epl.partition.table import RULES
from epl.partition.values import constant_value
from epl.plan.apply_groups import of_call
from epl.plan.gradients import size_bytes
from epl.plan.verdicts import judging
from epl.plan.zero_owners import ALL_STAGES, updates_by_call
from epl.program.program import Gradient
from epl.rules import effects

# Owners of less than this would wait for more messages than their work is worth.
LEAST_BYTES = 64 << 10
# By how much the state of a device may exceed the mean.
EXCESS = 1.05

# All rows of a shard; those of them that a sparse gradient has, or their numbers; all rows of the variable.
_ROWS, _PICKED, WHOLE = "rows", "picked", "whole"
_NUMBER = "number"  # of all rows, the same for all shards
_EACH = frozenset(["...->...", "...,...->...", "...,...,...->..."])
_KERNELS = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]\w*$|(Resource)?Scatter(Add|Sub|Update|Mul|Div|Min|Max)$")
_CHANGES = frozenset("Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp".split())
_ALSO = frozenset(["AddN", "Cast", "Select"])
_OF_PICKED = frozenset(["Unique", "UnsortedSegmentSum", "Shape", "StridedSlice"])
_LOOKUPS = frozenset(["Gather", "GatherV2", "ResourceGather"])
_READS = frozenset(["Identity", "ReadVariableOp"])
_SUMMED = (1, 2)  # float32 and float64


@dataclass(frozen=True)
class Rows:
    """An update that is divided by rows.

    Attributes:
      call: number of the ApplyCall.
      variable: name.
      gradient: the Gradient that the call was given.
      slots: the variables of the optimizer, of the variable's shape.
      region: what is computed for each shard by itself.
      reads: reads of the variable and its slots that do not belong to the call, to what they read.
      judged: the nodes that tell whether the gradient is finite, the flag of a Verdict among them.
      kinds: nodes whose results have all rows, or some, to "rows" or "picked"; numbers of all rows to "number".
      sums: nodes that add up all elements.
      dense: nodes that make all rows of those that a sparse gradient has.
      shape: of the variable.
      sizes: rows of each shard.
      parameter: whether the variable itself has shards for good.
      uses: of a parameter, the reads that training takes to lists of the nodes that take one at the same time, as
        (node, input position) pairs.
    """

    call: int
    variable: str
    gradient: Gradient
    slots: Tuple[str, ...]
    region: FrozenSet[str]
    reads: Dict[str, str]
    judged: Tuple[str, ...]
    kinds: Dict[str, str]
    sums: FrozenSet[str]
    dense: FrozenSet[str]
    shape: Tuple[int, ...]
    sizes: Tuple[int, ...]
    parameter: bool = False
    uses: Dict[str, Tuple[Tuple[Tuple[str, int], ...], ...]] = field(default_factory=dict)

    @property
    def lasting(self):
        """The variables that have shards for good."""
        return self.slots + (self.variable,) * self.parameter

    @property
    def begins(self):
        """The first row of each shard."""
        return tuple(sum(self.sizes[:shard]) for shard in range(len(self.sizes)))


def divided_rows(program, analysis, size, places=ALL_STAGES, uses=None):
    """The Rows of a program, as few as make the state of copies even; in order of calls, the largest first.

    They follow from calls in their order: what is divided stays so when the program's graph grows.

    Args:
      program: an epl.program.program.Program in which updates run in each step.
      analysis: its Analysis.
      size: copies of the model among which state is divided.
      places: the Places of a pipeline's workers, each of which divides its own state.
      uses: a dict of the parameters that are divided as their state is to the `uses` of their Rows.

    Raises:
      UnsupportedError: an update cannot be made by one copy alone.
    """
    uses = uses or {}
    pairs = [variable for call in program.apply_calls for _, variable in call.gradients]
    filled, found = {}, []
    for call, updates in updates_by_call(program, analysis, size, places, frozenset(uses)):
        state = {}
        for update in updates:
            kept = update.slots + (update.variable,) * (update.variable in uses)
            state[update.variable] = sum(size_bytes(program.variables[v]) for v in kept)
        order = sorted(updates, key=lambda u: (-state[u.variable], u.variable))
        for place in sorted({places.of(update.variable) for update in updates}):
            whole = [u for u in order if state[u.variable] and places.of(u.variable) == place]
            candidates = [u for u in whole if u.num_bytes >= LEAST_BYTES and pairs.count(u.variable) == 1]
            before, chosen = filled.get(place, [0.0] * size), []
            after = _filled(before, whole, chosen, state)
            while candidates and max(after) > EXCESS * sum(after) / size:
                rows = _rows(program, analysis, call, candidates[0], size, uses.get(candidates[0].variable))
                if rows is not None:
                    found.append(rows)
                    chosen.append(candidates[0])
                    whole.remove(candidates[0])
                    after = _filled(before, whole, chosen, state)
                candidates = candidates[1:]
            filled[place] = after
    return found


def _filled(filled, whole, chosen, state):
    """Bytes of each copy once some updates are divided evenly and others, the largest first, have one owner."""
    after = [bytes_ + sum(state[u.variable] for u in chosen) / len(filled) for bytes_ in filled]
    for update in whole:
        after[after.index(min(after))] += state[update.variable]
    return after


def _rows(program, analysis, call, update, size, uses):
    """The Rows of an update; None where it cannot be made row by row. `uses` of a parameter as in Rows, else None."""
    graph = program.graph
    gradient = next(g for g, variable in call.gradients if variable == update.variable)
    holders = (update.variable,) + update.slots
    shape = update.shape
    if not shape or shape[0] < size or any(tuple(program.variables[s].shape or ()) != shape for s in update.slots):
        return None
    reads = {
        name: holder
        for holder in holders
        for name in graph.edges.data_consumers.get(holder, ())
        if graph.nodes[name].op in _READS and not of_call(graph, name, call)
    }
    region = _region(graph, call, update, holders, reads)
    judging_all = [name for each in program.scaled for flag in each.flags for name in judging(graph, flag)]
    judged = tuple(name for name in judging_all if name in region)
    region = region.difference(judging_all)
    lasting = holders if uses is not None else update.slots
    if region & analysis.in_control_flow or not all(_may_be_sharded(graph, each, region) for each in lasting):
        return None
    taken = [c for c, p in graph.consumers[node_of(gradient.values)] if graph.inputs[c][p] == _tensor(gradient.values)]
    if canonical_tensor(gradient.values) in program.short:  # for who fetches it, it becomes what it was before
        taken = [c for c in taken if of_call(graph, c, call)]
    given = [c for name in region for c in graph.edges.data_consumers.get(name, ())]
    if not region.union(judged).issuperset(taken + given):
        return None
    kinds = _kinds(program, gradient, region, holders, reads, shape)
    if kinds is None:
        return None
    least, more = divmod(shape[0], size)
    sizes = tuple(least + (shard < more) for shard in range(size))
    kinds.update((name, _PICKED if gradient.indices else _ROWS) for name in judged if name.endswith("/each"))
    return Rows(
        call.index,
        update.variable,
        gradient,
        update.slots,
        region,
        reads,
        judged,
        kinds,
        frozenset(name for name in region if graph.nodes[name].op == "Sum"),
        frozenset(name for name in region if _makes_dense(graph, graph.nodes[name], shape)),
        shape,
        sizes,
        uses is not None,
        uses or {},
    )


def _tensor(text):
    return parse_input(canonical_tensor(text))


def _region(graph, call, update, holders, reads):
    """All of a call that is computed for one variable: from its gradient, or from it and its slots."""
    found, stack = set(), list(holders) + list(reads)
    while stack:
        for consumer in graph.edges.data_consumers.get(stack.pop(), ()):
            if consumer not in found and of_call(graph, consumer, call):
                found.add(consumer)
                stack.append(consumer)
    return update.members | (frozenset(found) & graph.ancestors(update.members))


def _may_be_sharded(graph, slot, region):
    """Whether all that takes a slot besides its update can take shards of it."""
    reference = graph.nodes[slot].op != "VarHandleOp"
    for consumer in graph.edges.data_consumers.get(slot, ()):
        op = graph.nodes[consumer].op
        if consumer in region or op in effects.SETS or op in ("VarIsInitializedOp", "IsVariableInitialized"):
            continue
        if op != "ReadVariableOp" and not (reference and effects.kind_of(op) in (None, effects.FILE_WRITE)):
            return False
    return True


def _kinds(program, gradient, region, holders, reads, shape):
    """dict of node to "rows", "picked" or "number"; None where an update is not made row by row."""
    graph = program.graph
    found = dict.fromkeys(reads, _ROWS)
    given = {canonical_tensor(gradient.values): _ROWS if gradient.indices is None else _PICKED}
    if gradient.indices is not None:
        given[canonical_tensor(gradient.indices)] = _PICKED
    for name in sorted(region, key=graph.order.__getitem__):
        node, kinds = graph.nodes[name], set()
        texts = [text for text in node.input if text[0] != "^"]
        for position, text in enumerate(texts):
            kind = given.get(canonical_tensor(text)) or found.get(node_of(text))
            if node_of(text) in holders:
                if not _takes_holder(node, position):
                    return None
                kind = _ROWS
            if kind is None and node.op not in ("StridedSlice", "Sum") and not _is_number(program, text):
                return None
            kinds.add(kind)
        if node.op == "Sum":
            kind = _NUMBER if kinds == {_ROWS, None} and _adds_all(graph, node, len(shape)) else None
        elif _makes_dense(graph, node, shape):
            kind = _ROWS if kinds == {_PICKED, None} else None
        else:
            kind = _result(graph, node, texts, kinds - {None}, holders)
        if kind is None:
            return None
        found[name] = kind
    return found


def _takes_holder(node, position):
    op = node.op
    return op in _READS or op == "ResourceGather" or op in _CHANGES and not position or bool(_KERNELS.match(op))


def _is_number(program, text):
    spec = program.spec_of(canonical_tensor(text)) if program.spec_of is not None else None
    return spec is not None and spec.shape is not None and len(spec.shape) == 0


def _result(graph, node, texts, kinds, holders):
    """The kind of what a node computes from inputs of these kinds; None where rows would depend on others."""
    op, rule = node.op, RULES.get(node.op)
    if _KERNELS.match(op) or op == "NoOp" or op in _CHANGES and _PICKED not in kinds:
        return _ROWS
    if op in _LOOKUPS and kinds == {_ROWS, _PICKED} and not node.attr["batch_dims"].i:
        return _PICKED if op != "GatherV2" or _is_zero(graph.nodes[node_of(texts[2])]) else None
    kinds = kinds - {_NUMBER} or kinds
    if len(kinds) != 1:
        return None
    kind = next(iter(kinds))
    if op in _OF_PICKED:
        return kind if kind == _PICKED else None
    each = op in _ALSO or op in _READS or isinstance(rule, Notation) and rule.text in _EACH
    return kind if each else None


def _adds_all(graph, node, ndims):
    """Whether a Sum of a tensor of so many dimensions is a number."""
    dims = _constant(graph, node_of(node.input[1]))
    if not isinstance(dims, list) or node.attr["keep_dims"].b or node.attr["T"].type not in _SUMMED:
        return False
    return {dim % ndims for dim in dims} == set(range(ndims))


def _makes_dense(graph, node, shape):
    """Whether a node puts slices of a sparse gradient into a tensor of the variable's shape."""
    return node.op == "UnsortedSegmentSum" and _first_size(graph, node_of(node.input[2]), shape)


def _first_size(graph, name, shape):
    """Whether a node gives the number of rows of a variable of this shape: a constant, or taken of its shape's."""
    node = graph.nodes[name]
    if node.op != "StridedSlice":
        return _constant(graph, name) == shape[0]
    whole, begin, end, strides = [_constant(graph, node_of(text)) for text in node.input[:4]]
    return whole == list(shape) and [begin, end, strides] == [[0], [1], [1]] and node.attr["shrink_axis_mask"].i == 1


def _constant(graph, name):
    """What a small constant holds, as a list or a number; None for what is no constant."""
    node = graph.nodes[name]
    while node.op in ("Cast", "Identity"):
        node = graph.nodes[node_of(node.input[0])]
    value = constant_value(node.attr["value"].tensor) if node.op == "Const" else None
    return None if value is None else value.tolist()


def _is_zero(node):
    tensor = node.attr["value"].tensor
    values = list(tensor.int_val) + list(tensor.int64_val)
    return node.op == "Const" and not any(values) and not any(tensor.tensor_content)


def rows_of_spec(spec, kind, rows):
    """The TensorSpec of a shard of a tensor."""
    if spec is None or not spec.shape or kind == WHOLE:
        return spec
    return spec._replace(shape=((rows if kind == _ROWS else -1),) + tuple(spec.shape)[1:])
