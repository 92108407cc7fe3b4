"""Which operations of the forward pass the backward pass computes again, once it is known what is kept.

Copies that depend on each other form a group, and the group waits for a gradient to arrive at it, so that nothing of it
exists before its turn. Never repeated, so kept: what draws random numbers, what has state or effects of any kind (a
stateful operation), and loops of control flow v1 with any of that in them. Other loops are repeated whole
(`epl.plan.facts.loops`): the copy takes the accumulators over, and what of the loop nobody needs a second time is left
out.
"""

import collections
import itertools
from dataclasses import dataclass, replace
from typing import FrozenSet, Tuple

from epl.graph import tags
from epl.graph.index import Edges, Graph, NodeInput, canonical_tensor, node_of
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import recomputed_name
from epl.rules import effects, tensors

# A group waits for at most so many gradients.
_MAX_TRIGGERS = 8


@dataclass(frozen=True)
class RecomputedGroup:
    """Operations that are computed again together.

    Attributes:
      nodes: their names, in creation order.
      shared: canonical names of tensors that these nodes make and that are kept all the same.
      triggers: nodes of the backward pass for which they wait.
      before: (a node as it is called behind the pass, a change of a variable that this group reads) pairs: the change
        waits for the node.
      perhaps: those nodes of `before` that stand in a branch, and so do not always run.
      after: further nodes of the backward pass for which they wait: gradients of later layers' variables, which would
        else be put off, and hold what they are made of.
      inside: those that run in a loop.
      passed: those that write into a TensorArray that nobody reads from again: the copy only gives on its last input.
      reading: those that read a variable which changes later, outside of loops and branches. Their copies wait for
        them: else a loss that is fetched, and of which the backward pass takes nothing but copies, could be that of
        the variable after the change.
    """

    nodes: Tuple[str, ...]
    shared: FrozenSet[str]
    triggers: Tuple[str, ...]
    before: Tuple[Tuple[str, str], ...]
    after: Tuple[str, ...] = ()
    inside: FrozenSet[str] = frozenset()
    passed: FrozenSet[str] = frozenset()
    perhaps: FrozenSet[str] = frozenset()
    reading: FrozenSet[str] = frozenset()


@dataclass(frozen=True)
class Recomputation:
    """What is computed again.

    Attributes:
      groups: the RecomputedGroups.
      users: (node of the backward pass, input position) pairs that get the copy of what they take.
      entering: nodes of the backward pass that enter the copy of a loop instead of the loop.
    """

    groups: Tuple[RecomputedGroup, ...]
    users: Tuple[Tuple[str, int], ...]
    entering: Tuple[str, ...] = ()

    @property
    def num_nodes(self):
        return sum(len(group.nodes) for group in self.groups)


def recomputation(forward, analysis, kept, calls=(), micro_batches=False):
    """What has to be computed again when only some tensors are kept.

    Args:
      forward: a Forward.
      analysis: the graph's Analysis.
      kept: canonical names of tensors that are kept, besides those that cannot be computed again.
      calls: for each call of an optimizer the names of the nodes that make its gradients.
      micro_batches: whether a step has several, of which one may begin its forward pass, and so wait for what the one
        before has changed in its own, before that one comes to its backward pass.

    Returns:
      A Recomputation.
    """
    fixed, levels = set(), _levels(_waiting_for_gradients(forward.graph, forward.loops))
    together = forward.loops.together()
    while True:
        plan, offenders = _groups(forward, analysis, levels, kept, fixed, micro_batches)
        if not offenders:
            return replace(plan, groups=_one_after_the_other(forward, analysis, levels, plan, calls))
        fixed = fixed.union(offenders, *(nodes for nodes in together if nodes & offenders))


