"""Which operations of the forward pass the backward pass computes again, once it is known what is kept.

Copies that depend on each other form a group, and the group waits for a gradient to arrive at it, so that nothing of it
exists before its turn. Never repeated, so kept: what draws random numbers, what has state or effects of any kind (a
stateful operation), loops of control flow v1.
"""

import collections
from dataclasses import dataclass, replace
from typing import FrozenSet, Tuple

from epl.graph import tags
from epl.graph.index import LOOP_EDGES, node_of
from epl.plan.analysis import variable_of
from epl.rules import effects

# A group waits for at most so many gradients.
_MAX_TRIGGERS = 8


@dataclass(frozen=True)
class Group:
    """Operations that are computed again together.

    Attributes:
      nodes: their names, in creation order.
      shared: canonical names of tensors that these nodes make and that are kept all the same.
      triggers: nodes of the backward pass for which they wait.
      before: (one of them, a change of a variable that it reads) pairs: the change waits for it.
      after: further nodes of the backward pass for which they wait: gradients of later layers' variables, which would
        else be put off, and hold what they are made of.
    """

    nodes: Tuple[str, ...]
    shared: FrozenSet[str]
    triggers: Tuple[str, ...]
    before: Tuple[Tuple[str, str], ...]
    after: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Recomputation:
    """What is computed again.

    Attributes:
      groups: the Groups.
      users: (node of the backward pass, input position) pairs that get the copy of what they take.
    """

    groups: Tuple[Group, ...]
    users: Tuple[Tuple[str, int], ...]

    @property
    def num_nodes(self):
        return sum(len(group.nodes) for group in self.groups)


def recomputation(forward, analysis, kept, calls=()):
    """What has to be computed again when only some tensors are kept.

    Args:
      forward: a Forward.
      analysis: the graph's Analysis.
      kept: canonical names of tensors that are kept, besides those that cannot be computed again.
      calls: for each call of an optimizer the names of the nodes that make its gradients.

    Returns:
      A Recomputation.
    """
    fixed, levels = set(), _levels(forward.graph)
    while True:
        plan, offenders = _groups(forward, analysis, levels, kept, fixed)
        if not offenders:
            return replace(plan, groups=_one_after_the_other(forward, analysis, levels, plan, calls))
        fixed |= offenders


def _one_after_the_other(forward, analysis, levels, plan, calls):
    """The groups, each of which also waits for what else the backward pass makes of the group before.

    Without that, gradients of variables, which nobody waits for, could be put off until the backward pass is through,
    and all that they are made of would be there until then: `tf.gradients` orders nothing by itself.

    No cycle can come of it. Groups come by level, from the loss downwards. A group waits for nodes that depend on
    groups before it alone, by any way, and each trigger of a group lies above what depends on groups behind it.
    """
    graph, groups = forward.graph, list(plan.groups)
    users = _users(graph, plan)
    order = sorted((i for i in range(len(groups)) if users[i]), key=lambda i: (-max(levels[u] for u in users[i]), i))
    last = {}
    for place, i in enumerate(order):
        last.update((name, place) for name in graph.descendants(users[i]))
    never = graph.descendants(analysis.writes) | analysis.in_control_flow
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


