"""Groups in which an optimizer's updates are made one after the other, so that what they need for a moment is small.

What is computed from one variable's gradient for that variable alone (a clipped gradient, the terms of a step that is
made of plain operations) is a unit. TensorFlow would compute those of all variables at once. Groups of units, of about
the same size in bytes of variables, wait for each other instead.
"""

import collections
from dataclasses import dataclass
from typing import FrozenSet, Tuple

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX
from epl.plan.precision.found_inf import joined_nodes
from epl.rules import effects, tensors

# Whom a node leads to, besides a unit's number.
_NOBODY, _SEVERAL = -1, -2
# The role of the node that has run when all updates of a group are made.
APPLY_GROUP = "apply_group"


@dataclass(frozen=True)
class ApplyGroup:
    """Updates that are made at about the same time. Nodes by their names in the first instance, in creation order.

    Attributes:
      name: of the node that stands for the end of the group.
      writes: the operations that change variables.
      ends: the operations after which these are through: they themselves, or, where a step with gradients that are not
        finite leaves them out, what has run in both cases.
      members: these, and what only they use of what is computed from gradients.
      copied: those members that are not the optimizer's: the group computes them for itself, so that who fetches a
        clipped gradient does not train.
      starts: those members that wait for the group before.
      num_bytes: of the trained variables.
    """

    name: str
    writes: Tuple[str, ...]
    ends: Tuple[str, ...]
    members: FrozenSet[str]
    copied: Tuple[str, ...]
    starts: Tuple[str, ...]
    num_bytes: int


def plan_apply_groups(program, plan):
    """The groups of each call of apply_gradients and each stage.

    Updates that stand in a branch or a loop are in none, and neither are those that the program makes by itself.

    Args:
      program: an epl.program.program.Program whose gradients are aggregated.
      plan: its epl.plan.plan.Plan.

    Returns:
      A tuple of tuples of ApplyGroups; those of one tuple come one after the other.
    """
    chains = []
    for call in program.apply_calls if plan.num_apply_group > 1 else ():
        if call.between is None:
            units = _units(program, plan, call)
            owner = _Owners(program.graph, plan, call, units).found
            chains.extend(_chains(program.graph, plan, call, _independent(program.graph, units, owner), owner))
    return tuple(map(tuple, chains))


class _Unit(object):
    """What one gradient changes.

    Attributes:
      writes: names of the operations that change variables.
      num_bytes: of the trained variables.
      ready: position of the node that makes the gradient.
      numbers: of the unit itself and of those that have become part of it.
    """

    def __init__(self, writes, num_bytes, ready):
        self.writes, self.num_bytes, self.ready, self.numbers = set(writes), num_bytes, ready, frozenset()

    def absorb(self, other):
        self.writes |= other.writes
        self.num_bytes += other.num_bytes
        self.ready = max(self.ready, other.ready)
        self.numbers |= other.numbers


def of_call(graph, name, call):
    """True for a node that a call of apply_gradients made."""
    node = graph.nodes.get(name)
    return node is not None and tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call.index


def _units(program, plan, call):
    """The units of a call in the order in which their gradients become ready; gradients that change a variable
    together make one."""
    graph = program.source.graph  # in which an update takes the very gradient that the call was given
    written = {w for w in plan.analysis.writes if of_call(graph, w, call) and effects.is_write(graph.nodes[w].op)}
    units, unit_of, joined, gates = [], {}, joined_nodes(program), _gates(plan)
    for gradient, variable in call.gradients:
        known = program.variables.get(variable)
        update = frozenset() if known is None else known.update
        writes = (reached_in_call(graph, gradient, call, joined) | update) & written
        unit = _Unit(
            writes,
            _num_bytes(known),
            graph.creation_index[node_of(canonical_tensor(gradient[0]))],
        )
        for other in [u for u in units if u in {unit_of.get(w) for w in writes}]:
            unit.absorb(other)
            units.remove(other)
        unit_of.update((w, unit) for w in unit.writes)
        units.append(unit)
    inside = plan.analysis.in_control_flow.difference(gates)
    units = [u for u in units if u.writes and not inside.intersection(u.writes)]
    units.sort(key=lambda unit: (unit.ready, min(unit.writes)))
    for number, unit in enumerate(units):
        unit.numbers = frozenset([number])
    return units


