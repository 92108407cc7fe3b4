"""What ranks exchange in a training step, as data: what is sorted, counted, priced, shown and made into nodes."""

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Optional, Tuple

# Operations.
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
SPARSE_ALL_REDUCE, BROADCAST, REDUCE, BARRIER = "sparse_all_reduce", "broadcast", "reduce", "barrier"
SEND, RECEIVE = "send", "receive"

# To these each device hands in its own part; to others each the same, which a worker adds up, or sends once.
OF_PARTS = frozenset([ALL_GATHER, ALL_TO_ALL])

# Types of the operations that carry them, to operations.
OPERATIONS = {
    "EplAllReduce": ALL_REDUCE,
    "EplAllGather": ALL_GATHER,
    "EplReduceScatter": REDUCE_SCATTER,
    "EplAllToAll": ALL_TO_ALL,
    "EplSparseAllReduce": SPARSE_ALL_REDUCE,
    "EplBroadcast": BROADCAST,
    "EplReduce": REDUCE,
    "EplSend": SEND,
    "EplRecv": RECEIVE,
    "EplBarrier": BARRIER,
}
CARRIERS = {operation: op for op, operation in OPERATIONS.items()}
# What carries messages, and parts of checkpoints, between two workers.
SENDS = {"EplBroadcastSend": SEND, "EplBroadcastReceive": RECEIVE}
_SENDERS = {operation: op for op, operation in SENDS.items()}

# Purposes.
GRADIENTS = "gradients"  # dense ones
SUMS = "sums of gradients"  # that travel on after some of the workers have made them (communication.wire_dtype)
SPARSE = "sparse gradients"
PARAMETERS = "parameters"  # that others have updated, or keep
AVERAGES = "averages"  # of variables, in place of gradients
STATE = "state"  # changes of variables outside of optimizers
STATISTICS = "statistics"  # of batch normalisation, and gradients with respect to them
FOUND_INF = "found_inf"  # on whether gradients are finite
NORMS = "norms"  # sums over all rows of a variable
OUTPUTS = "outputs"  # what a fetch gets of all copies of the model
DATA = "data"  # whether there is any left; or whether workers that divide a model have the same, and all of it
MESSAGES = "messages"  # between workers that have parts of the same graph
SHARDS = "shards"  # tensors that devices have parts of
CHECKPOINTS = "checkpoints"
OF_USER = "user"  # collectives of the program's own (epl.ops)

# When a collective comes, as far as what needs what leaves a choice; see epl.plan.exchange.order.
READY = "ready"  # when the last of `after` is there
FIRST = "first"  # before all others
NEXT = "next"  # when what the next one of its kind takes is there too, which it would keep waiting otherwise
LAST = "last"  # behind all others
UNORDERED = "unordered"  # within a worker, where nothing can wait for another process


def tag_of(name):
    """A collective's tag: a number from 0 that is the same in every process and, for practical purposes, unique."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)


@dataclass(frozen=True)
class Collective:
    """One exchange between ranks, which is one node of the compiled graph.

    Attributes:
      name: of the node.
      operation: ALL_REDUCE and so on.
      purpose: what is exchanged for what: GRADIENTS and so on.
      tensors: what it takes, by names in the first copy of the model.
      axes: of the mesh, along which the ranks lie that take part.
      workers: how many take part.
      devices: how many ranks take part, in all of these.
      communicator: its number in each worker's pool.
      tag: the same in every process.
      num_bytes: that this worker hands in, each time, as they travel; None where the data says how many.
      dtype: DataType number of the tensors; None where the list does not know it.
      wire_dtype: of what travels; None: the same.
      tensor_bytes: that this worker would hand in if the tensors travelled as they are; None: `num_bytes`.
      phase: of the step (epl.graph.tags).
      consumers: (node, input position) pairs that take the result, as far as these are known; -1 for a position that
        is not.
      shard_rank: of the devices that have parts of the tensors (epl.plan.layout.mesh); None: all have whole ones.
      stage: of the pipeline, to which it belongs.
      micro_batch: whose copy it is; 0 for what is done once.
      times: per training step; 0 for what a step does not need (what is only fetched, checkpoints).
      every: it comes in one of so many steps.
      takes_part: whether this worker is one of those that do.
      turn: READY, FIRST, NEXT, LAST or UNORDERED.
      after: for READY and NEXT, tensors or nodes of the graph; most often the same as `tensors`.
      shift: by how much of a place it comes later than others of the same turn; negative: earlier.
      given, result: of SHARDS, what each device hands in, and the node that stands for what it gets: of the copy for
        the micro-batch, in the graph of a device.
    """

    name: str
    operation: str
    purpose: str
    tensors: Tuple[str, ...]
    axes: Tuple[str, ...]
    workers: int
    devices: int
    communicator: int
    tag: int
    num_bytes: Optional[int]
    dtype: Optional[int]
    phase: str
    wire_dtype: Optional[int] = None
    tensor_bytes: Optional[int] = None
    consumers: Tuple[Tuple[str, int], ...] = ()
    shard_rank: Optional[int] = None
    stage: int = 0
    micro_batch: int = 0
    times: int = 1
    every: int = 1
    takes_part: bool = True
    turn: str = READY
    after: Tuple[str, ...] = ()
    shift: float = 0.0
    given: str = ""
    result: str = ""

    @property
    def device_bytes(self):
        """That each of its devices hands in, each time; None where the data says how many."""
        if self.num_bytes is None or self.operation not in OF_PARTS:
            return self.num_bytes
        return self.num_bytes * self.workers // self.devices

    def told(self):
        """A line of what is the same of it on all workers."""
        line = "%s: %s of %s, %d workers" % (self.name, self.operation, self.purpose, self.workers)
        line += ", every %d steps" % self.every if self.every > 1 else ""
        line += ", type %d" % self.dtype if self.dtype is not None else ""
        line += ", sent as type %d" % self.wire_dtype if self.wire_dtype is not None else ""
        # Devices may have parts of different size of a tensor.
        alike = self.purpose in (GRADIENTS, AVERAGES) and self.num_bytes is not None and self.shard_rank is None
        return line + (", %d bytes" % self.num_bytes if alike else "")

    @property
    def carrier(self):
        """Type of the operation that carries it between workers."""
        between_two = self.purpose in (MESSAGES, CHECKPOINTS) and self.operation in _SENDERS
        return _SENDERS[self.operation] if between_two else CARRIERS[self.operation]

    @property
    def bytes_per_step(self):
        """That this worker hands in, in one training step on average, as a fraction; 0 where the data says it."""
        return self._in_a_step(self.num_bytes or 0)

    @property
    def more_per_step(self):
        """By how much that is more than it would be if the tensors travelled as they are; negative: less."""
        return self._in_a_step((self.num_bytes or 0) - self.tensor_bytes if self.tensor_bytes is not None else 0)

    def _in_a_step(self, num_bytes):
        return Fraction(num_bytes * self.times, self.every)


def collective(name, operation, purpose, tensors, group, slot, num_bytes, dtype, phase, **fields):
    """A Collective of a Group.

    Args:
      group: an epl.plan.layout.mesh.Group: who takes part.
      slot: number of the communicator among the group's.
      **fields: the other attributes. `after` is the same as `tensors` where it is not given, the tag follows from the
        name.
    """
    fields.setdefault("after", tensors)
    fields.setdefault("tag", tag_of(name))
    return Collective(
        name,
        operation,
        purpose,
        tensors,
        group.axes,
        group.num_workers,
        group.size,
        group.communicator(slot),
        num_bytes=num_bytes,
        dtype=dtype,
        phase=phase,
        **fields,
    )
