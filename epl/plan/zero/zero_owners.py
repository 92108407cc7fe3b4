"""Which copy of the model updates which variable (see zero.py): the largest first, each by that with least state."""

import collections
import logging
from dataclasses import dataclass, field
from typing import Dict

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.analysis import initial_writes, of_kernel, variables_of
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.memory.apply_groups import of_call, reached_in_call
from epl.plan.precision.found_inf import joined_nodes
from epl.plan.zero.zero import Update, Zero
from epl.rules import effects

_LOG = logging.getLogger("epl")


@dataclass(frozen=True)
class StagePlaces:
    """In which workers of a pipeline the state lies; each of them divides its own by itself.

    Attributes:
      owners: node to the place of its worker in the pipeline; nothing where each worker has all stages.
      here: the place of this worker.
    """

    owners: Dict[str, int] = field(default_factory=dict)
    here: int = 0

    def of(self, variable):
        """The place of a variable's worker."""
        return self.owners.get(variable, self.here)


# Each worker has them.
ALL_STAGES = StagePlaces()


def divides_state(model, config, mesh, role):
    """Whether copies of a model divide among them what `zero.level` says; logs where they have nothing in common, as
    each trains by itself."""
    if not config.zero.level or mesh.copies.size == 1 or role is not None or not model.apply_calls:
        return False
    if config.local_sgd.k_steps:
        _LOG.warning(
            "zero.level: there is nothing to divide, as with local_sgd.k_steps each copy of the model makes its own "
            "updates, from a state of its own, between averages."
        )
    return not config.local_sgd.k_steps


def plan_zero(model, analysis, level, groups, places=ALL_STAGES):
    """Divides the updates of a model over its copies.

    Owners follow from calls of apply_gradients in their order: they stay when the program's graph grows.

    Args:
      model: an epl.program.program.Program.
      analysis: its Analysis.
      level: from "v0" to "v3".
      groups: (shard group, replicate group), as of Zero.
      places: the StagePlaces.

    Returns:
      A Zero.

    Raises:
      UnsupportedError: an update cannot be made by one copy alone; says why.
    """
    shard_group, replicate_group = groups
    division = _StateDivision(model, analysis, shard_group.size, places)
    for call in model.apply_calls:
        division.add(call)
    division.check_slots()
    _tell(division)
    return Zero(
        level,
        tuple(division.updates),
        division.owners(),
        tuple(division.state_bytes[places.here]),
        shard_group,
        replicate_group,
        model.segments,
        model.row_sums,
    )


def updates_by_call(model, analysis, size, places=ALL_STAGES, parameters=frozenset()):
    """(ApplyCall, its Updates) pairs in order, for so many owners, of a Program that has no segments yet.

    Args:
      model, analysis, places: as of `plan_zero`, errors too.
      size: owners.
      parameters: names of the variables that are divided as their state is.
    """
    division = _StateDivision(model, analysis, size, places, parameters)
    for call in model.apply_calls:
        before = len(division.updates)
        division.add(call)
        yield call, division.updates[before:]


def _tell(division):
    if division.unknown:
        _LOG.warning(
            "zero.level: the state of '%s'%s stays whole on every device, as the variable's shape is not known.",
            division.unknown[0],
            " and %d other variables" % (len(division.unknown) - 1) if len(division.unknown) > 1 else "",
        )
    if not division.updates:
        _LOG.warning("zero.level: there is nothing to divide, as the optimizers of this program keep no state.")