def _one_after_the_other(forward, analysis, levels, plan, calls):
    """The groups, each of which also waits for what else the backward pass makes of the group before.

    Without that, gradients of variables, which nobody waits for, could be put off until the backward pass is through,
    and all that they are made of would be there until then: `tf.gradients` orders nothing by itself.

    No cycle can come of it. RecomputedGroups come by level, from the loss downwards. A group waits for nodes that
    depend on groups before it alone, by any way, and each trigger of a group lies above what depends on groups behind
    it.
    """
    graph, groups = forward.graph, list(plan.groups)
    users = _users(graph, plan)
    order = sorted((i for i in range(len(groups)) if users[i]), key=lambda i: (-max(levels[u] for u in users[i]), i))
    last = {}  # node to the last of the groups that it depends on
    for place, i in reversed(list(enumerate(order))):
        # What follows from what was reached before was reached then, too.
        for name in graph.descendants(users[i], stop=last):
            last.setdefault(name, place)
    never = graph.descendants(analysis.writes) | forward.inside
    of_place = collections.defaultdict(list)
    for name in graph.in_order(forward.backward - never):
        of_place[last.get(name, -1)].append(name)
    needed = [graph.ancestors(call) for call in calls]
    before = {}
    for place, i in enumerate(order):
        taskgraph = tags.get_int(graph.nodes[groups[i].nodes[0]], tags.TASKGRAPH, -1)
        wanted = [call for call in needed if not call.isdisjoint(users[i])]
        found = {
            name
            for name in of_place[before.get(taskgraph, -1)]
            if wanted
            and tags.get_int(graph.nodes[name], tags.TASKGRAPH, -1) in (taskgraph, -1)
            and all(name in call for call in wanted)  # whoever runs the one runs the other anyway
        }
        ends = [n for n in graph.in_order(found) if not any(c in found for c, _ in graph.consumers.get(n, ()))]
        groups[i] = replace(groups[i], after=tuple(ends))
        before[taskgraph] = place
    return tuple(groups)


def _users(graph, plan):
    """For each group the nodes of the backward pass that take something of its copies."""
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.nodes}
    found = [set() for _ in plan.groups]
    for user, position in plan.users:
        found[group_of[node_of(graph.nodes[user].input[position])]].add(user)
    return found


def _groups(forward, analysis, levels, kept, fixed, micro_batches):
    """(Recomputation, nodes that read variables which change before their turn and so cannot be repeated)."""
    graph = forward.graph

    def available(tensor):
        root = forward.root(tensor)
        return root in kept or node_of(root) not in forward.repeatable or node_of(root) in fixed

    wanted, loop_of = _wanted(forward, available)
    copied, taken, passed = _copied(forward, wanted, available)
    group_of = _connected(graph, copied, taken)
    users = collections.defaultdict(list)
    for user, position, tensor in wanted:
        users[group_of[node_of(tensor)]].append((user, position))
    members = collections.defaultdict(list)
    for name in graph.in_order(copied):
        members[group_of[name]].append(name)
    groups, chosen, offenders, entering = [], [], set(), []
    keys = graph.in_order(members)
    follows = _following(graph, [members[key] for key in keys])
    for number, key in enumerate(keys):
        nodes, names = members[key], [user for user, _ in users[key]]
        loops = [loop for frame, loop in loop_of.items() if not loop.accumulators.isdisjoint(names)]
        triggers, level = _triggers(graph, forward, levels, follows[number], names, loops)
        if not triggers:
            continue  # its turn comes at once: the tensors of the forward pass serve
        before, reading, changed_reads = _changes_after(
            graph, analysis, levels, level, nodes, forward.loops, loops, micro_batches
        )
        perhaps = _in_branches(graph, nodes)
        offenders |= changed_reads
        own = {text for name in nodes for text in taken[name]}
        shared = {t for n in nodes for t in forward.inputs(n) if node_of(t) in copied} - set(map(canonical_tensor, own))
        inside = frozenset(n for n in nodes if n in forward.loops.of and n not in forward.loops.outermost)
        groups.append(
            RecomputedGroup(
                tuple(nodes),
                frozenset(shared),
                tuple(triggers),
                tuple(before),
                inside=inside,
                passed=passed.intersection(nodes),
                perhaps=perhaps,
                reading=frozenset(name for name in reading if recomputed_name(name) not in perhaps),
            )
        )
        chosen.extend(users[key])
        for loop in loops:
            entering.extend(n for n in graph.in_order(loop.accumulators) if graph.nodes[n].op in effects.ENTERS)
    return Recomputation(tuple(groups), tuple(chosen), tuple(entering)), offenders


