"""The communicators of one worker: one for control messages and several for tensors, made anew after each failure."""

import ctypes
import math
import struct
import threading

from epl.communicators import gpu, native
from epl.communicators.addresses import own_address
from epl.communicators.bootstrap import WaitTimeout, job_token
from epl.communicators.store import StoreAdapter
from epl.communicators.waiting import Missing, gather
from epl.errors import CommunicationError

_ERROR_BYTES = 4096
# The first round of an exchange: the length, and as much of the message as fits. Most messages need no second round.
_FIRST_ROUND_BYTES = 64
_LENGTH = struct.Struct("<Q")
_FIGURES = struct.Struct("<dd")
_PREFIX = "comm/g%d/"
# What the native library calls communication.hierarchical, when communication.backend is "auto".
_AUTO_BACKENDS = {"auto": "auto", "on": "hierarchical", "off": "flat"}
_INLINE_BYTES = _FIRST_ROUND_BYTES - _LENGTH.size
# Kinds of steps of which the tags are kept as the native library takes them.
_KEPT_ORDERS = 1024


class Pool:
    """Communicators between all workers of the job.

    A pool of one worker has none: `exchange` gives back the worker's own message and the rest does nothing.

    Args:
      cluster: the `Cluster`.
      config: the `Config`; `communication.num_communicators`, `backend`, `hierarchical`, `timeout_s`,
        `start_timeout_s` and `stall_warning_s` are read when connecting.
      client: the `BootstrapClient` through which workers find each other; None if there is one worker.

    Attributes:
      generation: the generation that is connected, or None.
    """

    def __init__(self, cluster, config, client=None):
        self._cluster = cluster
        self._config = config
        self._client = client
        self._control = None
        self._data = []
        self._all = []  # the communicators that there are, whatever for
        self._groups = {}  # communicators between some of the workers: by name, and by their present slot
        self._slots = {}
        self._by_slot = {}  # the communicator of each slot of tensors
        self._orders = {}  # by identity of what `expect` was given: that, and it as the native library takes it
        self._buffers = None  # of the first round of an exchange: for its results, for an error
        self._ended = None  # why the pool was aborted
        self._store = None
        self._opened = None  # the generation that has a communicator for control messages
        self._used_prefix = None
        self._lock = threading.Lock()  # abort() may come from another thread while close() frees what it would abort
        self.generation = None

    @property
    def connected(self):
        """Whether the pool can be used. True until `close` or the next `connect`, also when it was aborted."""
        return self.generation is not None

    @property
    def backend(self):
        """What carries the data: "shm", "tcp", "gloo", "hierarchical", "nccl" (between GPUs), or "none" (one worker).

        Raises:
          CommunicationError: the pool is not connected.
        """
        if self._cluster.worker_num == 1:
            return "none"
        control = self._connected_control()
        return native.comm().epl_comm_backend(self._data[0] if self._data else control).decode("ascii")

    def connect(self, generation=0):
        """Makes the communicators, with all other workers; closes those of an earlier generation first.

        Every worker must connect with the same `generation`, and no generation may be used twice in a job.

        Raises:
          CommunicationError: not all workers came within `communication.start_timeout_s` seconds, or they differ in
            their settings.
        """
        if self._opened != generation or self.connected:
            self.close()
        if self._cluster.worker_num > 1:
            self._await_workers(generation, "connect")
            prefix = _PREFIX % generation
            try:
                self._open(generation)
                for slot in range(self._config.communication.num_communicators):
                    self._data.append(self._create("g%d/data%d" % (generation, slot), tensors=True))
                for slot, comm in enumerate(self._data):
                    self._take_slot(slot, comm)
            except CommunicationError:
                self.close()
                raise
            if self._cluster.worker_index == 0:
                # The keys of the generation before; a slower worker may still be reading this one's.
                if self._used_prefix:
                    self._client.clear(self._used_prefix)
                self._used_prefix = prefix
        self.generation = generation

    def measure(self, generation, key):
        """How fast all-reduces of host memory are between all workers.

        All workers take part, with the same arguments, and all get what worker 0 measured. Who comes again, after a
        failure that worker 0 was not part of, gets that as well and does not wait for the others. A pool that is not
        connected is not afterwards either, for until then workers may come to their first step at any time; but what
        is made for this is used by `connect`.

        Args:
          generation: as for `connect`, which may follow with the same one.
          key: under which worker 0 leaves its figures with the bootstrap service.

        Returns:
          (seconds that the smallest takes, bytes a second of a large one).

        Raises:
          CommunicationError: as by `connect`; or a worker failed meanwhile.
        """
        try:
            return _FIGURES.unpack(self._client.get(key, 0.0, writer=0))
        except WaitTimeout:
            self._await_workers(generation, "measure")
        if self._opened != generation:
            self.close()
        self._open(generation)
        figures = self._own_figures()
        if self._cluster.worker_index == 0:
            self._client.set(key, _FIGURES.pack(*figures))
            return figures
        return _FIGURES.unpack(self._store.wait_for(key, self._config.communication.timeout_s))

    def exchange(self, message):
        """Gives every worker's `message` (bytes of any length) to every worker: a list in the order of workers.

        Raises:
          CommunicationError: a worker did not take part within `communication.timeout_s` seconds, or the pool was
            aborted.
        """
        if self._cluster.worker_num == 1:
            return [message]
        first = (_LENGTH.pack(len(message)) + message[:_INLINE_BYTES]).ljust(_FIRST_ROUND_BYTES, b"\0")
        blocks = self._exchange_blocks(first)
        lengths = [_LENGTH.unpack_from(block)[0] for block in blocks]
        longest = max(lengths)
        if longest <= _INLINE_BYTES:
            return [block[_LENGTH.size : _LENGTH.size + length] for block, length in zip(blocks, lengths)]
        blocks = self._exchange_blocks(message.ljust(longest, b"\0"))
        return [block[:length] for block, length in zip(blocks, lengths)]

    def join(self, groups):
        """Makes communicators between some of the workers, unless they are there already.

        Args:
          groups: objects with `slot`, a number from `communication.num_communicators`, `name`, which is another one for
            other members, and `members`, a tuple of workers. All members must give those that they share in the same
            order.

        Raises:
          CommunicationError: a member did not come within `communication.timeout_s` seconds, or the pool is not
            connected.
        """
        for group in groups:
            if self._cluster.worker_index not in group.members:
                continue
            self._connected_control()
            if group.name not in self._groups:
                name = "g%d/%s" % (self.generation, group.name)
                self._groups[group.name] = self._create(name, tensors=True, members=group.members)
            # Another graph of this process may have used the slot for others.
            if self._slots.get(group.slot) != group.name:
                self._slots[group.slot] = group.name
                self._take_slot(group.slot, self._groups[group.name])

    def _take_slot(self, slot, comm):
        self._by_slot[slot] = comm
        native.comm().epl_pool_set(slot, comm)

    def expect(self, orders):
        """Declares the tags of the next step: `orders[i]` is the list for communicator i, in their order.

        Args:
          orders: list, or dict of a communicator's slot to its list. It must not be changed afterwards, as it is kept
            for the next step of the same kind.

        Raises:
          CommunicationError: the step before is not through, the communicator has ended, or there is none for a list.
        """
        if self._cluster.worker_num == 1:
            return
        self._connected_control()
        declare = native.comm().epl_comm_expect
        for slot, tags, count in self._prepared(orders):
            comm = self._by_slot.get(slot)
            if comm is None:
                raise CommunicationError(
                    "There is a list of tags for communicator %d but there are %d communicators "
                    "(communication.num_communicators)." % (slot, len(self._by_slot))
                )
            code = declare(comm, tags, count)
            if code != native.OK:
                raise _error(code, self._why_not_expected(slot, code))

    def _prepared(self, orders):
        """[(slot, array of tags, their number)], kept for each kind of step: a step has thousands of tags."""
        kept = self._orders.get(id(orders))
        if kept is None:
            lists = sorted(dict(orders if isinstance(orders, dict) else enumerate(orders)).items())
            arrays = [(slot, (ctypes.c_int64 * len(tags))(*tags), len(tags)) for slot, tags in lists]
            if len(self._orders) >= _KEPT_ORDERS:
                self._orders.clear()
            kept = self._orders[id(orders)] = (
                orders,
                arrays,
            )  # as long as it is kept here, nothing else has its identity
        return kept[1]

    def _why_not_expected(self, slot, code):
        text = "communicator %d does not accept the tags of the next step: " % slot
        if native.CODES.get(code) == "INVALID":
            return text + "the step before is not through"
        if self._ended is not None:
            return text + self._ended.decode("utf-8", "replace")
        return text + "it has ended (%s)" % native.CODES.get(code, code)

    def abort(self, reason):
        """Fails everything under way and everything later, here and at the other workers. The first reason counts."""
        with self._lock:
            self._ended = self._ended or reason.encode("utf-8")
            for comm in self._all:
                native.comm().epl_comm_abort(comm, self._ended)

    def close(self):
        """Ends the communicators. What is under way fails. May be called again."""
        with self._lock:
            comms, slots = self._all, list(range(len(self._data))) + list(self._slots)
            self._control, self._data, self._groups, self._slots, self._all = None, [], {}, {}, []
            self._by_slot, self._orders, self._buffers = {}, {}, None
            self.generation, self._opened, self._ended = None, None, None
        for slot in slots:
            native.comm().epl_pool_set(slot, None)
        for comm in comms:
            native.comm().epl_comm_destroy(comm)

    def _await_workers(self, generation, why):
        """Workers come to their first step at very different times; only then do the time-outs of connecting start."""
        communication, own = self._config.communication, self._cluster.worker_index
        limits = dict(limit_s=communication.start_timeout_s, silence_s=communication.timeout_s)
        limits["start_s"] = math.inf  # those who have not started are missing like others
        try:
            topic = "%scome to %s" % (_PREFIX % generation, why)
            what = "the others to come to a step that communicates"
            gather(self._client, topic, own, self._cluster.worker_num, b"", what, generation=generation, **limits)
        except Missing as error:
            raise CommunicationError(
                "Worker %d could not connect to the others: %s did not come within %g s. "
                "communication.start_timeout_s says how long workers wait for each other."
                % (own, self._with_addresses(error.ranks), communication.start_timeout_s)
            )
        except CommunicationError as error:
            raise CommunicationError("Worker %d could not connect to the others: %s" % (own, error))

    def _with_addresses(self, workers):
        return ", ".join("worker %d (%s)" % (worker, self._cluster.hosts[worker]) for worker in workers)

    def _open(self, generation):
        """Makes the communicator for control messages, unless it is there."""
        if self._opened != generation:
            self._store = StoreAdapter(self._client, generation, _PREFIX % generation)
            self._control = self._create("g%d/control" % generation)
            self._opened = generation

    def _create(self, name, tensors=False, members=None):
        """A communicator between some workers, by default all; only one for `tensors` may need GPUs."""
        members = range(self._cluster.worker_num) if members is None else members
        communication = self._config.communication
        backend = communication.backend
        if backend in ("auto", "nccl"):
            backend = _AUTO_BACKENDS[communication.hierarchical]
        options = native.Options(
            backend=backend.encode("ascii"),
            name=name.encode("ascii"),
            rank=members.index(self._cluster.worker_index),
            size=len(members),
            timeout_s=communication.timeout_s,
            stall_warning_s=communication.stall_warning_s,
            host=own_address(self._cluster).encode("ascii"),
            token=job_token(self._cluster).encode("utf-8"),
            workers=(ctypes.c_int * len(members))(*members),
        )
        if tensors and communication.backend in ("auto", "nccl") and self._cluster.device_type == "GPU":
            gpu.set_options(options, self._cluster, self._config, backend)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        comm = native.comm().epl_comm_create(ctypes.byref(options), ctypes.byref(self._store.native), error, len(error))
        if not comm:
            text = error.value.decode("utf-8", "replace")
            problem = self._store.take_problem()
            if problem is not None and str(problem) not in text:
                text += " (%s)" % problem
            raise CommunicationError(
                "Worker %d could not connect to the others: %s" % (self._cluster.worker_index, text)
            )
        with self._lock:
            self._all.append(comm)
            if self._ended is not None:  # it came while this communicator was made
                native.comm().epl_comm_abort(comm, self._ended)
        return comm

    def _exchange_blocks(self, block):
        """All-gather of blocks of the same length."""
        control, length = self._connected_control(), len(block)
        output, error = self._buffers_of(length)
        code = native.comm().epl_comm_exchange(control, block, length, output, error, _ERROR_BYTES)
        if code != native.OK:
            raise _error(code, error.value.decode("utf-8", "replace"))
        everything = output.raw
        return [everything[start : start + length] for start in range(0, length * self._cluster.worker_num, length)]

    def _buffers_of(self, length):
        """(for the blocks of all workers, for an error). Those of a first round, which every step has, are kept: one
        exchange is under way at a time."""
        if length == _FIRST_ROUND_BYTES and self._buffers is not None:
            return self._buffers
        made = (
            ctypes.create_string_buffer(self._cluster.worker_num * length),
            ctypes.create_string_buffer(_ERROR_BYTES),
        )
        if length == _FIRST_ROUND_BYTES:
            self._buffers = made
        return made

    def _own_figures(self):
        latency, bandwidth = ctypes.c_double(), ctypes.c_double()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        code = native.comm().epl_comm_measure(
            self._control, ctypes.byref(latency), ctypes.byref(bandwidth), error, len(error)
        )
        if code != native.OK:
            raise _error(code, error.value.decode("utf-8", "replace"))
        return latency.value, bandwidth.value

    def _connected_control(self):
        if self._control is None:
            raise CommunicationError("The communicators are not connected; call connect() first.")
        return self._control


def _error(code, text):
    error = CommunicationError(text)
    error.code = native.CODES.get(code, "INTERNAL")
    return error