class _StateDivision(object):
    """The updates and their owners, as call after call is added.

    Attributes:
      updates: list of Updates.
      state_bytes: for each place of a pipeline those of each copy of the model.
      unknown: variables whose shape is not known.
    """

    def __init__(self, model, analysis, size, places, parameters=frozenset()):
        self._places = places
        self._model, self._graph, self._analysis = model, model.graph, analysis
        functions = Functions(self._graph.library)
        self._changes = {w: _changed(self._graph, w, functions) for w in analysis.writes}
        self._trained = {variable for call in model.apply_calls for _, variable in call.gradients}
        self._owner_of, self._counted = {}, set()
        self._gates = {write: around for found_inf in model.scaled for write, around in found_inf.gates.items()}
        self._joined = joined_nodes(model)
        self._before = _before_merges(model)
        self.updates, self.unknown = [], []
        self.state_bytes = collections.defaultdict(lambda: [0] * size)
        self._parameters = parameters.union(variable for segment in model.segments for variable in segment.variables)
        # By state and, where that is the same, by what is updated.
        self._filled = collections.defaultdict(lambda: [0] * size)

    def add(self, call):
        """Divides the updates of a call."""
        if call.between is not None:
            raise composes.refused(composes.BY_HAND, composes.ZERO, variable=call.gradients[0][1])
        found = []
        for variable, members in self._units(call):
            writes = [w for w in self._graph.in_order(members) if w in self._changes]
            self._check(call, variable, writes)
            gates = {name for w in writes for name in self._gates.get(w, ())}  # of these, some run in some steps only
            between = self._graph.in_order(members & self._between(call, writes) - gates)
            slots = sorted({v for w in writes for v in self._changes[w]} - self._trained)
            known = self._model.variables.get(variable)
            if slots and not size_bytes(known) and 0 not in (known.shape or ()):
                self.unknown.append(variable)
            elif slots or variable in self._parameters:
                done = [self._gates.get(w, (w,))[-1] for w in writes if variable in self._changes[w]]
                found.append((known, slots, members.union(gates), done + between))
        made = {}
        for known, slots, members, writes in sorted(found, key=lambda each: (-self._cost(each)[0], each[0].name)):
            made[known.name] = self._update(call, known, slots, members, writes)
        self.updates.extend(made[known.name] for known, _, _, _ in found)

    def _units(self, call):
        """(variable, what its gradients lead to in the call), in the order in which gradients become ready."""
        reached, created = collections.OrderedDict(), self._graph.creation_index
        ready = sorted(call.gradients, key=lambda item: created[node_of(canonical_tensor(item[0].values))])
        for gradient, variable in ready:
            found = reached_in_call(self._graph, gradient, call, self._joined) - self._before
            found |= self._model.variables[variable].update if variable in self._model.variables else frozenset()
            reached[variable] = reached.get(variable, frozenset()) | found
        self._add_others(call, reached)
        for variable, found in reached.items():
            reached[variable] = found | self._between(call, [w for w in found if w in self._changes])
        times = collections.Counter(name for found in reached.values() for name in found)
        for variable, found in reached.items():
            several = [name for name in self._graph.in_order(found) if times[name] > 1]
            if several:
                raise UnsupportedError(
                    "zero.level cannot divide the updates of %s: '%s' is part of those of several variables, '%s' for "
                    "one. Use another optimizer, or leave zero.level at ''." % (call.optimizer, several[0], variable)
                )
        return reached.items()

    def _add_others(self, call, reached):
        """Adds to units what else the call does to their variables, such as weight decay that no gradient comes into.

        What it does after an update, such as going back half the way, all workers do alike; but for what takes the
        slots that the update has changed, such as the last part of Adam's for a sparse gradient.
        """
        others = [w for w in self._changes if of_call(self._graph, w, call)]
        for variable, found in reached.items():
            writes = [w for w in found if w in self._changes]
            own = {v for w in writes for v in self._changes[w]}.union([variable])
            more = [w for w in others if w not in found and own.intersection(self._changes[w])]
            after = self._graph.descendants(writes) if more else ()
            slots = own.difference(self._trained)
            by_slots = self._graph.descendants(slots, data_only=True) if after else ()
            reached[variable] = found.union(w for w in more if w not in after or w in by_slots)

    def _between(self, call, writes):
        """What of a call comes after one of some writes and before another one, such as a read after weight decay, for
        which the update waits."""
        if len(writes) < 2:
            return frozenset()
        edges = self._graph.edges

        def reached(neighbours):
            found, stack = set(), list(writes)
            while stack:
                for name in neighbours(stack.pop()):
                    if name not in found and name not in self._joined and of_call(self._graph, name, call):
                        found.add(name)
                        stack.append(name)
            return found

        after = reached(lambda name: [consumer for consumer, _ in edges.consumers.get(name, ())])
        before = reached(lambda name: [producer for producer, _ in edges.inputs[name]])
        return after.intersection(before).difference(writes)

    def _check(self, call, variable, writes):
        inside = [w for w in writes if w in self._analysis.in_control_flow and w not in self._gates]
        if inside:
            raise UnsupportedError(
                "zero.level cannot divide the updates of %s: '%s', which changes '%s', stands in a branch or a loop. "
                "Call apply_gradients outside of it, or leave zero.level at ''." % (call.optimizer, inside[0], variable)
            )

    def check_slots(self):
        """Raises UnsupportedError unless each slot is changed by the updates of one variable alone."""
        changed_by = collections.defaultdict(set)
        for update in self.updates:
            for slot in update.slots:
                changed_by[slot].add(update.variable)
        ours = {name for update in self.updates for name in update.members}
        for write in self._changes.keys() - ours:
            for slot in self._changes[write].intersection(changed_by):
                changed_by[slot].add("operation %s" % write)
        shared = [slot for slot in sorted(changed_by) if len(changed_by[slot]) > 1]
        if shared:
            raise UnsupportedError(
                "zero.level cannot divide the optimizers' state: '%s' is changed by more than the update of one "
                "variable. Leave that to one optimizer, or zero.level at ''." % shared[0]
            )

    def _cost(self, unit):
        known, slots, _, _ = unit
        kept = list(slots) + [known.name] * (known.name in self._parameters)
        return sum(size_bytes(self._model.variables[s]) for s in kept if s in self._model.variables), size_bytes(known)

    def _update(self, call, known, slots, members, writes):
        state, own = self._cost((known, slots, None, None))
        place, owner = self._places.of(known.name), self._owner_of.get(known.name)
        state_bytes, filled = self.state_bytes[place], self._filled[place]
        if owner is None:
            owner = min(range(len(filled)), key=lambda rank: (state_bytes[rank], filled[rank]))
            self._owner_of[known.name] = owner
        if known.name not in self._counted:
            self._counted.add(known.name)
            state_bytes[owner] += state
            filled[owner] += own
        base = types.base(known.dtype)
        return Update(
            call.index,
            known.name,
            owner,
            tuple(writes),
            members,
            tuple(slots),
            base,
            tuple(known.shape),
            own,
            known.rows_of,
        )

    def owners(self):
        """dict of node to the rank of the copy that computes it."""
        graph, found = self._graph, {}
        for update in self.updates:
            found.update((name, update.owner) for name in update.members)
            found.update((holder, update.owner) for holder in self._held(update))
        holders = [name for update in self.updates for name in self._held(update)]
        readers = [name for name in holders for name in self._direct(name, found[name], found)]
        calls = {update.call for update in self.updates}
        stack = list(holders) + readers
        while stack:  # what an optimizer makes of slots before it adds a gradient
            name = stack.pop()
            for consumer in graph.edges.data_consumers.get(name, ()):
                mine = tags.get_int(graph.nodes[consumer], tags.APPLY_CALL, -1) in calls
                if (
                    consumer not in found
                    and consumer not in self._joined
                    and mine
                    and tags.phase(graph.nodes[consumer]) == tags.APPLY
                ):
                    if not effects.is_write(graph.nodes[consumer].op):
                        found[consumer] = found[name]
                        stack.append(consumer)
        _add_first_values(self._model, found)
        return found

    def _held(self, update):
        """The variables that an update's owner alone holds."""
        own = update.variable in self._parameters or update.rows_of is not None
        return update.slots + (update.variable,) * own

    def _direct(self, holder, owner, found):
        """Gives who takes a variable itself, not its value, the variable's owner."""
        graph, own = self._graph, []
        is_resource = graph.nodes[holder].op == "VarHandleOp"
        for consumer in graph.edges.data_consumers.get(holder, ()):
            op = graph.nodes[consumer].op
            if is_resource or op == "Identity" or effects.kind_of(op) in (effects.READ, effects.WRITE):
                found[consumer] = owner
                own.append(consumer)
        return own


def _before_merges(model):
    """What copies of a divided model each compute before they merge gradients, though the optimizer may take these."""
    points = model.merge_points.gradients if model.merge_points is not None else ()
    merges = {node for _, nodes, _ in points for node in nodes if node}
    return model.graph.ancestors(merges) - merges


def _changed(graph, write, functions):
    """The variables that an operation changes; optimizers' kernels take all of theirs as inputs."""
    return variables_of(graph, write, functions).union(of_kernel(graph, write))


def _add_first_values(model, found):
    """Adds what is computed for the first values of divided variables alone."""
    graph, initial = model.graph, initial_writes(model)
    stack = [name for name in initial if name in found]
    while stack:
        name = stack.pop()
        for producer, index in graph.inputs[name]:
            node, users = graph.nodes[producer], graph.consumers.get(producer, ())
            owners = {found.get(user) for user, _ in users}
            if producer in found or index < 0 or len(owners) > 1 or None in owners:
                continue
            if effects.kind_of(node.op) is None and tags.phase(node) in (tags.FORWARD, tags.APPLY):
                found[producer] = owners.pop()
                stack.append(producer)
