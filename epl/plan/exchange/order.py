"""The order of collectives, which must be the same in every process."""

import collections
import heapq

from epl.errors import PlanError
from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.facts.names import gathered_name, tag_of
from epl.plan.precision.verdicts import stages_verdicts
from epl.plan.zero.zero import agreements, gathered_groups
from epl.plan.zero.zero_sums import owned_sums

# The role of collectives between workers that have parts of the model's tensors.
OF_SHARDS = "shards"
_EXCHANGES = frozenset(
    "EplAllReduce EplAllGather EplReduceScatter EplAllToAll EplBroadcastSend EplBroadcastReceive".split()
)


def collective_keys(plan, graph):
    """dict of collective node to what it is sorted by: about when its inputs are ready, then its name.

    Args:
      plan: an epl.plan.plan.Plan.
      graph: the user's Graph, in whose creation order the keys are.
    """
    created = graph.creation_index
    keys = {}

    def put(name, slot, tag, tensors):
        last = max(created[node_of(t)] for t in tensors)
        keys[name] = (last, name, plan.group_of(tensors[0]).communicator(slot), tag)

    for group in plan.aggregation.groups:
        if plan.wire is None or group.name not in plan.wire.groups:
            put(group.name, group.slot, group.tag, group.tensors)
    keys.update(_of_wire(plan, created))
    among_workers = plan.zero is not None and not plan.zero.whole_workers
    for each in agreements(plan) if among_workers else ():  # when all gradients are there
        keys[each.name] = (len(created) - 0.5, each.name, plan.sharing.communicator(each.slot), each.tag)
    for each in stages_verdicts(plan):
        keys[each.name] = (len(created) - 0.5, each.name, plan.owning_group.communicator(0), each.tag)
    for each in owned_sums(plan) if among_workers else ():
        last = max(created[name] for name, _ in each.parts)
        keys[each.name] = (last, each.name, plan.sharing.communicator(each.slot), each.tag)
    # Last: updates have time until all gradients are on their way.
    for group in gathered_groups(plan) if among_workers else ():
        keys[group.name] = (len(created), group.name, plan.sharing.communicator(group.slot), group.tag)
    keys.update(_of_parameters(plan, graph) if among_workers else ())
    for sparse in plan.aggregation.sparse:
        for name, tag in sparse.collectives(plan.sparse_as_dense):
            put(name, sparse.slot, tag, (sparse.values, sparse.indices))
    for group in plan.state:
        for name, tag in group.collectives():
            put(name, group.slot, tag, group.values)
    for norm in plan.batch_norms:
        for name, tag, anchor in norm.collectives():
            put(name, norm.slot, tag, (anchor,))
    if plan.local_sgd is not None:
        for group in plan.local_sgd.groups:
            put(group.name, group.slot, group.tag, group.variables)
            if plan.local_sgd.overlap:
                put(group.overlapped_name, group.slot, group.overlapped_tag, group.variables)
    for merge in plan.merges:
        if merge.over_workers:
            put(merge.name, 0, merge.tag, (merge.source,))
    for each in plan.repeated:
        put(each.name, 0, each.tag, (each.get_next,))
    for collective in plan.user_collectives:
        # Half a place earlier, so that what only needs its result, under whatever name, comes after it.
        keys[collective.name] = (created[collective.anchor] - 0.5, collective.name, 0, collective.tag)
    for variable in plan.gathered:  # no step of training needs them
        name = gathered_name(variable)
        if name in graph.nodes:
            keys[name] = (len(created), name, plan.mesh.copies.communicator(0), tag_of(name))
    keys.update(keys_of_shards(graph))
    return keys


def _of_parameters(plan, graph):
    """The same of what brings parameters: as early as what they wait for allows, see `settle`."""
    keys = {}
    for segment in plan.zero.segments:
        comm = plan.sharing.communicator(segment.number % plan.mesh.num_communicators)
        for micro_batch in range(plan.micro_batches.count if plan.micro_batches is not None else 1):
            for lane in plan.lanes_of(segment.variables[0]):
                name = segment.gather_of(lane, micro_batch)
                if name in graph.nodes:
                    keys[name] = (0, name, comm, tag_of(name))
    return keys


