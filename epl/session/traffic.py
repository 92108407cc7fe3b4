"""What a worker exchanges with others in a call of a session: collectives, and messages between parts of a pipeline."""

from dataclasses import dataclass
from typing import Dict, List, Tuple

from epl.graph import tags
from epl.graph.index import node_of
from epl.passes.messages import Message
from epl.plan.precision.found_inf import stages_found_infs
from epl.rules import effects
from epl.session.parts import Communicator, communicators, fetched_messages, needed_messages


@dataclass(frozen=True)
class Traffic:
    """Of one call.

    Attributes:
      orders: communicator of the pool to the tags of what goes over it in order.
      groups: the Communicators for that which not all workers have, in the order in which they are made.
      collectives: names of the collectives' nodes, in their order.
      messages: the Messages between workers of the pipeline, in their order.
      sends: operations of this worker that send.
      receives: those that receive.
      communicates: whether there is any collective with other workers, or message.
      only_reads: whether the call only takes variables from other workers of the pipeline; they can help any time.
    """

    orders: Dict[int, List[int]]
    groups: Tuple[Communicator, ...]
    collectives: Tuple[str, ...] = ()
    messages: Tuple[Message, ...] = ()
    sends: Tuple[str, ...] = ()
    receives: Tuple[str, ...] = ()
    communicates: bool = False
    only_reads: bool = False

    @property
    def names(self):
        """Of all collectives and messages."""
        return self.collectives + tuple(message.name for message in self.messages)


def traffic_of(rewritten, reach, reads, named):
    """The Traffic of a call.

    Args:
      rewritten: the Rewritten, which gets the nodes of messages.
      reach: the Reach of the call.
      reads: whether it takes data here.
      named: the tensors that it is fed.
    """
    plan, part = rewritten.plan, rewritten.part
    found = sorted(rewritten.keys[name] for name in rewritten.keys if name in reach.nodes)
    between = plan.mesh.everywhere.num_workers > 1
    within = {found_inf.name for found_inf in stages_found_infs(plan)}  # of a pipeline of several workers
    orders = {}
    for _, name, slot, tag in found:
        taken = name not in rewritten.idle and rewritten.has(name) and not _is_alone(plan.mesh, slot)
        if taken and (between or name in within):
            orders.setdefault(slot, []).append(tag)
    communicates = bool(found) and between or bool(orders)
    if plan.shards_span_workers:
        # What one worker alone draws, reads or changes would leave the parts of others behind.
        communicates = communicates or reads or bool(reach.nodes & rewritten.in_step)
    names = tuple(name for _, name, _, _ in found)
    if part is None:
        return Traffic(orders, tuple(rewritten.communicators(orders)), names, communicates=communicates)
    messages = needed_messages(part, reach.nodes, reach.fed) + fetched_messages(part, reach.fetches)
    rewritten.add_messages(messages)
    only_reads = bool(messages) and not names and _changes_nothing(rewritten, reach, named)
    return _with_messages(rewritten, orders, messages, names, communicates, only_reads)


def traffic_of_messages(rewritten, messages):
    """The Traffic of some messages alone, for which the Rewritten gets their nodes."""
    rewritten.add_messages(messages)
    return _with_messages(rewritten, {}, messages)


def of_reader(rewritten, traffic):
    """The Traffic of a call that only reads and is run for this worker: nobody else gets what it fetches."""
    own = [m for m in traffic.messages if m.consumers or m.target == rewritten.part.index]
    return _with_messages(rewritten, {}, own, communicates=traffic.communicates, only_reads=True)


def _with_messages(rewritten, orders, messages, collectives=(), communicates=False, only_reads=False):
    """The Traffic of collectives, by their orders, and of messages."""
    part, mesh = rewritten.part, rewritten.plan.mesh
    in_order = {slot: list(of_collectives) for slot, of_collectives in orders.items()}
    for message in messages:
        if part.index in (message.source, message.target):
            in_order.setdefault(part.first_slot + message.channel, []).append(message.tag)
    return Traffic(
        in_order,
        tuple(communicators(mesh, part, sorted(orders), messages)),
        collectives,
        tuple(messages),
        tuple(message.send for message in messages if message.source == part.index),
        tuple(message.receive for message in messages if message.target == part.index),
        communicates or bool(messages),
        only_reads,
    )


def _is_alone(mesh, slot):
    """Whether this worker has nobody to communicate with over a pool's number, as no other has such copies."""
    group = mesh.joined(slot) if mesh.is_spread else None
    return group is not None and group.num_workers == 1


def _changes_nothing(rewritten, reach, named):
    """True for what can be run at any time: it changes no variable, takes no data, is fed a file's name at most."""
    graph = rewritten.graph
    if reach.initial or reach.writes or any(graph.nodes[name].op in effects.SOURCES for name in reach.nodes):
        return False
    return all(name not in reach.nodes or tags.phase(graph.nodes[name]) == tags.SAVE for name in map(node_of, named))