def _gates(plan):
    """dict of the operations that a step with infinite gradients leaves out to what has run in both cases."""
    return {write: around[-1] for found_inf in plan.found_infs for write, around in found_inf.gates.items()}


def reached_in_call(graph, gradient, call, beyond=frozenset()):
    """The optimizer's nodes that a gradient, as apply_gradients received it, leads to; none of `beyond` or past it."""
    found = set()
    for tensor in (parse_input(canonical_tensor(text)) for text in gradient if text):
        for consumer, position in graph.consumers.get(tensor.node, ()):
            if graph.inputs[consumer][position] == tensor and of_call(graph, consumer, call):
                found.add(consumer)
    consumers, inside = graph.edges.data_consumers, set()
    while found:  # those that were reached last and belong to it; what lies beyond is not walked through
        found = {name for name in found if name not in beyond and of_call(graph, name, call)} - inside
        inside |= found
        found = {consumer for name in found if name in consumers for consumer in consumers[name]}
    return inside


def _num_bytes(variable):
    if variable is None:
        return 0
    size = types.DTYPE_BYTES.get(types.base(variable.dtype), 0)
    for dim in variable.shape or ():
        size *= max(1, dim)
    return size


class _Owners(object):
    """Who alone uses what is computed from gradients.

    Args:
      graph: of the Program whose gradients are aggregated.
      plan, call: as above.
      units: _Units.

    Attributes:
      found: node to the number of the unit that alone uses it. What the optimizer's own nodes give to others too does
        not belong to a unit, as others must not wait; of what comes before the optimizer a unit has copies.
    """

    def __init__(self, graph, plan, call, units):
        self._graph, self._plan, self._call = graph, plan, call
        self._unit_of = {w: number for unit in units for number in unit.numbers for w in unit.writes}
        self._variables = collections.defaultdict(set)
        for write, number in self._unit_of.items():
            self._variables[number].add(variable_of(graph, write))
        self._writes = frozenset(plan.analysis.writes)
        sources = [n for n, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD]
        sources += graph.find(effects.COLLECTIVES.__contains__)
        self._of_gradients = graph.descendants(sources, stop=self._writes, data_only=True)
        self.found = self._find()

    def _find(self):
        graph, order = self._graph, self._graph.order
        before, updated = graph.ancestors(self._unit_of), graph.descendants(self._unit_of)
        leads, found = {}, {}
        for name in sorted((n for n in before if n in order), key=order.__getitem__, reverse=True):
            consumers = [consumer for consumer, _ in graph.consumers.get(name, ())]
            if name in self._unit_of:
                leads[name] = found[name] = self._unit_of[name]
                continue
            to = {leads.get(consumer, _NOBODY) for consumer in consumers} - {_NOBODY}
            leads[name] = _SEVERAL if name in self._writes or len(to) != 1 else to.pop()
            taken = any(found.get(c) == leads[name] for c in graph.edges.data_consumers.get(name, ()))
            if leads[name] >= 0 and taken and self._may_wait(name, leads[name]):
                ours = of_call(graph, name, self._call)
                if not ours or all(consumer in found or consumer in updated for consumer in consumers):
                    found[name] = leads[name]
        return found

    def _may_wait(self, name, unit):
        """Operations without effects that are not inside of branches, and read nothing that other units change."""
        node = self._graph.nodes[name]
        if name in self._plan.analysis.in_control_flow or tags.ROLE in node.attr:
            return False
        allowed = (None, effects.READ) if of_call(self._graph, name, self._call) else (None,)
        if effects.kind_of(node.op) not in allowed or tags.phase(node) == tags.BACKWARD:
            return False
        if not of_call(self._graph, name, self._call) and name not in self._of_gradients:
            return False
        return all(
            variable is None or variable in self._variables[unit]
            for variable in (self._variable_in(text) for text in node.input if text[0] != "^")
        )

    def _variable_in(self, text):
        """The variable whose memory a tensor is, which shows later changes too; or None."""
        node = self._graph.nodes[node_of(text)]
        while node.op in tensors.ALIASES and node.input:
            node = self._graph.nodes[node_of(node.input[0])]
        return node.name if node.op in effects.VARIABLES else None


