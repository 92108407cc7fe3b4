"""Which parameters devices divide among themselves, and when each gets those of others (`zero.level` "v2" and "v3").

A parameter, or a shard of its rows (epl.plan.zero.zero_rows), has one owner, as its slots have; of what the devices of
a copy have a part each (epl.split), or each the whole, all of one copy own theirs. What computes with it in training
takes what a segment brings: several parameters that travel together, in the order in which they are used. At level
"v2" a parameter comes once in a step, and stays until its last use, in the backward pass. At "v3" the forward and the
backward pass have a segment each (ZeRO stage 3; Rajbhandari et al., 2020), which waits until the segment before begins
to be used: so one is on its way while another one is computed with.
What lies in host memory (epl.plan.memory.offload) comes there too, and from there to the device, by copies of its own.
"""

import collections
from bisect import bisect_left
from dataclasses import dataclass
from typing import Optional, Tuple

from epl.graph import tags, types
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor
from epl.partition.partitioned import EXCHANGES
from epl.plan.facts.analysis import variables_of
from epl.plan.facts.merge_points import in_shard_rank
from epl.plan.facts.names import PREFIX, micro_batch_name
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.memory.offload import TO_DEVICE
from epl.rules import effects, tensors

ONCE, AGAIN = "v2", "v3"
LEVELS = (ONCE, AGAIN)
JOIN = "join_rows"  # the role of a node that makes a parameter of its shards

LOOKUPS = frozenset(["ResourceGather"])
SHAPES = frozenset(["VariableShape"])
_COMPUTES = (tags.FORWARD, tags.BACKWARD)


@dataclass(frozen=True)
class ParameterSegment:
    """Parameters that all devices get at the same time.

    Attributes:
      number: in the order of first uses.
      variables: names, of the same type; all of them lie in host memory, or none; of all, or of none, the devices of a
        copy of the model have a part each.
      reads: for each of them the node that reads it.
      users: for each of them (node, input position) pairs that take what the segment brings.
      dtype: DataType number.
      after: a node for which it waits, an ancestor of all users; None where it waits for nothing.
      phase: of the step, in which they are needed; the forward pass for those of both.
    """

    number: int
    variables: Tuple[str, ...]
    reads: Tuple[str, ...]
    users: Tuple[Tuple[Tuple[str, int], ...], ...]
    dtype: int
    after: Optional[str] = None
    phase: str = tags.FORWARD

    @property
    def name(self):
        return "%s_zero/segment_%d" % (PREFIX, self.number)

    @property
    def nodes(self):
        """Names of the nodes that hand on each parameter."""
        return tuple("%s/%d" % (self.name, place) for place in range(len(self.variables)))

    @property
    def gather(self):
        """Name of the collective; those of shard ranks and of further micro-batches are named after it."""
        return self.name + "/gather"

    def gather_of(self, shard_rank, micro_batch=0):
        """The same in a micro-batch, of a shard rank's devices (epl.plan.layout.mesh): they have one part; None: of
        all."""
        return in_shard_rank(micro_batch_name(self.gather, micro_batch), shard_rank)


# Parameters that can be divided, a dict of the variable to its reads before updates; and why others cannot, a dict too.
Divisible = collections.namedtuple("Divisible", "reads whole")


def find_divisible(program, analysis):
    """The Divisible of a program's trained variables.

    Args:
      program: an epl.program.program.Program, with one copy of the model.
      analysis: its Analysis.
    """
    graph = program.graph
    around = {name for found_inf in program.scaled for names in found_inf.gates.values() for name in names}
    after_update = after_updates(program, analysis)
    reads, whole = collections.OrderedDict(), collections.OrderedDict()
    for variable in _trained(program):
        known = program.variables.get(variable)
        if not size_bytes(known):
            whole[variable] = "its shape is not known, or it is empty"
            continue
        found, why = [], None
        for consumer, position in graph.consumers.get(variable, ()):
            node = graph.nodes[consumer]
            if node.input[position][0] == "^" or consumer in around:
                continue
            if consumer in analysis.in_control_flow and not _is_gated(consumer, around, graph):
                why = "'%s' takes it in a branch or a loop" % consumer
            elif is_read(node, graph.nodes[variable]):
                found.extend([consumer] if consumer not in after_update else [])
            elif not _leaves_alone(node):
                why = "'%s' (%s) takes it itself" % (consumer, node.op)
        if why:
            whole[variable] = why
        else:
            reads[variable] = tuple(graph.in_order(found))
    return Divisible(reads, whole)