def _wanted(forward, available):
    """(what of the backward pass takes something again, the loops whose accumulators do).

    The accumulators of a loop go to its copy all together.

    Returns:
      A list of (node, input position, input), a dict of frame to Loop.
    """
    graph, loops, loop_of, moved = forward.graph, forward.loops, {}, set()
    for loop in loops.all:
        data = [canonical_tensor(text) for text in loop.pushed if node_of(text) in forward.from_data]
        data = [tensor for tensor in data if node_of(tensor) not in loops.carriers]
        if data and not any(available(tensor) for tensor in data):
            loop_of[loop.frame] = loop
            moved |= loop.accumulators
    wanted = [
        (user, position, tensor)
        for user, position, tensor in forward.uses
        if user not in moved and node_of(tensor) not in loops.carriers and not available(tensor)
    ]
    for loop in loop_of.values():
        for name in graph.in_order(loop.accumulators):
            texts = enumerate(graph.nodes[name].input)
            wanted.extend((name, position, text) for position, text in texts if node_of(text) in loop.nodes)
    return wanted, loop_of


def _copied(forward, wanted, available):
    """(nodes that are computed again, dict of each of them to the tensors that it takes, those of them that only hand
    on their input)."""
    loops, read_again = forward.loops, set()
    while True:
        taken, stack = {}, [node_of(tensor) for _, _, tensor in wanted]
        while stack:
            name = stack.pop()
            if name not in taken:
                taken[name] = forward.taken(name, available, read_again)
                stack.extend(map(node_of, taken[name]))
        found = read_again.union(*(loops.readers[name] for name in taken if name in loops.readers))
        if found == read_again:
            passed = frozenset(name for name in taken if forward.passed_on(name, read_again))
            return taken.keys(), taken, passed
        read_again = found


def _connected(graph, copied, taken):
    """Node to the first node of its group: copies that take something of each other belong together."""
    leader = {name: name for name in copied}

    def find(name):
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for name in graph.in_order(copied):
        for producer in map(node_of, taken[name]):
            first, second = sorted((find(name), find(producer)), key=graph.creation_index.__getitem__)
            leader[second] = first
    return {name: find(name) for name in copied}


def _waiting_for_gradients(graph, loops):
    """The graph in which the accumulators of loops wait for gradients, as they do if they are run a second time."""
    more = {
        name: [NodeInput(each, -1) for each in graph.in_order(loop.arriving)]
        for loop in loops.all
        for name in loop.accumulators
        if not loop.kept_because and graph.nodes[name].op in effects.ENTERS
    }
    if not more:
        return graph
    inputs = {name: taken + tuple(more.get(name, ())) for name, taken in graph.inputs.items()}
    changed = Graph(graph.nodes, graph.library, graph.versions, Edges(inputs))
    return changed if len(changed.order) == len(graph.order) else graph


def _levels(graph):
    """Node to the length of the longest path from it to an end of the graph; no edge but a loop's leads upwards."""
    levels = {}
    for name in sorted(graph.order, key=graph.order.__getitem__, reverse=True):
        if graph.nodes[name].op in effects.LOOP_EDGES:
            levels[name] = 0
        else:
            levels[name] = 1 + max([levels.get(c, 0) for c, _ in graph.consumers.get(name, ())] or [0])
    return levels


def _following(graph, groups):
    """For each group of nodes a function that tells whether a node takes what they give, by whatever way.

    All in one walk: the groups that a node depends on are the bits of a number.
    """
    bits, order, again = collections.defaultdict(int), list(graph.order), True
    for number, nodes in enumerate(groups):
        for name in nodes:
            bits[name] |= 1 << number
    while again:  # once more where something comes around a loop
        again = False
        for name in order:
            found = before = bits.get(name, 0)
            for producer, index in graph.inputs[name]:
                if index >= 0 and producer in bits:
                    found |= bits[producer]
            if found != before:
                bits[name] = found
                again = again or graph.nodes[name].op in effects.LOOP_EDGES
    return [lambda name, number=number: bits.get(name, 0) >> number & 1 for number in range(len(groups))]


