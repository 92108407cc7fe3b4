r"""Leaves a worker of a pipeline its own part of a graph, and lets the parts send each other what they need.

    a (worker 0) -> b (worker 1)   becomes   a -> EplBroadcastSend        on worker 0
                                             EplBroadcastReceive -> b     on worker 1

What all workers have (see epl.plan.layout.owners) is in every part. Where copies of a pipeline share the state of
optimizers (zero.level), the parts are those of all of them: what each copy has is in as many parts, and what one
keeper alone has in one. A collective of copies that lie in several workers is in
the parts of all of these, each of which hands in its own copies' tensors. A control edge from another worker's node is
left out; what comes after it here waits instead for this worker's own changes of variables that it would have waited
for, and for its own reading of variables that the program then changes itself: `tf.tuple(gradients)` before the first
assignment.

Every worker of a pipeline cuts the same graph, so they all know all messages, in one order that no edge of the graph
goes against: two workers never wait for each other's next message.
"""

import collections
from dataclasses import replace

from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.control_flow import frames_of
from epl.graph.index import Edges, Graph, canonical_tensor, format_input, node_of
from epl.graph.node_defs import make_node
from epl.graph.types import HANDLES
from epl.passes.holders import holders_of, is_shared
from epl.passes.messages import Channels, Part, add_receive, add_send, message_of
from epl.passes.nodes import dtype_of, tagged
from epl.passes.worker.sent_values import add_copies
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX, cloned_name
from epl.rules import effects, tensors


def cut(program, plan):
    """Leaves this worker its Part; nothing to do where each has whole copies of the model.

    Raises:
      UnsupportedError: something that cannot be sent is used by two workers.
    """
    mesh, owning_group = plan.mesh, plan.owning_group
    if owning_group.num_workers == 1 or not plan.owners and not plan.keepers:
        return program
    graph = program.graph
    holders = holders_of(graph, plan)
    channels = Channels(owning_group.num_workers, len(mesh.stages), mesh.pipeline.num_workers)
    messages = _messages(graph, plan, holders, channels)
    # Behind the communicators that workers have for other things.
    stages = mesh.pipeline
    first_slot = (
        stages.communicator(0) if channels.pipeline_workers > 1 else owning_group.communicator(mesh.num_communicators)
    )
    part = Part(owning_group.index, owning_group.workers, graph, holders, messages, channels, first_slot)
    return replace(program, graph=_own(graph, plan, part), part=part)


def _messages(graph, plan, holders, channels):
    """All messages in their order."""
    crossing = collections.defaultdict(list)
    for name, targets in holders.items():
        shares = len(targets) > 1 and is_shared(graph.nodes[name])
        for producer, index in graph.inputs[name] if not shares else ():
            for target in targets if index >= 0 else ():
                if target not in holders.get(producer, targets):
                    key = format_input(producer, index), target, _saver(graph.nodes[name])
                    crossing[key].append(name)
    # In a pipeline nothing that all compute takes what one has; with zero.level collectives alone take each worker's.
    for name in graph.nodes if plan.keepers else ():
        own = name in holders or tags.get_str(graph.nodes[name], tags.ROLE) == "collective"
        for producer, index in () if own else graph.inputs[name]:
            for target in range(channels.size) if index >= 0 and producer in holders else ():
                if target not in holders[producer]:
                    crossing[format_input(producer, index), target, ""].append(name)
    order = graph.order
    found = []
    for tensor, target, saver in sorted(crossing, key=lambda key: (order[node_of(key[0])], key)):
        consumers = tuple(sorted(set(crossing[tensor, target, saver])))
        _check(graph, plan, tensor, consumers[0])
        found.append(message_of(graph, holders, channels, tensor, target, saver, consumers))
    return tuple(found)


def _saver(node):
    """The SaveV2 for whose checkpoint a node takes a tensor, or "": as checkpoints take tensors in parts, each gets
    them by messages of its own."""
    return node.name if node.op == "SaveV2" else tags.get_str(node, tags.SAVER)


def _check(graph, plan, tensor, consumer):
    name = node_of(tensor)
    node = graph.nodes[name]
    dtype = dtype_of(graph, tensor)
    if dtype in HANDLES:
        raise UnsupportedError(
            "'%s' (%s) is used by '%s', which is in another stage and so in another worker, but a %s cannot be sent "
            "there. Put both into the same scope, or all stages into one worker (epl-launch --gpu_per_worker)."
            % (name, node.op, consumer, types.name(dtype))
        )
    if stands_inside(node, plan):
        raise UnsupportedError(
            "'%s' (%s) stands in a loop or a branch and is used by '%s', which is in another stage and so in another "
            "worker, which cannot know whether it comes. Put the whole loop or branch into one scope, or all stages "
            "into one worker (epl-launch --gpu_per_worker)." % (name, node.op, consumer)
        )


def stands_inside(node, plan):
    """True for what stands in a loop or a branch, and may not be run."""
    original = cloned_name(node.name, tags.get_int(node, tags.INSTANCE))
    return original in plan.analysis.in_control_flow and node.op not in effects.CONTROL_FLOW_CLOSES


