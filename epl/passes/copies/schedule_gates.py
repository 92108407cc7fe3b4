"""Keeps the micro-batches of a step in the schedule's order.

After the last operations of an action of the schedule stands a gate that waits for them; the first operations of the
next action on that device wait for a gate that takes what such gates give, one for each root (see
epl.plan.pipeline.micro_batches). A session run that is not for a root feeds its gates' outputs, so that TensorFlow
leaves out what they wait for: an evaluation must not run the training of earlier micro-batches. So a micro-batch waits
for the changes that the one before it makes of moving averages.
"""

import collections

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import make_node, set_attr
from epl.passes.nodes import tagged
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX, micro_batch_name
from epl.plan.pipeline.schedules import FORWARD
from epl.rules import effects


class Gates(object):
    """The gates of one graph.

    Args:
      edit: the Editor that gets them.
      plan: the MicroBatches.
      devices: of each stage, of the first copy of the model.
    """

    def __init__(self, edit, plan, devices):
        self._devices = devices
        self._edit = edit
        self._plan = plan
        self._made = {root.name: [] for root in plan.roots}

    def end(self, label, root, stage, names):
        """Passes when operations have run for a root."""
        name = "%s_end/%s/%s" % (PREFIX, label, root.name)
        node = make_node("EplGate", name, ["^" + other for other in sorted(set(names))], N=0)
        self._made[root.name].append(self._edit.add(self._at(stage, node)).name)
        return name

    def begin(self, label, stage, waits):
        """What operations wait for, as a control input, that must come after all of `waits`."""
        name = "%s_begin/%s" % (PREFIX, label)
        return self._edit.add(self._at(stage, make_node("EplGate", name, waits, N=len(waits)))).name

    def by_root(self, added):
        """(nodes of which any is reached when a session run serves the root, names of its gates) for each root.

        Args:
          added: (Accumulated's name, micro-batch) to the node that adds it.
        """
        found = []
        for root in self._plan.roots:
            sums = {added[name, self._plan.count - 1] for name in root.gradients}
            found.append((frozenset(sums | set(root.writes)), tuple(self._made[root.name])))
        return tuple(found)

    def _at(self, stage, node):
        node.device = self._devices[stage]
        set_attr(node, tags.TASKGRAPH, self._plan.taskgraphs[stage])
        return tagged(node, "gate")


def order_actions(graph, edit, plan, gates, added):
    """Makes each device work in the order of its actions.

    Args:
      graph: the user's Graph.
      edit: the Editor in which the copies are.
      plan: the MicroBatches.
      gates: the Gates.
      added: (Accumulated's name, micro-batch) to the node that adds it.
    """
    members = collections.defaultdict(list)
    for name in graph.in_order(plan.nodes):
        if name in plan.action_of:
            members[plan.action_of[name]].append(name)
    first = {action: _first(graph, plan, action, names) for action, names in members.items()}
    last = {
        (root.name, action): _last(graph, plan, [n for n in names if n in root.nodes])
        for root in plan.roots
        for action, names in members.items()
    }
    for actions in plan.order:
        for before, action in zip(actions, actions[1:]):
            starts = [micro_batch_name(n, action.micro_batch) for n in first.get(action[:2], ())]
            if not starts or _follows_by_itself(before, action):
                continue
            waits = []
            for root in plan.roots:
                names = [micro_batch_name(n, before.micro_batch) for n in last.get((root.name, before[:2]), ())]
                names += _sums(plan, root, before, added)
                if names:
                    waits.append(gates.end(_label(before), root, before.stage, names))
            if waits:
                _wait(edit, starts, gates.begin(_label(action), action.stage, waits))


def _label(action):
    return "%s_%d/micro_batch_%d" % (action.kind, action.stage, action.micro_batch)


def _wait(edit, names, gate):
    for name in names:
        edit.node(name).input.append("^" + gate)


def _follows_by_itself(before, action):
    return before[1:] == action[1:] and before.kind == FORWARD


def _sums(plan, root, action, added):
    """The accumulations that are part of an action."""
    if action.kind == FORWARD:
        return []
    return [
        added[g.name, action.micro_batch]
        for g in plan.gradients
        if g.name in root.gradients and g.indices is None and plan.action_of.get(node_of(g.values)) == action[:2]
    ]


def _first(graph, plan, action, names):
    """The operations of an action that wait for nothing of the same action. Placeholders are fed before any."""
    found = []
    for name in names:
        node = graph.nodes[name]
        if node.op in effects.PLACEHOLDERS:
            continue
        if name in plan.in_control_flow and node.op not in effects.CONTROL_FLOW_OPENS:
            continue
        producers = (node_of(text) for text in node.input)
        if not any(
            plan.action_of.get(p) == action and graph.nodes[p].op not in effects.PLACEHOLDERS for p in producers
        ):
            found.append(name)
    return found


def _last(graph, plan, names):
    """The operations among `names` that nothing else among them waits for, if they are always run."""
    chosen = set(names)
    found = []
    for name in names:
        if name in plan.in_control_flow and graph.nodes[name].op not in effects.CONTROL_FLOW_CLOSES:
            continue
        if graph.nodes[name].op in effects.PLACEHOLDERS:
            continue
        if not any(consumer in chosen for consumer, _ in graph.consumers.get(name, ())):
            found.append(name)
    return found


def order_changes(graph, edit, plan, gates):
    """A micro-batch sees, and changes further, what the one before has made of a moving average.

    It waits for all such changes of the same part of the model at once. Those in a branch or a loop are left out, as
    whether they happen is not known before the step.

    Args: as for `order_actions`.
    """
    groups = collections.OrderedDict()
    for write in plan.writes:
        if write not in plan.in_control_flow:
            groups.setdefault(plan.action_of.get(write, ("after updates", 0)), []).append(write)
    for number, ((_, stage), writes) in enumerate(groups.items()):
        variables = {variable_of(graph, write) for write in writes}
        waiting = writes + [name for name, read in plan.reads.items() if variables.intersection(read)]
        for micro_batch in range(1, plan.count):
            label = "changes_%d/micro_batch_%d" % (number, micro_batch)
            waits = []
            for root in plan.roots:
                names = [micro_batch_name(w, micro_batch - 1) for w in writes if w in root.nodes]
                if names:
                    waits.append(gates.end(label, root, stage, names))
            if waits:
                own = [micro_batch_name(name, micro_batch) for name in waiting]
                _wait(edit, own, gates.begin(label, stage, waits))