def _independent(graph, units, owner):
    """Joins units of which one takes what another has updated: within a unit the order of the updates stays as it
    is."""
    updated = graph.descendants([w for unit in units for w in unit.writes])
    if not any(
        producer in updated and owner.get(producer) != number
        for name, number in owner.items()
        for producer, _ in graph.inputs[name]
    ):
        return units
    members = collections.defaultdict(set)
    for name, number in owner.items():
        members[number].add(name)
    left = list(units)
    for unit in units:
        after = graph.descendants(unit.writes) if unit in left else ()
        for other in [u for u in left if u is not unit and any(members[n].intersection(after) for n in u.numbers)]:
            unit.absorb(other)
            left.remove(other)
    return left


def _chains(graph, plan, call, units, owner):
    """Groups by stage and by owner, as these do not wait for each other."""
    members, by_stage = collections.defaultdict(list), collections.defaultdict(list)
    for name in graph.in_order(owner):
        members[owner[name]].append(name)
    owners = {} if plan.zero is None else plan.zero.owners
    for unit in units:
        stages = {(plan.stage_of.get(w, 0), plan.owners.get(w, -1), owners.get(w, -1)) for w in unit.writes}
        by_stage[min(stages)].extend([unit] if len(stages) == 1 else [])
    chains, gates = [], _gates(plan)
    for part, (_, ours) in enumerate(sorted(by_stage.items())):
        chain = []
        for begin, end in balanced([unit.num_bytes for unit in ours], plan.num_apply_group):
            names = [name for unit in ours[begin:end] for n in sorted(unit.numbers) for name in members[n]]
            inside = frozenset(names)
            writes = tuple(graph.in_order(w for unit in ours[begin:end] for w in unit.writes))
            chain.append(
                ApplyGroup(
                    "%s_apply/call_%d/part_%d/group_%d" % (PREFIX, call.index, part, len(chain)),
                    writes=writes,
                    ends=tuple(gates.get(write, write) for write in writes),
                    members=inside,
                    copied=tuple(n for n in names if not of_call(graph, n, call)),
                    starts=tuple(
                        n
                        for n in names
                        if graph.nodes[n].op != "Const" and not any(p in inside for p, _ in graph.inputs[n])
                    ),
                    num_bytes=sum(unit.num_bytes for unit in ours[begin:end]),
                )
            )
        chains.append(chain)
    return [chain for chain in chains if len(chain) > 1]


def balanced(sizes, count):
    """Divides a row of sizes into at most `count` neighbouring parts so that the largest sum is as small as can be.

    Returns:
      List of (begin, end); none is empty, and there are `count` if there are so many sizes.
    """
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(sizes, middle, 0)) <= count:
            high = middle
        else:
            low = middle + 1
    return _filled(sizes, high, min(count, len(sizes)))


def _filled(sizes, limit, least):
    """Fills one part after the other up to a limit; ends them earlier where there would be fewer than `least`."""
    parts, begin, total = [], 0, 0
    for place, size in enumerate(sizes):
        if place > begin and (total + size > limit or len(sizes) - place <= least - len(parts) - 1):
            parts.append((begin, place))
            begin, total = place, 0
        total += size
    return parts + [(begin, len(sizes))] if sizes else []