def _trained(program):
    return sorted({variable for call in program.apply_calls for _, variable in call.gradients})


def after_updates(program, analysis):
    """What comes after a change of any trained variable in the same step, as a set of nodes."""
    graph, trained, functions = program.graph, set(_trained(program)), Functions(program.graph.library)
    return graph.descendants([w for w in analysis.writes if trained.intersection(variables_of(graph, w, functions))])


def _is_gated(name, around, graph):
    """Whether a write stands in the branch that a loss scale has put around it."""
    return effects.is_write(graph.nodes[name].op) and any(c in around for c, _ in graph.consumers.get(name, ()))


def is_read(node, holder):
    """Whether a node that takes a variable hands on its value."""
    return node.op in tensors.READS and (node.op != "Identity" or holder.op != "VarHandleOp")


def _leaves_alone(node):
    """Whether what takes a variable itself can do so on one device for all, or be made to take its value."""
    op = node.op
    if op in EXCHANGES:  # parts of a reference variable come together for a checkpoint
        return tags.phase(node) == tags.SAVE
    return (
        effects.is_write(op)
        or op in effects.FILE_WRITES
        or op in effects.TELL_INITIALIZED
        or op in SHAPES
        or op in LOOKUPS
    )


def plan_segments(program, analysis, reads, level, segment_bytes, anchors=()):
    """The ParameterSegments of a program, in the order in which they are used.

    Args:
      program: an epl.program.program.Program whose parameters are taken by their reads alone.
      analysis: its Analysis.
      reads: dict of parameter to its reads.
      level: "v2" or "v3".
      segment_bytes: on a device, at which a segment is full; a larger parameter has one of its own.
      anchors: nodes at which segments end: what is first used before one of them travels apart from what comes after,
        in the backward pass too.
    """
    graph, order = program.graph, program.graph.order
    from_data = _from_data(graph)
    entries = {}
    for variable, names in reads.items():
        for kind, users in _by_kind(graph, analysis, names, level, from_data).items():
            # What all shards of a parameter are joined by, they come to together.
            joined = tuple(user for user, _ in users if _joins(graph, user)) or (variable,)
            entries.setdefault((kind, joined), []).append((variable, users))
    between = _places_between(graph, entries, anchors)
    full = []
    filling = {}
    for _, _, kind, members in sorted(_with_first_use(graph, order, entries)):
        first = members[0][0]
        parts, on_host = _parts(program, first), tags.HOST in graph.nodes[first].attr
        size = sum(size_bytes(program.variables[variable]) for variable, _ in members) // parts
        key = kind + (between[first], on_host, parts, types.base(program.variables[first].dtype))
        if key not in filling or filling[key][0] + size > segment_bytes:
            filling[key] = [0, key, []]
            full.append(filling[key])
        filling[key][0] += size
        filling[key][2].extend(
            # Who waits for gradients, as weight decay may, reads what others compute with too late.
            (variable, min(reads[variable], key=order.__getitem__), tuple(users))
            for variable, users in members
        )
    segments = [
        ParameterSegment(
            number, *map(tuple, zip(*members)), dtype=key[-1], phase=key[0] if level == AGAIN else tags.FORWARD
        )
        for number, (_, key, members) in enumerate(full)
    ]
    return tuple(_in_turn(graph, analysis, segments, from_data) if level == AGAIN else segments)


def _places_between(graph, entries, anchors):
    """dict of parameter to how many of some nodes come before its first use."""
    ends, first_uses = sorted(graph.order[name] for name in anchors), {}
    for members in entries.values():
        for variable, users in members:
            use = min(graph.order[each] for user, _ in users for each in _computing(graph, user))
            first_uses[variable] = min(use, first_uses.get(variable, use))
    return {variable: bisect_left(ends, use) for variable, use in first_uses.items()}


def _parts(program, variable):
    """How many parts of a variable the devices of a copy of the model have."""
    done = program.partitioned
    return 1 if done is None or canonical_tensor(variable) not in done.placements else done.shards


