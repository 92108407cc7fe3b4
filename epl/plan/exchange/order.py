"""The order of collectives, which must be the same in every process."""

import collections
import heapq

from epl.errors import PlanError
from epl.graph import tags
from epl.graph.index import node_of
from epl.program.collective import FIRST, LAST, NEXT, PARAMETERS, UNORDERED

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
    ordered = [each for each in plan.collectives if each.turn != UNORDERED and _may_come(each, graph)]
    places = {each.name: _place(each, graph.creation_index) for each in ordered}
    places.update(_behind_next(ordered, places))
    keys = {each.name: (places[each.name], each.name, each.communicator, each.tag) for each in ordered}
    keys.update(keys_of_shards(graph))
    return keys


def _may_come(each, graph):
    """Whether a Collective that is not there yet could be; of some only their own node tells."""
    return each.name in graph.nodes or bool(each.after) and each.after != (each.name,)


def _place(each, created):
    """When a Collective comes, in the order of creation."""
    if each.turn == FIRST:
        return 0
    latest = len(created) if each.turn == LAST else max(created[node_of(name)] for name in each.after)
    return latest + each.shift


def _behind_next(ordered, places):
    """The places of Collectives that come when what the next one of their kind takes is there too."""
    kinds, found = collections.defaultdict(list), {}
    for each in ordered:
        if each.turn == NEXT:
            kinds[each.communicator].append(each)
    for members in kinds.values():
        members.sort(key=lambda each: places[each.name])
        for each, following in zip(members, members[1:] + members[-1:]):
            found[each.name] = places[following.name] + 0.25  # behind what takes the same
    return found


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
    """Which of some nodes need each other's results: dict of node to those among them that come directly before it. Of
    a chain a -> b -> c that is {a: [], b: [a], c: [b]}, whatever lies between them in the graph.

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
    """(dict of node to the number of the gate that it helps to open, dict of node to the numbers of the gates that it
    waits for)."""
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
    groups = [each.name for each in plan.collectives if each.purpose == PARAMETERS and each.phase == tags.APPLY]
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
