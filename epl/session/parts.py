"""What one worker of several with parts of a graph runs of a step, and what they send each other for it."""

import collections
import hashlib

from epl.errors import CaptureError
from epl.graph.index import canonical_tensor, node_of
from epl.passes.messages import Message
from epl.passes.worker.cut import stands_inside
from epl.rules import effects

# One that not all workers have: its number in the pool, its name, and the workers in order.
Communicator = collections.namedtuple("Communicator", "slot name members")

# They do nothing by being run, or cannot be.
_NOT_RUN = effects.PLACEHOLDERS | effects.VARIABLES | frozenset(["Const"])


def needed_messages(part, reached, stop):
    """The Messages of a Part that a step needs.

    Args:
      part: an epl.passes.messages.Part.
      reached: names of the whole graph's nodes that the step runs.
      stop: those of them that are fed, so that what they take is not needed.
    """
    return [m for m in part.messages if any(c in reached and c not in stop for c in m.consumers)]


def fetched_messages(part, fetches):
    """The Messages that bring every worker of the pipeline the fetched tensors which only some of them have."""
    tensors = sorted({canonical_tensor(tensor) for tensor in fetches if node_of(tensor) in part.holders})
    return [message for tensor in tensors for message in part.fetched(tensor)]


def own_tensor(part, tensor):
    """What this worker fetches for a tensor."""
    if part.is_here(node_of(tensor)):
        return tensor
    return next(m for m in part.fetched(tensor) if m.target == part.index).receive + ":0"


def own_targets(part, targets, reached, stop, plan):
    """What this worker runs so that all that a step reaches here is run."""
    graph = part.whole
    found = [name for name in targets if part.is_here(name)]
    here = [name for name in graph.in_order(reached) if part.is_here(name)]
    local = set(here)
    for name in here:
        node = graph.nodes[name]
        if node.op in _NOT_RUN or name in stop or stands_inside(node, plan):
            continue
        if not any(c in local for c, _ in graph.consumers.get(name, ())):
            found.append(name)
    return tuple(sorted(set(found), key=found.index))


def communicators(mesh, part, slots, messages):
    """The Communicators that a worker makes before a step, in the order in which it makes them.

    Those of one name are the same in every graph of the process.

    Args:
      mesh: the Mesh.
      part: this worker's Part; needed for messages only.
      slots: the communicators that the step uses, by number.
      messages: the Messages of the step, between workers of a pipeline.
    """
    found = []
    for slot in slots:
        group = mesh.joined(slot)
        if group is not None:  # the others are there from the start
            workers = group.workers
            name = "group%d/%s" % (slot, _named(workers))
            found.append(Communicator(slot, name, tuple(workers)))
    for channel in sorted({message.channel for message in messages}):
        ends = tuple(part.workers[end] for end in part.channels.ends(channel))
        found.append(Communicator(part.first_slot + channel, "channel%d/%d-%d" % ((channel,) + ends), ends))
    return found


def _named(workers):
    """A short name of some workers, by their numbers in order."""
    if isinstance(workers, range):
        return "%d+%d" % (workers.start, workers.step)
    return hashlib.sha256(repr(workers).encode()).hexdigest()[:16]


def wanted_messages(part, rows, digest_of, reader, worker):
    """This worker's Messages among those that another worker wants for what it reads.

    Args:
      part: this worker's Part.
      rows: for each message (tensor, source, target, channel, name, digest of the node that makes the tensor), in their
        order.
      digest_of: function from a tensor to that digest here.
      reader, worker: numbers of the two workers, for the error.

    Raises:
      CaptureError: this worker's graph does not have what is wanted.
    """
    found = []
    for row in rows:
        message, digest = Message(*row[:-1]), row[-1]
        if part.index not in (message.source, message.target):
            continue
        name = node_of(message.tensor)
        here = name in part.whole.nodes and message.source in part.holders.get(name, ())
        if not here or digest_of(message.tensor) != digest:
            raise CaptureError(
                "worker %d reads '%s', which the graph of worker %d does not have, or has otherwise. What a worker "
                "reads from other stages must be built on every worker: call tf.train.Saver, tf.summary and the like "
                "on all of them (only worker 0 writes files all the same)." % (reader, message.tensor, worker)
            )
        found.append(message)
    return found
