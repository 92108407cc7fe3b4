r"""Leaves a worker of a crew its own part of a graph, and lets the parts send each other what they need.

    a (worker 0) -> b (worker 1)   becomes   a -> EplBroadcastSend        on worker 0
                                             EplBroadcastReceive -> b     on worker 1

What all workers have (see epl.plan.positions) is in every part. A control edge from another worker's node is left out;
what comes after it here waits instead for this worker's own changes of variables that it would have waited for.

Every worker of a crew cuts the same graph, so they all know all messages, in one order that no edge of the graph goes
against: two workers never wait for each other's next message.
"""

import collections
from dataclasses import dataclass, replace
from typing import Dict, List, Tuple

from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.build import Type, make_node
from epl.graph.index import Graph, canonical_tensor, node_of
from epl.passes.nodes import dtype_of, tagged
from epl.passes.restore import restore_own
from epl.passes.save import save_in_parts
from epl.plan import ops
from epl.plan.names import PREFIX, cloned_name, tag_of

_HANDLES = frozenset([20, 21])  # resource, variant
_LOOP_EDGES = ("NextIteration", "RefNextIteration")


@dataclass(frozen=True)
class Message:
    """A tensor that one worker of a crew sends another in a step.

    Attributes:
      tensor: its name in the whole graph.
      source, target: positions in the crew.
      channel: number of the communicator that carries it, among the crew's own.
      name: of the node that sends or receives it, with "/send" or "/receive".
      consumers: the target's nodes that take it.
    """

    tensor: str
    source: int
    target: int
    channel: int
    name: str
    consumers: Tuple[str, ...] = ()

    @property
    def send(self):
        return self.name + "/send"

    @property
    def receive(self):
        return self.name + "/receive"

    @property
    def tag(self):
        return tag_of(self.name)


@dataclass
class Part:
    """What one worker of a crew runs of a graph.

    Attributes:
      position: this worker's in its crew.
      whole: the Graph that was cut.
      graph: this worker's own.
      positions: node of the whole graph to the one worker that has it; other nodes are everywhere.
      messages: in the order in which they are sent.
      channels: for each channel its (source, target) positions; the last ones are for what is fetched.
      first_slot: the communicator of the first channel.
    """

    position: int
    whole: Graph
    graph: Graph
    positions: Dict[str, int]
    messages: Tuple[Message, ...]
    channels: List[Tuple[int, int]]
    first_slot: int

    def is_here(self, name):
        return self.positions.get(name, self.position) == self.position

    def fetched(self, tensor):
        """The Messages by which a tensor that one worker has comes to the others who fetch it."""
        source = self.positions[node_of(tensor)]
        return [
            Message(
                canonical_tensor(tensor),
                source,
                target,
                max(i for i, ends in enumerate(self.channels) if ends == (source, target)),
                "%s_fetch/%d/%s" % (PREFIX, target, canonical_tensor(tensor).replace(":", "_output_")),
            )
            for target in sorted({ends[1] for ends in self.channels if ends[0] == source})
        ]

    def with_messages(self, plan, messages):
        """The same with the nodes of further messages where they are not there yet."""
        edit = self.graph.editor()
        for message in messages:
            if message.source == self.position and message.send not in edit:
                add_send(edit, plan, self, message)
            if message.target == self.position and message.receive not in edit:
                add_receive(edit, plan, self, message)
        return replace(self, graph=edit.finish())


def cut(graph, plan):
    """The Part of this worker; None for crews of one worker.

    Raises:
      UnsupportedError: something that cannot be sent is used by two workers.
    """
    layout = plan.layout
    if len(layout.crew) == 1:
        return None
    positions = _positions(graph)
    messages, channels = _messages(graph, plan, positions)
    size = len(layout.crew)
    channels += [(source, target) for source in range(size) for target in range(size) if source != target]
    part = Part(layout.position, graph, graph, positions, messages, channels, first_slot=2 * plan.first_peer_slot)
    part.graph = _own(graph, plan, part)
    return part


def _positions(graph):
    """Where nodes are. Those that passes have made are where what they take is, or else what takes them."""
    found, made = {}, []
    for name, node in graph.nodes.items():
        if tags.POSITION not in node.attr:
            made.append(name)
        elif node.attr[tags.POSITION].i != tags.EVERYWHERE:
            found[name] = node.attr[tags.POSITION].i
    for name in made:
        near = [found[node_of(t)] for t in graph.nodes[name].input if t[0] != "^" and node_of(t) in found]
        if near:
            found[name] = near[0]
    for name in reversed(made):
        near = {found.get(c) for c, p in graph.consumers.get(name, ()) if graph.nodes[c].input[p][0] != "^"}
        if name not in found and len(near) == 1 and None not in near:
            found[name] = near.pop()
    return found