def _of_wire(plan, created):
    """The same of gradients that travel in fewer bits: sums are sent when the next gradients are on their way, which
    they would keep waiting otherwise."""
    keys, slots = {}, {}
    for group in plan.aggregation.groups if plan.wire is not None else ():
        if group.name in plan.wire.groups:
            last = max(created[node_of(t)] for t in group.tensors)
            slots.setdefault(plan.mesh.copies.communicator(group.slot), []).append((last, group))
    for comm, groups in slots.items():
        groups.sort(key=lambda item: item[0])
        for (last, group), (following, _) in zip(groups, groups[1:] + groups[-1:]):
            (to_sum, tag), (sums, other_tag) = plan.wire.collectives(group)
            keys[to_sum] = (last, to_sum, comm, tag)
            keys[sums] = (following + 0.25, sums, comm, other_tag)
    return keys


def keys_of_shards(graph):
    """The same of the collectives between workers that have parts of the model's tensors (epl.split)."""
    nodes = [graph.nodes[name] for name in graph.find(_EXCHANGES.__contains__)]
    nodes = [node for node in nodes if tags.get_str(node, tags.ROLE) == OF_SHARDS]
    created = graph.creation_index
    return {n.name: (created[n.name], n.name, n.attr["comm"].i, n.attr["tag"].i) for n in nodes}


def between_workers(plan):
    """Whether workers take part in collectives with each other; else all are computed where their inputs are."""
    return plan.mesh.everywhere.num_workers > 1 or bool(plan.user_collectives)


def settle(keys, graph, plan, micro_batches=False):
    """The same keys with the collectives' numbers first: none comes before one whose result it needs, through loops
    too.

    By creation order alone it could. With collectives of the user: a group of gradients is as late as the last of them,
    and what takes the first one may have been built before. With micro-batches: the schedule has another order, and
    copies are made after the originals. With parameters that come in segments: gradients need these. With sums over
    rows: shards are made one after the other, and the first one's gradient travels with the last one's. With weights of
    devices: what is multiplied by them is made after all else. And where a pipeline's workers send each other messages,
    these and the collectives must come in one order, not each in one of its own that is right by itself: then two
    workers could wait for each other.

    Args:
      keys: of collective_keys.
      graph: the rewritten Graph.
      plan: the Plan.
      micro_batches: whether the graph has copies for micro-batches.

    Raises:
      PlanError: no order is possible.
    """
    if not between_workers(plan):
        return keys
    several = micro_batches or plan.mesh.pipeline.num_workers > 1 or plan.partitioned is not None
    several = several or plan.zero is not None and bool(plan.zero.segments or plan.zero.row_sums)
    wanted = keys
    if not plan.user_collectives and (several or plan.mesh.weights):
        wanted = {name: (graph.order[name],) + tuple(key[1:]) for name, key in keys.items()}
    wanted = _with_saves_last(_with_updates_last(wanted, graph, plan), graph)
    # Both halves of a message are one step of the order.
    half = {c.partner: c.name for c in plan.user_collectives if c.partner}
    unit = {name: half.get(name, name) for name in keys}
    needs = {name: set() for name in keys if name not in half}
    for name, others in needed(graph, keys).items():
        needs[unit[name]].update(unit[other] for other in others)
        needs[unit[name]].discard(unit[name])
    number = {name: place for place, name in enumerate(_sorted(needs, wanted))}
    return {name: (number[unit[name]],) + tuple(key[1:]) for name, key in keys.items()}


