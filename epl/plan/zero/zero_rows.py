"""Which updates of optimizers are divided by rows under ZeRO, as whole variables would not come out even.

A variable whose rows are divided has shards: of its slots, which stay where they are, and of itself: while an update is
made, or for good where parameters are divided (`epl.plan.zero.parameters`). What the update computes has to be the
same for each row by itself, whatever the others are: an operation of TensorFlow's optimizers, or plain ones that work
element by element or on the rows of a sparse gradient. Sums and means over all rows, of which norms are made (LAMB,
LARS) or means of columns (Adafactor), are added up over the shards. A slot that has nothing for each row, such as
these means, is the same for all shards, and each has one of its own.
"""

import itertools
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Tuple

from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.plan.facts.row_kinds import PICKED, ROWS, SAME, Held, RowTotal, kinds_of, makes_dense
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.memory.apply_groups import of_call
from epl.plan.precision.found_inf import judging
from epl.plan.zero.zero_owners import ALL_STAGES, updates_by_call
from epl.program.program import Gradient
from epl.rules import effects, tensors

# Owners of less than this would wait for more messages than their work is worth.
LEAST_BYTES = 64 << 10
# By how much the state of a device may exceed the mean.
EXCESS = 1.05

# What all rows of the variable are in.
WHOLE = "whole"
# Slots of fewer dimensions than the variable, of which it is to be found out whether they have a number for each row.
_MOST_SLOTS = 4