def _triggers(graph, forward, levels, follows, users, loops):
    """(the gradients that arrive at a group, the level below which it lies).

    Gradients are found by walking up the backward pass from those who use the group, to the first nodes that come
    before all of them. The copies are placed at the level of the first user, and every edge that is added goes down,
    so no cycle can come of it, whatever other groups there are. A gradient counts only if it depends on the group's own
    values, by way of later layers and the loss: one that does not would be there before the forward pass has ended.
    Of a loop it is what arrives at the loop of its gradient.

    Args:
      follows: function that tells whether a node depends on the group.
    """
    level = max(levels[user] for user in users)
    found, seen, stack = set(), set(users), list(users)
    arriving = sorted(set().union(*(loop.arriving for loop in loops)))
    while stack or arriving:
        producers = [p for p, index in graph.inputs[stack.pop()] if index >= 0] if stack else [arriving.pop()]
        for producer in producers:
            if producer in seen or producer not in forward.backward:
                continue
            seen.add(producer)
            if levels[producer] > level and producer not in forward.inside:
                found.add(producer)
            else:
                stack.append(producer)
    triggers = sorted((n for n in found if follows(n)), key=lambda n: (levels[n], graph.creation_index[n]))
    return triggers[:_MAX_TRIGGERS], level


def _changes_after(graph, analysis, levels, level, nodes, loops, moved, micro_batches):
    """((what has to run before, change of a variable that the group reads) pairs where the change comes after the
    group, nodes of the group that read such a variable and stand in no loop, those that read what may have changed
    before).

    Args:
      loops: all Loops.
      moved: list of each Loop whose accumulators go to its copy.
      micro_batches: as of `recomputation`.
    """
    readers = collections.defaultdict(set)
    for name in nodes:
        for producer, index in _looked_at(graph, name):
            variable = _variable_read(graph, producer) if index >= 0 else None
            if variable is not None:
                readers[variable].add(name)
    before, reading, changed_reads = [], set(), set()
    for write in analysis.writes if readers else ():
        variable = variable_of(graph, write)
        if variable in readers:
            in_forward_pass = tags.phase(graph.nodes[write]) == tags.FORWARD
            if levels[write] < level and not (micro_batches and in_forward_pass):
                before.extend((end, write) for end in _ends(graph, nodes, readers[variable], loops, moved))
                reading |= readers[variable] - loops.of.keys()
            else:
                changed_reads |= readers[variable]
    return before, reading, changed_reads


def _looked_at(graph, name):
    """The inputs of a node, but for the averages which a fused normalisation of a batch is given and does not use."""
    node, inputs = graph.nodes[name], graph.inputs[name]
    own = node.op in tensors.FUSED_NORMS and node.attr["is_training"].b
    averages = own and ("exponential_avg_factor" not in node.attr or node.attr["exponential_avg_factor"].f == 1.0)
    return [each for place, each in enumerate(inputs) if not (averages and place in (3, 4))]


def _ends(graph, nodes, readers, loops, moved):
    """The copies of readers; for those in loops the copies of what leaves the loop, and the counts of what it pushes.

    What nothing depends on may still be at it then, and nobody takes what it makes.
    """
    found = [recomputed_name(name) for name in graph.in_order(readers) if name not in loops.of]
    frames = {loops.of[name].frame for name in readers if name in loops.of}
    leaving = [name for name in nodes if name in loops.outermost and loops.of[name].frame in frames]
    counts = [graph.in_order(loop.accumulators & loops.outermost) for loop in moved if loop.frame in frames]
    return found + [recomputed_name(name) for name in leaving] + list(itertools.chain.from_iterable(counts))


def _in_branches(graph, nodes):
    """The copies of those nodes that take a variable's value into a branch."""
    found = set()
    for name in nodes:
        for producer, index in graph.inputs[name]:
            while index >= 0 and graph.nodes[producer].op in tensors.READS_INSIDE and graph.nodes[producer].input:
                if graph.nodes[producer].op == "Switch":
                    found.add(recomputed_name(name))
                producer = node_of(graph.nodes[producer].input[0])
    return frozenset(found)


def _variable_read(graph, name):
    """The variable whose value a node is, or None."""
    while True:
        node = graph.nodes[name]
        if node.op in effects.VARIABLES:
            return name
        if node.op not in tensors.READS_INSIDE or not node.input:
            return None
        name = node_of(node.input[0])
