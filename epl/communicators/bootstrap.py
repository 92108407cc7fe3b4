"""A worker's side of the bootstrap service, which is how workers find each other and hear of each other's end.

Worker 0 serves (`BootstrapServer`), every worker including worker 0 has a `BootstrapClient`.
"""

import collections
import logging
import threading
import time

import grpc

from epl.communicators import wire
from epl.communicators.bootstrap_server import BootstrapServer, split_address
from epl.communicators.proof import ClientProof, Refused
from epl.communicators.wire import EVERY_GENERATION, Ending, job_token
from epl.errors import CommunicationError
from epl.version import __version__

__all__ = ["BootstrapClient", "BootstrapServer", "Ending", "EVERY_GENERATION", "WaitTimeout", "job_token"]

_LOG = logging.getLogger("epl")
_RETRY_S = 0.1
# Whoever comes before worker 0 should not notice it late; each attempt costs next to nothing.
_LONGEST_BACKOFF_MS = 250
_CONNECT_TIMEOUT_MS = 5000
# Calls that do not wait for other workers, at most. Generous: worker 0's interpreter may be busy with the user's own
# code. Whoever gives worker 0 less time to be there gives its answers no more.
_CALL_TIMEOUT_S = 30.0
# On top of the time that the service itself may wait, so that its answer, which names who is missing, comes first.
_WAIT_MARGIN_S = 10.0
_LEAVE_TIMEOUT_S = 3.0
_HEARTBEAT_S = 1.0
# With many workers the service would be busy with heartbeats only.
_HEARTBEATS_PER_S = 100.0
# Whoever waits for longer says so, and again after as long.
_NOTICE_S = 10.0


# ages: worker that has joined and not left to the seconds since its last sign of life; left: those that ended in good
# order.
Members = collections.namedtuple("Members", "ages left")


class WaitTimeout(CommunicationError):
    """What was waited for did not come in time; everything else is in order."""


