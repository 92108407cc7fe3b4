"""The communicators of one worker: one for control messages and several for tensors, made anew after each failure."""

import ctypes
import struct
import threading
import time

from epl.communicators import gpu, native
from epl.communicators.addresses import own_address
from epl.communicators.bootstrap import WaitTimeout, job_token
from epl.errors import CommunicationError

_ERROR_BYTES = 4096
# The first round of an exchange: the length, and as much of the message as fits. Most messages need no second round.
_FIRST_ROUND_BYTES = 64
_LENGTH = struct.Struct("<Q")
# While workers wait for each other to connect, they look this often whether one of them has ended.
_SLICE_S = 1.0
# What the native library calls communication.hierarchical, when communication.backend is "auto".
_AUTO_BACKENDS = {"auto": "auto", "on": "hierarchical", "off": "flat"}
_INLINE_BYTES = _FIRST_ROUND_BYTES - _LENGTH.size


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
        self._groups = {}
        self._store = None
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
        self.close()
        if self._cluster.worker_num > 1:
            self._await_workers(generation)
            prefix = "comm/g%d/" % generation
            try:
                self._store = _StoreAdapter(self._client, generation, prefix)
                self._control = self._create("g%d/control" % generation)
                for slot in range(self._config.communication.num_communicators):
                    self._data.append(self._create("g%d/data%d" % (generation, slot), tensors=True))
                for slot, comm in enumerate(self._data):
                    native.comm().epl_pool_set(slot, comm)
            except CommunicationError:
                self.close()
                raise
            if self._cluster.worker_index == 0:
                # The keys of the generation before; a slower worker may still be reading this one's.
                if self._used_prefix:
                    self._client.clear(self._used_prefix)
                self._used_prefix = prefix
        self.generation = generation

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
          groups: objects with `slot`, a number from `communication.num_communicators`, `name`, and `members`, a tuple
            of workers. All members must give those that they share in the same order.

        Raises:
          CommunicationError: a member did not come within `communication.timeout_s` seconds, or the pool is not
            connected.
        """
        for group in groups:
            if self._cluster.worker_index not in group.members or group.slot in self._groups:
                continue
            self._connected_control()
            name = "g%d/%s" % (self.generation, group.name)
            comm = self._create(name, tensors=True, members=group.members)
            self._groups[group.slot] = comm
            native.comm().epl_pool_set(group.slot, comm)

    def expect(self, orders):
        """Declares the tags of the next step: `orders[i]` is the list for communicator i, in their order.

        Args:
          orders: list, or dict of a communicator's slot to its list.

        Raises:
          CommunicationError: the step before is not through, or there is no communicator for a list.
        """
        if self._cluster.worker_num == 1:
            return
        self._connected_control()
        comms = dict(enumerate(self._data))
        comms.update(self._groups)
        orders = dict(orders if isinstance(orders, dict) else enumerate(orders))
        for slot, tags in sorted(orders.items()):
            if slot not in comms:
                raise CommunicationError(
                    "There is a list of tags for communicator %d but there are %d communicators "
                    "(communication.num_communicators)." % (slot, len(comms))
                )
            code = native.comm().epl_comm_expect(comms[slot], (ctypes.c_int64 * len(tags))(*tags), len(tags))
            if code != native.OK:
                raise _error(
                    code,
                    "communicator %d does not accept the tags of the next step: the step before is not through" % slot,
                )

    def abort(self, reason):
        """Fails everything under way and everything later, here and at the other workers. The first reason counts."""
        with self._lock:
            for comm in [self._control] + self._data + list(self._groups.values()):
                if comm is not None:
                    native.comm().epl_comm_abort(comm, reason.encode("utf-8"))

    def close(self):
        """Ends the communicators. What is under way fails. May be called again."""
        with self._lock:
            control, data = self._control, dict(enumerate(self._data))
            data.update(self._groups)
            self._control, self._data, self._groups, self.generation = None, [], {}, None
        for slot, comm in data.items():
            native.comm().epl_pool_set(slot, None)
            native.comm().epl_comm_destroy(comm)
        if control is not None:
            native.comm().epl_comm_destroy(control)

    def _await_workers(self, generation):
        """Workers come to their first step at very different times; only then do the time-outs of connecting start."""
        try:
            self._client.barrier(
                "generation %d of the communicators" % generation,
                self._config.communication.start_timeout_s,
                generation,
            )
        except CommunicationError as error:
            if isinstance(error, WaitTimeout):
                error = "%s communication.start_timeout_s says how long workers wait for each other." % error
            raise CommunicationError(
                "Worker %d could not connect to the others: %s" % (self._cluster.worker_index, error)
            )

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
        return comm

    def _exchange_blocks(self, block):
        """All-gather of blocks of the same length."""
        size = self._cluster.worker_num
        output = ctypes.create_string_buffer(max(1, size * len(block)))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        code = native.comm().epl_comm_exchange(self._connected_control(), block, len(block), output, error, len(error))
        if code != native.OK:
            raise _error(code, error.value.decode("utf-8", "replace"))
        return [output.raw[rank * len(block) : (rank + 1) * len(block)] for rank in range(size)]

    def _connected_control(self):
        if self._control is None:
            raise CommunicationError("The communicators are not connected; call connect() first.")
        return self._control


class _StoreAdapter:
    """Lets the native library use the bootstrap service. Must live as long as a call into the library that got it."""

    def __init__(self, client, generation, prefix):
        self._client = client
        self._generation = generation
        self._prefix = prefix
        self._problem = None
        # ctypes frees callbacks that nothing refers to: these attributes keep them.
        self._set_callback = native.STORE_SET(self._set)
        self._get_callback = native.STORE_GET(self._get)
        self.native = native.Store(None, self._set_callback, self._get_callback)

    def take_problem(self):
        """The latest error of the service, once."""
        problem, self._problem = self._problem, None
        return problem

    def _set(self, _, key, value, length):
        return self._attempt(
            lambda: self._client.set(self._prefix + key.decode("utf-8"), ctypes.string_at(value, length))
        )

    def _get(self, _, key, value, capacity, length, timeout_s):
        def get():
            found = self._wait_for(self._prefix + key.decode("utf-8"), timeout_s)
            length[0] = len(found)
            ctypes.memmove(value, found, min(capacity, len(found)))

        return self._attempt(get)

    def _wait_for(self, key, timeout_s):
        """The value of `key`; does not wait for workers that will not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._client.get(key, min(left, _SLICE_S))
            except WaitTimeout:
                if left <= _SLICE_S:
                    raise
            ending = self._client.ending(self._generation)
            if ending is not None:
                raise CommunicationError("worker %d has failed: %s" % (ending.worker, ending.message))
            departed = self._client.departed()
            if departed:
                raise CommunicationError("worker %d has ended already" % departed[0])

    def _attempt(self, action):
        try:
            action()
            return 0
        except Exception as error:  # pylint: disable=broad-except
            # No exception can pass through C; the caller of the library raises it again.
            self._problem = error
            return 1


def _error(code, text):
    error = CommunicationError(text)
    error.code = native.CODES.get(code, "INTERNAL")
    return error