def _groups(forward, analysis, levels, kept, fixed):
    """(Recomputation, nodes that read variables which change before their turn and so cannot be repeated)."""
    graph = forward.graph

    def available(tensor):
        root = forward.root(tensor)
        return root in kept or node_of(root) not in forward.repeatable or node_of(root) in fixed

    wanted = [(user, position, tensor) for user, position, tensor in forward.uses if not available(tensor)]
    copied, stack = set(), [node_of(tensor) for _, _, tensor in wanted]
    while stack:
        name = stack.pop()
        if name not in copied:
            copied.add(name)
            stack.extend(node_of(t) for t in forward.inputs(name) if not available(t))
    group_of = _connected(graph, forward, copied, available)
    users = collections.defaultdict(list)
    for user, position, tensor in wanted:
        users[group_of[node_of(tensor)]].append((user, position))
    members = collections.defaultdict(list)
    for name in graph.in_order(copied):
        members[group_of[name]].append(name)
    groups, chosen, offenders = [], [], set()
    for key in sorted(members, key=lambda k: graph.creation_index[k]):
        nodes = members[key]
        triggers, level = _triggers(graph, forward, analysis, levels, nodes, [user for user, _ in users[key]])
        if not triggers:
            continue  # its turn comes at once: the tensors of the forward pass serve
        before, changed_reads = _changes_after(graph, analysis, levels, level, nodes)
        offenders |= changed_reads
        shared = frozenset(t for n in nodes for t in forward.inputs(n) if node_of(t) in copied and available(t))
        groups.append(Group(tuple(nodes), shared, tuple(triggers), tuple(before)))
        chosen.extend(users[key])
    return Recomputation(tuple(groups), tuple(chosen)), offenders


def _connected(graph, forward, copied, available):
    """Node to the first node of its group: copies that take something of each other belong together."""
    leader = {name: name for name in copied}

    def find(name):
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for name in graph.in_order(copied):
        for tensor in forward.inputs(name):
            producer = node_of(tensor)
            if producer in copied and not available(tensor):
                first, second = sorted((find(name), find(producer)), key=graph.creation_index.__getitem__)
                leader[second] = first
    return {name: find(name) for name in copied}


def _levels(graph):
    """Node to the length of the longest path from it to an end of the graph; no edge but a loop's leads upwards."""
    levels = {}
    for name in sorted(graph.order, key=graph.order.__getitem__, reverse=True):
        if graph.nodes[name].op in LOOP_EDGES:
            levels[name] = 0
        else:
            levels[name] = 1 + max([levels.get(c, 0) for c, _ in graph.consumers.get(name, ())] or [0])
    return levels


def _triggers(graph, forward, analysis, levels, nodes, users):
    """(the gradients that arrive at a group, the level below which it lies).

    Gradients are found by walking up the backward pass from those who use the group, to the first nodes that come
    before all of them. The copies are placed at the level of the first user, and every edge that is added goes down,
    so no cycle can come of it, whatever other groups there are. A gradient counts only if it depends on the group's own
    values, by way of later layers and the loss: one that does not would be there before the forward pass has ended.
    """
    level = max(levels[user] for user in users)
    found, seen, stack = set(), set(users), list(users)
    while stack:
        for producer, index in graph.inputs[stack.pop()]:
            if index < 0 or producer in seen or producer not in forward.backward:
                continue
            seen.add(producer)
            if levels[producer] > level and producer not in analysis.in_control_flow:
                found.add(producer)
            else:
                stack.append(producer)
    follows = graph.descendants(nodes, data_only=True)
    triggers = sorted((n for n in found if n in follows), key=lambda n: (levels[n], graph.creation_index[n]))
    return triggers[:_MAX_TRIGGERS], level


def _changes_after(graph, analysis, levels, level, nodes):
    """((node of a group, change of a variable that it reads) pairs where the change comes after the group, nodes of
    the group that read what may have changed before)."""
    readers = collections.defaultdict(set)
    for name in nodes:
        for producer, index in graph.inputs[name]:
            variable = _variable_read(graph, producer) if index >= 0 else None
            if variable is not None:
                readers[variable].add(name)
    before, changed_reads = [], set()
    for write in analysis.writes if readers else ():
        variable = variable_of(graph, write)
        if variable in readers:
            if levels[write] < level:
                before.extend((reader, write) for reader in graph.in_order(readers[variable]))
            else:
                changed_reads |= readers[variable]
    return before, changed_reads


def _variable_read(graph, name):
    """The variable whose value a node is, or None."""
    while True:
        node = graph.nodes[name]
        if node.op in effects.VARIABLES:
            return name
        if node.op not in ("Identity", "ReadVariableOp", "Enter", "Cast") or not node.input:
            return None
        name = node_of(node.input[0])