def _messages(graph, plan, positions):
    """All messages in their order, and the channels that carry them."""
    crossing = collections.OrderedDict()
    for name, target in positions.items():
        for text in graph.nodes[name].input:
            if text[0] != "^" and positions.get(node_of(text), target) != target:
                crossing.setdefault((canonical_tensor(text), target), []).append(name)
    order = _topological(graph)
    channels, found = {}, []
    for tensor, target in sorted(crossing, key=lambda key: (order[node_of(key[0])], key)):
        producer = graph.nodes[node_of(tensor)]
        consumers = tuple(sorted(set(crossing[tensor, target])))
        _check(graph, plan, tensor, consumers[0])
        # What is sent forward, and what is sent backward, does not wait for the other; nor do stages.
        kind = tags.get_int(producer, tags.TASKGRAPH, -1), tags.phase(producer) == tags.BACKWARD
        channel = channels.setdefault((positions[producer.name], target) + kind, len(channels))
        name = "%s_message/%d/%s" % (PREFIX, target, tensor.replace(":", "_output_"))
        found.append(Message(tensor, positions[producer.name], target, channel, name, consumers))
    return tuple(found), [key[:2] for key in channels]


def _check(graph, plan, tensor, consumer):
    name = node_of(tensor)
    node = graph.nodes[name]
    dtype = dtype_of(graph, tensor)
    if dtype in _HANDLES:
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
    return original in plan.analysis.in_control_flow and node.op not in ops.CONTROL_FLOW_CLOSES


def _topological(graph):
    """dict of node to a number such that no edge but a loop's goes to a lower one; the same for the same graph."""
    nodes, consumers = graph.nodes, graph.consumers
    waiting = {name: len(node.input) for name, node in nodes.items()}
    for name, node in nodes.items():
        if node.op in _LOOP_EDGES:
            for consumer, _ in consumers.get(name, ()):
                waiting[consumer] -= 1
    ready = collections.deque(name for name, count in waiting.items() if count == 0)
    order = {}
    while ready:
        name = ready.popleft()
        order[name] = len(order)
        if nodes[name].op not in _LOOP_EDGES:
            for consumer, _ in consumers.get(name, ()):
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    ready.append(consumer)
    return order


def _own(graph, plan, part):
    """This worker's Graph: its nodes and those that are everywhere, and its ends of messages."""
    nodes = collections.OrderedDict((name, node) for name, node in graph.nodes.items() if part.is_here(name))
    edit = Graph(nodes, graph.library, graph.versions).editor()
    received = {m.tensor: m for m in part.messages if m.target == part.position}
    for message in received.values():
        add_receive(edit, plan, part, message)
    waits = _Waits(graph, edit, part)
    for name, node in nodes.items():
        foreign = [p for p, text in enumerate(node.input) if not part.is_here(node_of(text))]
        if foreign:
            _receive(edit.node(name), received, waits)
        _leave_groups(edit, name, nodes)
    for message in part.messages:
        if message.source == part.position:
            add_send(edit, plan, part, message)
    return save_in_parts(restore_own(edit.finish()), part, plan)


def add_send(edit, plan, part, message):
    """Adds the node that sends a message; the tensor may be of a Graph that has it or of the Editor."""
    dtype = types.base(dtype_of(part.whole, message.tensor))
    node = make_node(
        "EplBroadcastSend",
        message.send,
        [message.tensor],
        plan.layout.host_device,
        T=Type(dtype),
        comm=part.first_slot + message.channel,
        tag=message.tag,
        collective_name=message.name,
    )
    edit.add(tagged(node, "message"))


def add_receive(edit, plan, part, message):
    """Adds the node that receives a message."""
    dtype = types.base(dtype_of(part.whole, message.tensor))
    node = make_node(
        "EplBroadcastReceive",
        message.receive,
        [],
        plan.layout.host_device,
        T=Type(dtype),
        comm=part.first_slot + message.channel,
        tag=message.tag,
        root=0,
        collective_name=message.name,
    )
    edit.add(tagged(node, "message"))


def _receive(node, received, waits):
    """Gives a node its inputs: tensors of others as messages, and what it waits for here."""
    data, control = [], []
    for text in node.input:
        if waits.is_here(node_of(text)):
            (control if text[0] == "^" else data).append(text)
        elif text[0] == "^":
            control.extend(waits.instead_of(text[1:]))
        else:
            data.append(received[canonical_tensor(text)].receive)
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
      part: the Part.
    """

    def __init__(self, graph, edit, part):
        self._graph = graph
        self._edit = edit
        self._part = part
        self._made = {}
        changes = [
            n for n, node in graph.nodes.items() if ops.is_write(node.op) and part.positions.get(n) == part.position
        ]
        self._after = graph.descendants(changes)

    def is_here(self, name):
        return self._part.is_here(name)

    def instead_of(self, name):
        """Control inputs: none, or a node that waits for this worker's changes that the other's node follows."""
        if name not in self._after:
            return []
        if name not in self._made:
            self._make(name)
        return ["^" + self._made[name]]

    def _make(self, root):
        """Makes the stand-in of a node and of those that it needs."""
        stack = [root]
        while stack:
            name = stack.pop()
            if name in self._made:
                continue
            self._made[name] = "%s_after/%s" % (PREFIX, name)
            node = make_node("NoOp", self._made[name])
            for text in self._graph.nodes[name].input:
                other = node_of(text)
                if other not in self._after or self._graph.nodes[other].op in _LOOP_EDGES:
                    continue
                if self.is_here(other):
                    node.input.append("^" + other)
                else:
                    node.input.append("^%s_after/%s" % (PREFIX, other))
                    stack.append(other)
            unique = sorted(set(node.input))
            del node.input[:]
            node.input.extend(unique)
            self._edit.add(tagged(node, "after"))