def needed(graph, names):
    """dict of each of some nodes of a Graph to those of them whose results it needs, without what these need already.

    Args:
      graph: a Graph; what leaves a loop needs what enters it, see `Graph.order`.
      names: a collection of nodes.
    """
    names = [name for name in graph.order if name in names]
    bits = {name: 1 << place for place, name in enumerate(names)}
    opens, waits = _gates_of(graph)
    behind, entered, found = {}, {}, {}  # node, and number of a gate, to the bits of the latest of `names` before it
    for name in graph.order:
        mask = 0
        for producer, _ in graph.inputs[name]:
            mask |= behind.get(producer, 0)
        for gate in waits.get(name, ()):
            mask |= entered.get(gate, 0)
        if name in bits:
            found[name] = [names[place] for place in _places(mask)]
            mask = bits[name]
        if mask:
            behind[name] = mask
            if name in opens:
                entered[opens[name]] = entered.get(opens[name], 0) | mask
    return found


def _gates_of(graph):
    """Two dicts of nodes: to the number of the gate that one helps to open, and to those of gates that it waits for."""
    opens, waits = {}, collections.defaultdict(list)
    for number, gate in enumerate(graph.gates):
        opens.update((name, number) for name in gate.enters)
        for name in gate.exits:
            waits[name].append(number)
    return opens, waits


def _places(mask):
    """The numbers of the bits that are set."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def out_of_order(graph, keys):
    """Problems: collectives whose numbers are not above those of all whose results they need.

    A worker would wait for its own, for ever.

    Args:
      graph: a Graph.
      keys: dict of node to (number, name, communicator, tag), as `settle` gives it.
    """
    opens, waits = _gates_of(graph)
    last, entered, problems, again = {}, {}, {}, True  # node, and number of a gate, to the largest key before it
    while again:  # once more for each loop within others, as what it gives goes back to its beginning
        again = False
        for name in graph.order:
            before = [last[producer] for producer, _ in graph.inputs[name] if producer in last]
            before.extend(entered[gate] for gate in waits.get(name, ()) if gate in entered)
            latest = max(before, default=None)
            if name in keys:
                own = tuple(keys[name])
                if latest is not None and latest > own and latest[-1] != own[-1]:  # not the other half of a message
                    problems[name] = latest
                latest = own if latest is None else max(own, latest)
            if latest is not None and last.get(name) != latest:
                last[name], again = latest, bool(graph.gates)
                if name in opens:
                    entered[opens[name]] = max(latest, entered.get(opens[name], latest))
    return [
        "'%s' has number %s in the order of collectives, before '%s' with %s, whose result it needs"
        % (keys[name][1], keys[name][0], other[1], other[0])
        for name, other in problems.items()
    ]


def _with_updates_last(keys, graph, plan):
    """The same with all that gives workers new variables, and what needs these, behind all others."""
    groups = [group.name for group in gathered_groups(plan)]
    if not groups or plan.mesh.pipeline.num_workers > 1:  # the messages of a pipeline stay where they are
        return keys
    last, places, behind = graph.descendants(groups), graph.order, len(graph.nodes)
    return {name: (behind + places[name],) + tuple(key[1:]) if name in last else key for name, key in keys.items()}


def _with_saves_last(keys, graph):
    """The same with the parts of divided variables that travel to a checkpoint behind all others, as they were made.

    The worker that writes it receives them behind what it gathers; the others would send them at once.
    """
    saves = [name for name in keys if name in graph.nodes and tags.get_str(graph.nodes[name], tags.SAVER)]
    if not saves:
        return keys
    behind = 1 + max(key[0] for key in keys.values())
    places = {name: (behind + place,) + tuple(keys[name][1:]) for place, name in enumerate(graph.in_order(saves))}
    return {**keys, **places}


def _sorted(needs, keys):
    """Names in the order of their keys, as far as what they need allows it."""
    waiting = {name: len(others) for name, others in needs.items()}
    users = {name: [] for name in needs}
    for name, others in needs.items():
        for other in others:
            users[other].append(name)
    ready = [(keys[name], name) for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    done = []
    while ready:
        _, name = heapq.heappop(ready)
        done.append(name)
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (keys[user], user))
    if len(done) < len(needs):
        raise PlanError(
            "there is no order in which these collectives can run, as each needs another's result, or the gradients "
            "that travel with it: %s. Set communication.max_splits higher, so that fewer gradients travel together."
            % ", ".join("'%s'" % name for name in sorted(set(needs) - set(done)))
        )
    return done