@dataclass(frozen=True)
class RowsUpdate:
    """An update that is divided by rows.

    Attributes:
      call: number of the ApplyCall.
      variable: name.
      gradient: the Gradient that the call was given.
      slots: the variables of the optimizer.
      region: what is computed for each shard by itself.
      reads: reads of the variable and its slots that do not belong to the call, to what they read.
      judged: the nodes that tell whether the gradient is finite, the flag of a FoundInf among them.
      kinds: nodes to what a shard has of their results: "rows", "picked", or what is the "same" for all of them.
      sums: nodes that add up rows, to their epl.plan.facts.row_kinds.RowTotal.
      dense: nodes that make all rows of those that a sparse gradient has.
      held: the variable and its slots to the Held of each: "rows", or the "same" for all shards.
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
    sums: Dict[str, RowTotal]
    dense: FrozenSet[str]
    held: Dict[str, Held]
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


def divided_rows(program, analysis, size, places=ALL_STAGES, uses=None, whole=frozenset()):
    """The RowsUpdate of a program, as few as make the state of copies even; in order of calls, the largest first.

    They follow from calls in their order: what is divided stays so when the program's graph grows.

    Args:
      program: an epl.program.program.Program in which updates run in each step.
      analysis: its Analysis.
      size: copies of the model among which state is divided.
      places: the Places of a pipeline's workers, each of which divides its own state.
      uses: a dict of the parameters that are divided as their state is to the `uses` of their RowsUpdate.
      whole: names of variables that keep one owner.

    Raises:
      UnsupportedError: an update cannot be made by one copy alone.
    """
    uses = uses or {}
    pairs = [variable for call in program.apply_calls for _, variable in call.gradients]
    filled, found = {}, []
    for call, updates in updates_by_call(program, analysis, size, places, frozenset(uses)):
        state = {}
        for update in updates:
            held = update.slots + (update.variable,) * (update.variable in uses)
            state[update.variable] = sum(size_bytes(program.variables[v]) for v in held)
        order = sorted(updates, key=lambda u: (-state[u.variable], u.variable))
        for place in sorted({places.of(update.variable) for update in updates}):
            kept = [u for u in order if state[u.variable] and places.of(u.variable) == place]
            large = [u for u in kept if u.num_bytes >= LEAST_BYTES and u.variable not in whole]
            candidates = [u for u in large if pairs.count(u.variable) == 1]
            before, each = filled.get(place, [0.0] * size), 0.0
            after = _filled(before, kept, each, state)
            while candidates and max(after) > EXCESS * sum(after) / size:
                rows = _rows(program, analysis, call, candidates[0], size, uses.get(candidates[0].variable))
                own = _share(program, rows, size) if rows is not None else 0.0
                if rows is not None and EXCESS * own < state[candidates[0].variable]:
                    found.append(rows)
                    each += own
                    kept.remove(candidates[0])
                    after = _filled(before, kept, each, state)
                candidates = candidates[1:]
            filled[place] = after
    return found


def _share(program, rows, size):
    """Bytes of each copy of what an update that is divided by rows keeps."""
    return sum(
        size_bytes(program.variables[name]) / (size if rows.held[name].kind == ROWS else 1.0) for name in rows.lasting
    )


def _filled(filled, whole, each, state):
    """Bytes of each copy, `each` of what is divided evenly, once other updates, the largest first, have one owner."""
    after = [bytes_ + each for bytes_ in filled]
    for update in whole:
        after[after.index(min(after))] += state[update.variable]
    return after


def _rows(program, analysis, call, update, size, uses):
    """The RowsUpdate of an update; None where it cannot be made row by row. `uses` of a parameter as in RowsUpdate,
    else None."""
    graph = program.graph
    gradient = next(g for g, variable in call.gradients if variable == update.variable)
    holders = (update.variable,) + update.slots
    shape = update.shape
    if not shape or shape[0] < size or any(program.variables[s].shape is None for s in update.slots):
        return None
    reads = {
        name: holder
        for holder in holders
        for name in graph.edges.data_consumers.get(holder, ())
        if graph.nodes[name].op in tensors.READS and not of_call(graph, name, call)
    }
    joined = frozenset(each.joined for each in program.row_sums)  # what owners of several variables say together
    region = _region(graph, call, update, holders, reads, joined)
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
    if not region.union(judged, joined).issuperset(taken + given):
        return None
    found = _held(program, gradient, region, update, reads)
    if found is None:
        return None
    held, (kinds, sums) = found
    least, more = divmod(shape[0], size)
    sizes = tuple(least + (shard < more) for shard in range(size))
    kinds.update((name, PICKED if gradient.indices else ROWS) for name in judged if graph.nodes[name].op == "IsFinite")
    return RowsUpdate(
        call.index,
        update.variable,
        gradient,
        update.slots,
        region,
        reads,
        judged,
        kinds,
        sums,
        frozenset(name for name in region if makes_dense(graph, graph.nodes[name], shape)),
        held,
        shape,
        sizes,
        uses is not None,
        uses or {},
    )


def _held(program, gradient, region, update, reads):
    """What a shard has of the variable and its slots, and what `kinds_of` finds then; None where it finds nothing."""
    shape, choices = update.shape, [[ROWS]]
    for slot in update.slots:
        own = tuple(program.variables[slot].shape)
        choices.append([ROWS] if own == shape else [ROWS, SAME] if own[:1] == shape[:1] else [SAME])
    if sum(len(each) > 1 for each in choices) > _MOST_SLOTS:
        return None
    holders = (update.variable,) + update.slots
    for kinds in itertools.product(*choices):
        held = {name: Held(kind, tuple(program.variables[name].shape)) for name, kind in zip(holders, kinds)}
        found = kinds_of(program, gradient, region, held, reads, shape)
        if found is not None:
            return held, found
    return None


def _tensor(text):
    return parse_input(canonical_tensor(text))


def _region(graph, call, update, holders, reads, joined):
    """All of a call that is computed for one variable: from its gradient, or from it and its slots."""
    found, stack = set(), list(holders) + list(reads)
    while stack:
        for consumer in graph.edges.data_consumers.get(stack.pop(), ()):
            if consumer not in found and consumer not in joined and of_call(graph, consumer, call):
                found.add(consumer)
                stack.append(consumer)
    return update.members | (frozenset(found) & graph.ancestors(update.members))


def _may_be_sharded(graph, slot, region):
    """Whether all that takes a slot besides its update can take shards of it."""
    reference = graph.nodes[slot].op != "VarHandleOp"
    for consumer in graph.edges.data_consumers.get(slot, ()):
        op = graph.nodes[consumer].op
        if consumer in region or op in effects.SETS or op in effects.TELL_INITIALIZED:
            continue
        if op != "ReadVariableOp" and not (reference and effects.kind_of(op) in (None, effects.FILE_WRITE)):
            return False
    return True


def rows_of_spec(spec, kind, rows):
    """The TensorSpec of a shard of a tensor."""
    if spec is None or not spec.shape or kind in (WHOLE, SAME):
        return spec
    return spec._replace(shape=((rows if kind == ROWS else -1),) + tuple(spec.shape)[1:])