def _own(graph, plan, part):
    """This worker's Graph: its nodes and those that are everywhere, and its ends of messages."""
    nodes = {name: node for name, node in graph.nodes.items() if part.is_here(name)}
    edges = Edges({name: graph.inputs[name] for name in nodes})
    edit = Graph(nodes, graph.library, graph.versions, edges).editor()
    received = {}
    for message in part.messages:
        if message.target == part.index:
            add_receive(edit, plan, part, message)
            received.update(((message.tensor, consumer), message.receive) for consumer in message.consumers)
    waits = _Waits(graph, edit, plan, part)
    for name in nodes:
        if not all([producer in nodes for producer, _ in graph.inputs[name]]):
            if (plan.mesh.is_spread or not plan.keepers) and len(part.holders.get(name, ())) > 1:
                _hand_in_own(edit.node(name), nodes)
            _receive(edit.node(name), received, waits)
        _leave_groups(edit, name, nodes)
    waits.enter_later()
    copies = add_copies(graph, edit, part)
    for message in part.messages:
        if message.source == part.index:
            add_send(edit, plan, part, message, copies.get(message.tensor))
    return edit.finish()


def _hand_in_own(node, nodes):
    """Leaves a collective the tensors that are here, which are those of some of its copies."""
    tensors = [text for text in node.input if text[0] != "^"]
    control = [text for text in node.input if text[0] == "^"]
    own = [text for text in tensors if node_of(text) in nodes]
    node.attr["R"].i = node.attr["R"].i * len(own) // len(tensors)
    if "num_inputs" in node.attr:
        node.attr["num_inputs"].i = len(own)
    del node.input[:]
    node.input.extend(own + control)


def _receive(node, received, waits):
    """Gives a node its inputs: tensors of others as messages, and what it waits for here."""
    data, control = [], []
    for text in node.input:
        if waits.is_here(node_of(text)):
            (control if text[0] == "^" else data).append(text)
        elif text[0] == "^":
            control.extend(waits.instead_of(text[1:], node))
        else:
            data.append(received[canonical_tensor(text), node.name])
    del node.input[:]
    node.input.extend(data + sorted(set(control), key=control.index))


def _leave_groups(edit, name, nodes):
    """Colocation with what is not here is left out."""
    node = edit.peek(name)
    if "_class" not in node.attr:
        return
    groups = node.attr["_class"].list.s
    kept = [g for g in groups if not g.startswith(b"loc:@") or g[len("loc:@") :].decode() in nodes]
    if len(kept) == len(groups):
        return
    own = edit.node(name)
    if kept:
        own.attr["_class"].list.s[:] = kept
    else:
        del own.attr["_class"]


class _Waits(object):
    """What nodes wait for here instead of nodes of other workers.

    Args:
      graph: the whole Graph.
      edit: the Editor of this worker's.
      plan: the Plan.
      part: the Part.
    """

    def __init__(self, graph, edit, plan, part):
        self._graph = graph
        self._edit = edit
        self._plan = plan
        self._part = part
        self._made = {}  # another worker's node to what stands for it here
        self._frames = frames_of(graph)
        self._loops = collections.defaultdict(dict)  # what loops wait for that have waits inside, by their frames
        changes = [name for name in graph.find(effects.is_write) if part.index in part.holders.get(name, ())]
        self._after = graph.descendants(changes + _read_before(graph, plan, changes))

    def is_here(self, name):
        return self._part.is_here(name)

    def instead_of(self, name, waiting):
        """Control inputs of a node: none, or what waits for this worker's nodes that the other's node follows."""
        if name not in self._after:
            return []
        self._stand_in(name)
        around = self._frames.get(waiting.name, ())
        if len(around) <= (waiting.op in effects.ENTERS):
            return self._made[name]
        # What stands outside of a loop cannot be waited for inside of it: the loop begins later instead.
        self._loops[around[0]].update(dict.fromkeys(self._made[name]))
        return []

    def enter_later(self):
        """Lets loops wait for what would have been waited for inside of them."""
        for name, around in self._frames.items() if self._loops else ():
            waits = self._loops.get(around[0]) if len(around) == 1 else None
            if waits and self._graph.nodes[name].op in effects.ENTERS and self.is_here(name):
                known = self._edit.peek(name).input
                self._edit.node(name).input.extend([text for text in waits if text not in known])

    def _stand_in(self, root):
        """Finds what stands for a node, and for those that it needs."""
        stack = [root]
        while stack:
            name = stack[-1]
            needed = self._needed(name) if name not in self._made else []
            missing = [other for other in needed if not self.is_here(other) and other not in self._made]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if name not in self._made:
                self._made[name] = self._one(name, needed)

    def _needed(self, name):
        """What a node takes or waits for of what comes after this worker's nodes; but for those in a branch here, which
        may never run: a node of another worker waits for what leaves the branches."""
        found = {node_of(text) for text in self._graph.nodes[name].input}
        return sorted(
            other
            for other in found
            if other in self._after
            and self._graph.nodes[other].op not in effects.LOOP_EDGES
            and not (self.is_here(other) and stands_inside(self._graph.nodes[other], self._plan))
        )

    def _one(self, name, needed):
        """A control input that stands for several, in a list; none where they are only a loop's next turn."""
        texts = sorted({text for other in needed for text in self._made.get(other, ["^" + other])})
        if len(texts) < 2:
            return texts
        node = make_node("NoOp", "%s_after/%s" % (PREFIX, name))
        node.input.extend(texts)
        self._edit.add(tagged(node, "after"))
        return ["^" + node.name]


def _read_before(graph, plan, changes):
    """What takes the values of variables that the program itself changes (no optimizer's apply, no first value)."""
    by_hand = {
        variable_of(graph, name)
        for name in changes
        if tags.phase(graph.nodes[name]) == tags.FORWARD and name not in plan.analysis.initial_writes
    }
    found, stack = set(), [name for name in by_hand if name is not None]
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if consumer not in found and graph.inputs[consumer][position].index >= 0:
                found.add(consumer)
                stack.extend([consumer] if graph.nodes[consumer].op in tensors.ALIASES else [])
    return graph.in_order(found)