class BootstrapClient:
    """Connects to the bootstrap service of worker 0. Its methods may be called from any thread.

    Args:
      address: "host:port" of worker 0.
      token: the job's token (`job_token(cluster)`).
      worker_index: index of this worker.
      worker_num: number of workers.
      timeout_s: seconds to wait for worker 0 to be there; and for its answers where they take no waiting for others,
        but of these no more than 30.

    Raises:
      CommunicationError: worker 0 cannot be reached in time, or refuses this worker; says why.
    """

    def __init__(self, address, token, worker_index, worker_num, timeout_s=600.0):
        split_address(address)
        self._address = address
        self._proof = ClientProof(token, worker_index)
        self._worker = worker_index
        self._worker_num = worker_num
        self._call_timeout_s = min(_CALL_TIMEOUT_S, timeout_s)
        self._endings = []
        self._changed = threading.Condition()
        self._callbacks = []
        self._left = False  # this worker has left
        self._stopped = threading.Event()
        self._closed = False  # worker 0 has ended in good order
        self._steps_of_service = None  # how many steps it made, if it has said so
        self._heard_by_service = threading.Event()
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.enable_http_proxy", 0),  # workers talk to each other directly
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", _LONGEST_BACKOFF_MS),
                # What gRPC calls so is how long one attempt may take.
                ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
                ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES + 1024),
                ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES + 1024),
            ],
        )
        # gRPC works on a connection only while a call is under way or someone listens to what becomes of it; calls of
        # `_join` are too short for that as long as worker 0 is not there.
        self._channel.subscribe(_ignore, try_to_connect=True)
        try:
            self._join(timeout_s)
            self._channel.unsubscribe(_ignore)
            self._start_watch()
        except CommunicationError:
            self._channel.close()
            raise
        self._heartbeats = threading.Thread(target=self._send_heartbeats, name="epl-heartbeat", daemon=True)
        self._heartbeats.start()

    # Keys and gatherings

    def set(self, key, value):
        """Sets a key to bytes. From then on it is this worker's.

        Raises:
          CommunicationError: worker 0 is gone, the value is too large, or the key is another worker's.
        """
        self._call("Set", {"key": key}, value)

    def get(self, key, timeout_s, writer=None):
        """The value of `key`, as soon as it has been set: by the worker `writer`, or by any.

        Raises:
          WaitTimeout: nobody set it within `timeout_s` seconds.
          CommunicationError: a worker is lost; or another one than `writer` has set it.
        """
        header = {"key": key, "timeout_s": timeout_s, "writer": writer}
        return self._call("Get", header, wait_s=timeout_s)[1]

    def clear(self, prefix):
        """Forgets all keys that begin with `prefix`; worker 0 those of all workers, the others their own."""
        self._call("Clear", {"prefix": prefix})

    def gather(self, topic, rank, size, value, timeout_s):
        """Brings `value` (bytes) as a rank to a gathering of `size` ranks, and waits for the others'.

        It is one call to worker 0 whatever the size, or one for each 8 MiB of values. Who has come need not come again
        when the time is over, but may ask again with another call.

        Returns:
          (the values in the order of ranks, []); or (None, the ranks that did not come within `timeout_s` seconds).

        Raises:
          CommunicationError: a worker is lost, or another one came as this rank.
        """
        header = {"topic": topic, "rank": rank, "size": size, "timeout_s": timeout_s}
        values = []
        while len(values) < size:
            header["begin"] = len(values)
            answer, body = self._call("Gather", header, b"" if values else value, wait_s=timeout_s)
            if answer["missing"]:
                return None, answer["missing"]
            start = 0
            for length in answer["lengths"]:
                values.append(body[start : start + length])
                start += length
        return values, []

    # Endings

    def fail(self, worker, kind, step, message, generation):
        """Publishes that `worker` ended. Returns the `Ending` that counts: the first one of the generation.

        Raises:
          CommunicationError: worker 0 is gone.
        """
        ending = Ending(worker, kind, step, message, generation)
        header, _ = self._call("Fail", {"ending": vars(ending)}, timeout_s=_LEAVE_TIMEOUT_S)
        return Ending(**header["ending"])

    def watch(self, callback):
        """Has `callback(ending)` called for each ending, those of the past included.

        It runs on a thread of its own, or on the caller's for the past, once for each ending; it must not raise.
        """
        with self._changed:
            known = list(self._endings)
            self._callbacks.append(callback)
        for ending in known:
            _tell(callback, ending)

    def ending(self, generation, timeout_s=0.0):
        """The first `Ending` that concerns this generation, or None if there is none within `timeout_s` seconds.

        What the communicators report first is often only a broken connection; the ending says why.
        """
        if timeout_s <= 0 and not self._endings:
            return None  # as before most steps
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for ending in self._endings:
                    if ending.concerns(generation):
                        return ending
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    @property
    def worker(self):
        """Index of this worker."""
        return self._worker

    @property
    def worker_num(self):
        """Workers of the job."""
        return self._worker_num

    def members(self):
        """The Members as worker 0 knows them.

        Raises:
          CommunicationError: worker 0 is gone.
        """
        if self._closed:
            return Members({}, [0])
        header, _ = self._call("Ages", {})
        return Members(dict(map(tuple, header["ages"])), [worker for worker, _ in header["left"]])

    def departed(self):
        """Workers that have ended in good order, as far as worker 0 can still say: each to the steps that it made, or
        None where it has not said."""
        if not self._closed:
            try:
                return dict(map(tuple, self._call("Ages", {}, timeout_s=_LEAVE_TIMEOUT_S)[0]["left"]))
            except CommunicationError as error:
                _LOG.debug("worker %d cannot ask who has ended: %s", self._worker, error)
        return {0: self._steps_of_service} if self._closed else {}

    def unresponsive(self, max_age_s=5.0):
        """Indices of the workers that were not heard for `max_age_s` seconds, for instance because they are stopped.

        When worker 0 itself does not answer, nothing is known of the others, and the result is [0].
        """
        if self._closed:
            return []
        try:
            header, _ = self._call("Ages", {}, timeout_s=_LEAVE_TIMEOUT_S)
        except CommunicationError:
            return [0]
        allowed = max_age_s + self._heartbeat_interval_s() - _HEARTBEAT_S
        return [worker for worker, age in header["ages"] if age > allowed]

    def leave(self, steps=None):
        """Ends in good order: the others do not take the closed connection for a crash. May be called again.

        Args:
          steps: how many steps this worker made, for those who want another.
        """
        with self._changed:
            if self._left:
                return
            self._left = True
        self._stopped.set()
        try:
            self._call("Leave", {"steps": steps}, timeout_s=_LEAVE_TIMEOUT_S)
        except CommunicationError as error:
            # Worker 0 may have ended before; there is nobody left to tell.
            _LOG.debug("worker %d could not take leave: %s", self._worker, error)
        self._channel.close()

    # The rest is internal.

    def _service(self):
        return "Worker 0 at %s" % self._address

    def _join(self, timeout_s):
        header = {"worker_num": self._worker_num, "version": __version__}
        began = time.monotonic()
        deadline = began + timeout_s
        notice = began + _NOTICE_S
        while True:
            try:
                # A foreign server that accepts and says nothing must not use up all the time with one call.
                limit_s = max(0.1, min(self._call_timeout_s, deadline - time.monotonic()))
                if not self._proof.ready:
                    self._proof.accept(self._method("Hello")(self._proof.nonce, timeout=limit_s))
                return self._rpc("Join", header, b"", limit_s)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            except Refused as error:
                self._let_it_be_logged()
                code, details = grpc.StatusCode.UNAUTHENTICATED, "this is another job: %s" % error
            if code == grpc.StatusCode.UNAUTHENTICATED:
                raise CommunicationError(
                    "%s refused worker %d: %s. Another job uses this address, or EPL_JOB_TOKEN differs between "
                    "workers. Without EPL_JOB_TOKEN the workers' machines must share the user's home folder."
                    % (self._service(), self._worker, details)
                )
            if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                raise CommunicationError("%s refused worker %d: %s." % (self._service(), self._worker, details))
            if time.monotonic() + _RETRY_S >= deadline:
                raise CommunicationError(
                    "Worker 0 at %s could not be reached within %g s: %s. See whether worker 0 was started and runs, "
                    "whether the address is right (the first in the list of workers), and whether a firewall is "
                    "between." % (self._address, timeout_s, details or code.name)
                )
            if time.monotonic() >= notice:
                notice += _NOTICE_S
                _LOG.info(
                    "worker %d has waited %.0f s for worker 0 at %s, and gives up after %g s",
                    self._worker,
                    time.monotonic() - began,
                    self._address,
                    timeout_s,
                )
            time.sleep(_RETRY_S)

    def _let_it_be_logged(self):
        """A call without proof, so that worker 0's log tells of who came in vain."""
        try:
            self._method("Join")(b"", timeout=_LEAVE_TIMEOUT_S)
        except grpc.RpcError as error:
            _LOG.debug("%s", error)

    def _method(self, name):
        return self._channel.unary_unary("/%s/%s" % (wire.SERVICE, name))

    def _rpc(self, name, header, body, timeout_s):
        sealed, opened = self._proof.seal(name, wire.pack(header, body))
        return wire.unpack(opened(self._method(name)(sealed, timeout=timeout_s)))

    def _call(self, name, header, body=b"", wait_s=None, timeout_s=None):
        if timeout_s is None:
            timeout_s = self._call_timeout_s if wait_s is None else wait_s + _WAIT_MARGIN_S
        try:
            return self._rpc(name, header, body, timeout_s)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
        except ValueError as error:  # gRPC's answer to a call on a closed channel
            raise CommunicationError("This worker has left the job already: %s" % error)
        if code == grpc.StatusCode.UNAVAILABLE:
            raise CommunicationError("%s is gone, or the network to it is cut: %s" % (self._service(), details))
        if code == grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded":
            raise CommunicationError("%s did not answer within %g s." % (self._service(), timeout_s))
        kind = WaitTimeout if code == grpc.StatusCode.DEADLINE_EXCEEDED else CommunicationError
        raise kind("%s%s." % (details[:1].upper(), details[1:]))

    def _start_watch(self):
        """From here on the service notices when this worker dies, and this worker when the service does."""
        threading.Thread(target=self._watch, name="epl-watch", daemon=True).start()
        if not self._heard_by_service.wait(self._call_timeout_s):
            raise CommunicationError("%s did not answer within %g s." % (self._service(), self._call_timeout_s))

    def _heartbeat_interval_s(self):
        return max(_HEARTBEAT_S, self._worker_num / _HEARTBEATS_PER_S)

    def _send_heartbeats(self):
        while not self._stopped.wait(self._heartbeat_interval_s()):
            try:
                self._call("Heartbeat", {}, timeout_s=5 * _HEARTBEAT_S)
            except CommunicationError as error:
                # The watch stream is what notices the end of worker 0; a late answer is no end.
                _LOG.debug("heartbeat of worker %d: %s", self._worker, error)

    def _watch(self):
        method = self._channel.unary_stream("/%s/Watch" % wire.SERVICE)
        why = "the stream ended"
        try:
            # No time limit: the stream lives as long as the job, and breaks with the connection.
            sealed, opened = self._proof.seal("Watch", wire.pack({}))
            for index, message in enumerate(method(sealed)):
                header, _ = wire.unpack(opened(message, index))
                self._heard_by_service.set()
                if "ending" in header:
                    self._publish(Ending(**header["ending"]))
                if header.get("closed"):
                    with self._changed:
                        self._steps_of_service = header.get("steps")
                        self._closed = True
                    return
        except grpc.RpcError as error:
            why = error.details() or error.code().name
        except (ValueError, CommunicationError) as error:
            why = str(error)
        if not self._left:
            message = (
                "worker 0 at %s is gone: its process was killed or crashed, its machine is gone, or the network to it "
                "is cut (%s)" % (self._address, why)
            )
            self._publish(Ending(0, "lost", -1, message, EVERY_GENERATION))

    def _publish(self, ending):
        with self._changed:
            self._endings.append(ending)
            callbacks = list(self._callbacks)
            self._changed.notify_all()
        for callback in callbacks:
            _tell(callback, ending)


def _ignore(connectivity):
    del connectivity


def _tell(callback, ending):
    try:
        callback(ending)
    except Exception:  # pylint: disable=broad-except
        # The thread that listens must live on for the others.
        _LOG.exception("a listener failed while it was told that worker %d ended", ending.worker)
