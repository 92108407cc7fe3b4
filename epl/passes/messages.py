"""What workers that have parts of one graph send each other: Message, Channels and Part, and the nodes of messages."""

import collections
import copy
from dataclasses import dataclass, replace
from typing import Dict, Tuple

from epl.graph import tags, types
from epl.graph.index import Graph, canonical_tensor, format_input, node_of
from epl.graph.node_defs import Type, make_node
from epl.passes.nodes import dtype_of, tagged
from epl.plan.facts.names import PREFIX
from epl.program.collective import tag_of


@dataclass(frozen=True)
class Message:
    """A tensor that one worker of a pipeline sends another in a step.

    Attributes:
      tensor: its name in the whole graph.
      source, target: places in the pipeline.
      channel: number of the communicator that carries it, among the pipeline's own.
      name: of the node that sends or receives it, with "/send" or "/receive".
      consumers: the target's nodes that take it; none where it is only fetched.
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


@dataclass(frozen=True)
class Channels:
    """Numbers of the communicators by which the workers of a pipeline send each other tensors.

    They follow from the layout alone: whatever else a worker's graph holds, its channels are those of the others.

    Attributes:
      size: workers that have parts of the same graph.
      stages: of the model.
      pipeline_workers: how many of them, neighbours, have a copy of the model: one pipeline.
    """

    size: int
    stages: int
    pipeline_workers: int

    def are_neighbours(self, one, other):
        """Whether two are of the same pipeline."""
        return one // self.pipeline_workers == other // self.pipeline_workers

    def source(self, holders, target):
        """Who sends one what some of the others have: somebody of its own pipeline, if there is one."""
        return next((holder for holder in holders if self.are_neighbours(holder, target)), holders[0])

    def fetching(self, source, target):
        """The channel for what is only fetched."""
        return self._number(source, target, 0)

    def carrying(self, source, target, taskgraph, backward):
        """What is sent forward, and what is sent backward, does not wait for the other; nor do stages."""
        return self._number(source, target, 1 + 2 * ((taskgraph + 1) % (self.stages + 1)) + backward)

    def ends(self, number):
        """(source, target) of a channel."""
        return divmod(number // self._kinds, self.size)

    @property
    def _kinds(self):
        return 1 + 2 * (self.stages + 1)

    def _number(self, source, target, kind):
        return (source * self.size + target) * self._kinds + kind


@dataclass(frozen=True)
class Part:
    """Which part of a graph one worker of a pipeline runs.

    Attributes:
      index: this worker's place among those that have parts of the same graph.
      workers: these, in order.
      whole: the Graph that was cut.
      holders: node of the whole graph to the workers that have it, in order; other nodes are everywhere.
      messages: in the order in which they are sent.
      channels: the Channels.
      first_slot: the communicator of the first channel.
    """

    index: int
    workers: range
    whole: Graph
    holders: Dict[str, Tuple[int, ...]]
    messages: Tuple[Message, ...]
    channels: Channels
    first_slot: int

    def is_here(self, name):
        return name not in self.holders or self.index in self.holders[name]

    def fetched(self, tensor):
        """The Messages by which a tensor that some workers have comes to the others who fetch it."""
        holders, found = self.holders[node_of(tensor)], []
        for target in range(self.channels.size):
            if target not in holders:
                source = self.channels.source(holders, target)
                name = "%s_fetch/%d/%s" % (PREFIX, target, canonical_tensor(tensor).replace(":", "_output_"))
                channel = self.channels.fetching(source, target)
                found.append(Message(canonical_tensor(tensor), source, target, channel, name))
        return found


def with_messages(program, messages):
    """The Program with the nodes of further messages; the same object if they are all there."""
    nodes, part = program.graph.nodes, program.part
    sent = [m for m in messages if m.source == part.index and m.send not in nodes]
    received = [m for m in messages if m.target == part.index and m.receive not in nodes]
    if not sent and not received:
        return program
    edit = program.graph.editor()
    for message in sent:
        add_send(edit, program.plan, part, message)
    for message in received:
        add_receive(edit, program.plan, part, message)
    return program.with_graph(edit.finish())


def with_whole(program, whole):
    """The Program of which the whole graph has got nodes that all workers have: each takes what others hold by
    messages, behind all others."""
    part = program.part
    if part is None:
        return program.with_graph(whole)
    added = [name for name in whole.nodes if name not in part.whole.nodes]
    crossing, known = collections.OrderedDict(), {(m.tensor, m.target, m.name): m for m in part.messages}
    for name in added:
        for producer, index in whole.inputs[name]:
            for target in range(part.channels.size) if index >= 0 and producer in part.holders else ():
                if target not in part.holders[producer]:
                    crossing.setdefault((format_input(producer, index), target), []).append(name)
    for (tensor, target), consumers in crossing.items():
        message = message_of(whole, part.holders, part.channels, tensor, target, "", tuple(sorted(set(consumers))))
        key = message.tensor, target, message.name
        known[key] = replace(message, consumers=known[key].consumers + message.consumers) if key in known else message
    part = replace(part, whole=whole, messages=tuple(known.values()))
    program = with_messages(replace(program, part=part), part.messages)
    edit = program.graph.editor()
    for name in added:
        edit.add(copy.deepcopy(whole.nodes[name]))
        for position, (producer, index) in enumerate(whole.inputs[name]):
            if index >= 0 and not part.is_here(producer):
                tensor = format_input(producer, index)
                # A checkpoint has messages of its own of the same tensors, which this does not run.
                message = next(
                    m for m in part.messages if (m.tensor, m.target) == (tensor, part.index) and name in m.consumers
                )
                edit.set_input(name, position, message.receive)
    return program.with_graph(edit.finish())


def message_of(graph, holders, channels, tensor, target, saver, consumers):
    """The Message that brings a tensor to a worker: by whom it is sent, and on which channel.

    Args:
      graph: the whole Graph.
      holders: see Part.
      channels: the Channels.
      tensor: its name.
      target: the worker's place.
      saver: the node that saves it, or "": a checkpoint takes tensors in parts, by messages of its own.
      consumers: the target's nodes that take it.
    """
    producer = graph.nodes[node_of(tensor)]
    source, backward = channels.source(holders[producer.name], target), tags.phase(producer) == tags.BACKWARD
    channel = channels.carrying(source, target, tags.get_int(producer, tags.TASKGRAPH, -1), backward)
    name = "%s_message/%d/%s" % (PREFIX, target, tensor.replace(":", "_output_"))
    name += "/for/%s" % saver if saver else ""
    return Message(tensor, source, target, channel, name, consumers)


def add_send(edit, plan, part, message, value=None):
    """Adds the node that sends a message; the tensor, or a value in its place, may be of a Graph that has it or of the
    Editor."""
    dtype = types.base(dtype_of(part.whole, message.tensor))
    node = make_node(
        "EplBroadcastSend",
        message.send,
        [value or message.tensor],
        plan.mesh.host_device,
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
        plan.mesh.host_device,
        T=Type(dtype),
        comm=part.first_slot + message.channel,
        tag=message.tag,
        root=0,
        collective_name=message.name,
    )
    edit.add(tagged(node, "message"))