def uses_of(program, analysis, reads, level):
    """What computes with parameters at the same time.

    Args:
      program, analysis, reads, level: as of `plan_segments`.

    Returns:
      A dict of parameter to a dict of its reads to tuples of users, each a tuple of (node, input position) pairs.
    """
    graph = program.graph
    from_data, found = _from_data(graph), {}
    for variable, names in reads.items():
        found[variable] = {
            name: tuple(tuple(users) for users in _by_kind(graph, analysis, [name], level, from_data).values())
            for name in names
        }
    return found


def _from_data(graph):
    return graph.descendants(graph.find(lambda op: op in effects.PLACEHOLDERS or op in effects.SOURCES))


def _by_kind(graph, analysis, reads, level, from_data):
    """The `_users` of some reads, as a dict of those that take what one segment brings."""
    kinds = collections.defaultdict(list)
    for user, position in _users(graph, analysis, reads):
        phase = tags.phase(graph.nodes[user])
        needs_data = any(each in from_data for each in _computing(graph, user))
        kind = (phase, needs_data) if level == AGAIN else ()
        kinds[kind + (tags.get_int(graph.nodes[user], tags.TASKGRAPH, 0),)].append((user, position))
    return kinds


def _joins(graph, user):
    return tags.get_str(graph.nodes[user], tags.ROLE) == JOIN


def _hands_on(graph, user):
    return tags.get_str(graph.nodes[user], tags.ROLE) in (JOIN, TO_DEVICE)


def _computing(graph, user):
    """The nodes that compute with a parameter: `user`, which takes it; or, where that only joins parts or copies to the
    device, the nodes that take its result."""
    if not _hands_on(graph, user):
        return [user]
    return [each for taker in graph.edges.data_consumers.get(user, ()) for each in _computing(graph, taker)]


def _with_first_use(graph, order, entries):
    for (kind, joined), members in entries.items():
        users = [each for _, users in members for user, _ in users for each in _computing(graph, user)]
        yield min(order[user] for user in users), joined, kind, members


def _users(graph, analysis, reads):
    """(node, input position) pairs that compute with a parameter in training."""
    return [
        (user, position)
        for read in reads
        for user, position in graph.consumers.get(read, ())
        if graph.inputs[user][position].index >= 0
        and user in analysis.cloned
        and user in graph.order
        and tags.phase(graph.nodes[user]) in _COMPUTES
        and not effects.is_write(graph.nodes[user].op)
    ]


def _in_turn(graph, analysis, segments, from_data):
    """The same, each waiting for what the last one before it begins with that all its users need.

    What needs no data waits for nothing, as it can be run without any.
    """
    begins = [_begins(graph, analysis, segment, from_data) for segment in segments]
    needs = _Needs(graph, [name for name in begins if name is not None])
    for place, segment in enumerate(segments):
        users = _all_computing(graph, segment)
        common = needs.common(users) if all(user in from_data for user in users) else frozenset()
        after = next((begins[other] for other in range(place - 1, -1, -1) if begins[other] in common), None)
        yield ParameterSegment(**dict(vars(segment), after=after))


def _all_computing(graph, segment):
    return [each for users in segment.users for user, _ in users for each in _computing(graph, user)]


def _begins(graph, analysis, segment, from_data):
    """The last of what the first user takes besides parameters, of its own stage; None where there is none."""
    order = graph.order
    first = min(_all_computing(graph, segment), key=order.__getitem__)
    stage = tags.get_int(graph.nodes[first], tags.TASKGRAPH, 0)
    others = [
        producer
        for producer, index in graph.inputs[first]
        if index >= 0
        and producer in from_data
        and producer in order
        and not _hands_on(graph, producer)
        and producer not in analysis.in_control_flow
        and tags.get_int(graph.nodes[producer], tags.TASKGRAPH, 0) == stage
    ]
    return max(others, key=order.__getitem__) if others else None


class _Needs(object):
    """Which of some nodes others need: one pass over the graph with a set of bits for each node."""

    def __init__(self, graph, names):
        self._names = sorted(set(names), key=graph.order.__getitem__)
        own = {name: 1 << bit for bit, name in enumerate(self._names)}
        self._bits = bits = {}
        for name in sorted(graph.order, key=graph.order.__getitem__):
            found = 0
            for producer, _ in graph.inputs[name]:
                found |= bits.get(producer, 0) | own.get(producer, 0)
            bits[name] = found

    def common(self, users):
        """Those of the names that all of some nodes need."""
        found = -1
        for user in users:
            found &= self._bits[user]
        return frozenset(name for bit, name in enumerate(self._names) if found >> bit & 1)
