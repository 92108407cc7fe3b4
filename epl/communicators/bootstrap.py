"""A worker's side of the bootstrap service, which is how workers find each other and hear of each other's end.

Worker 0 serves (`BootstrapServer`), every worker including worker 0 has a `BootstrapClient`; `leaders.join` makes them.
"""

import collections
import logging
import threading
import time

from epl.communicators.bootstrap_server import BootstrapServer, split_address
from epl.communicators.connection import CALL_TIMEOUT_S, LEAVE_TIMEOUT_S, Connection, Unreachable, WaitTimeout
from epl.communicators.service import HEARTBEAT_S, heartbeat_interval_s
from epl.communicators.silence import Silence, lost_text
from epl.communicators.wire import EVERY_GENERATION, Ending, job_token
from epl.errors import CommunicationError
from epl.version import __version__

__all__ = ["BootstrapClient", "BootstrapServer", "Ending", "EVERY_GENERATION", "WaitTimeout", "job_token"]

_LOG = logging.getLogger("epl")
# On top of the time that the service itself may wait, so that its answer, which names who is missing, comes first.
_WAIT_MARGIN_S = 10.0


# ages: worker that has joined and not left to the seconds since its last sign of life; left: those that ended in good
# order; through: worker to the silent leader of its host, for whose sake it is not heard; places: worker to [how far it
# has come, at which topic it waits for all others or None], as it says with its signs of life.
Members = collections.namedtuple("Members", "ages left through places")
Members.__new__.__defaults__ = ({}, {})


class BootstrapClient:
    """Connects to the bootstrap service of worker 0. Its methods may be called from any thread.

    Args:
      address: "host:port" of worker 0, or where the leader of this host serves.
      token: the job's token (`job_token(cluster)`).
      worker_index: index of this worker.
      worker_num: number of workers.
      timeout_s: seconds to wait for worker 0 to be there; and for its answers where they take no waiting for others,
        but of these no more than 30.
      leader: function that says who leads this host, in words, where it serves instead of worker 0.
      root: "host:port" of worker 0, then.
      stopped_s: seconds without an answer after which who serves is lost; None: no number of them.
      trouble: function that says what keeps others from coming in, where this process serves them; None: nothing.

    Attributes:
      trouble: see above.
      place: how far this worker has come, a list of numbers, which whoever waits learns with `members`; None: it does
        not say. gathering: the topic at which it waits for all others, or None.

    Raises:
      NobodyLeads: see there; only with `leader`.
      CommunicationError: worker 0 cannot be reached in time, or refuses this worker; says why.
    """

    def __init__(
        self,
        address,
        token,
        worker_index,
        worker_num,
        timeout_s=600.0,
        leader=None,
        root=None,
        stopped_s=None,
        trouble=lambda: None,
    ):
        self._root = root or address
        split_address(self._root)
        self._token = token
        self._connection = Connection(address, token, worker_index, self._root, leader)
        self._worker = worker_index
        self._worker_num = worker_num
        self._stopped_s = stopped_s
        self._call_timeout_s = min(CALL_TIMEOUT_S, timeout_s)
        self._moving = False  # from the leader, which ends, to worker 0
        self._endings = []
        self._changed = threading.Condition()
        self._callbacks = []
        self._left = False  # this worker has left
        self._stopped = threading.Event()
        self._closed = False  # worker 0 has ended in good order
        self.place = None
        self.gathering = None
        self.trouble = trouble
        self._steps_of_service = None  # how many steps it made, if it has said so
        try:
            self._enter(self._connection, timeout_s)
        except CommunicationError:
            self._connection.close()
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

    # Queues

    def queue_call(self, kind, name, numbers, value, capacity, timeout_s):
        """Puts bytes into a queue, or takes some; see SharedQueues, which numbers calls.

        Raises:
          WaitTimeout: the queue was full, or empty, for `timeout_s` seconds.
          CommunicationError: a worker is lost, or the value is too large.
        """
        header = {"kind": kind, "name": name, "numbers": numbers, "capacity": capacity, "timeout_s": timeout_s}
        return self._call("Queue", header, value, wait_s=timeout_s)[1]

    def queue_size(self, name):
        """How many elements a queue has. Raises CommunicationError: worker 0 is gone."""
        return self._call("QueueSize", {"name": name})[0]["size"]

    # Endings

    def fail(self, worker, kind, step, message, generation):
        """Publishes that `worker` ended. Returns the `Ending` that counts: the first one of the generation.

        Raises:
          CommunicationError: worker 0 is gone.
        """
        ending = Ending(worker, kind, step, message, generation)
        header, _ = self._call("Fail", {"ending": vars(ending)}, timeout_s=LEAVE_TIMEOUT_S)
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
        left = [worker for worker, _ in header["left"]]
        through, places = (dict(map(tuple, header.get(name, []))) for name in ("through", "places"))
        return Members(dict(map(tuple, header["ages"])), left, through, places)

    def departed(self):
        """Workers that have ended in good order, as far as worker 0 can still say: each to the steps that it made, or
        None where it has not said."""
        if not self._closed:
            try:
                return dict(map(tuple, self._call("Ages", {}, timeout_s=LEAVE_TIMEOUT_S)[0]["left"]))
            except CommunicationError as error:
                _LOG.debug("worker %d cannot ask who has ended: %s", self._worker, error)
        return {0: self._steps_of_service} if self._closed else {}

    def unresponsive(self, max_age_s=5.0):
        """Indices of the workers that were not heard for `max_age_s` seconds, for instance because they are stopped.

        When worker 0 itself does not answer, nothing is known of the others, and the result is [0]; or the leader of
        this host. A leader alone stands for those who are not heard for its sake.
        """
        if self._closed:
            return []
        try:
            header, _ = self._call("Ages", {}, timeout_s=LEAVE_TIMEOUT_S)
        except CommunicationError as error:
            return [getattr(error, "worker", 0)]
        interval_s = heartbeat_interval_s(self._worker_num)
        allowed = max_age_s + interval_s - HEARTBEAT_S
        if "through" in header:  # and so long it takes from leaders to worker 0
            allowed += interval_s
        through = dict(map(tuple, header.get("through", [])))
        return sorted({through.get(worker, worker) for worker, age in header["ages"] if age > allowed})

    @property
    def served_by(self):
        """Index of the worker through which everything goes: 0, or that of the leader of this host."""
        return self._connection.served_by

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
            self._call("Leave", {"steps": steps}, timeout_s=LEAVE_TIMEOUT_S)
        except CommunicationError as error:
            # Worker 0 may have ended before; there is nobody left to tell.
            _LOG.debug("worker %d could not take leave: %s", self._worker, error)
        self._connection.close()

    # The rest is internal.

    def _call(self, name, header, body=b"", wait_s=None, timeout_s=None):
        if timeout_s is None:
            timeout_s = self._call_timeout_s if wait_s is None else wait_s + _WAIT_MARGIN_S
        while True:
            connection = self._connection
            try:
                return connection.call(name, header, body, timeout_s)
            except Unreachable:
                with self._changed:
                    self._changed.wait_for(lambda: not self._moving, timeout_s)
                    if self._connection is connection or self._left:
                        raise
            # All calls may come again, and this one may not have come to where this worker was before.

    def _enter(self, connection, timeout_s):
        """Joins there. From here on the service notices when this worker dies, and this worker when it does."""
        header = {"worker_num": self._worker_num, "version": __version__}
        connection.enter("Join", header, timeout_s, self._call_timeout_s)
        heard = threading.Event()
        threading.Thread(target=self._watch, args=(connection, heard), name="epl-watch", daemon=True).start()
        if not heard.wait(self._call_timeout_s):
            raise CommunicationError("%s did not answer within %g s." % (connection.who, self._call_timeout_s))

    def _move(self, before):
        """Goes on with worker 0, as the leader of this host ends."""
        token, nonce = self._token, before.proof.nonce
        after = Connection(self._root, token, self._worker, self._root, nonce=nonce)
        try:
            self._enter(after, self._call_timeout_s)
        except CommunicationError as error:
            after.close()
            self._publish(Ending(0, "lost", -1, after.gone(error), EVERY_GENERATION))
            after = before
        with self._changed:
            self._connection = after
            self._moving = False
            self._changed.notify_all()
        before.stop_watching()  # so the leader knows

    def _send_heartbeats(self):
        interval_s, limit_s = heartbeat_interval_s(self._worker_num), 5 * HEARTBEAT_S
        silence = Silence(self._worker, self._stopped_s, interval_s)
        while not self._stopped.wait(interval_s):
            began, answered = time.monotonic(), True
            try:
                self._call("Heartbeat", {"place": [self.place, self.gathering]}, timeout_s=limit_s)
            except CommunicationError as error:
                # The watch stream is what notices the end of worker 0; a late answer is no end.
                _LOG.debug("heartbeat of worker %d: %s", self._worker, error)
                answered = self._closed or self._left
            for worker, age in silence.called(self.served_by, answered, time.monotonic() - began, limit_s):
                self._publish(Ending(worker, "lost", -1, lost_text(worker, age), EVERY_GENERATION))
                return

    def _watch(self, connection, heard):
        def told(header):
            heard.set()
            return self._told(connection, header)

        why = connection.watch({}, told)
        with self._changed:
            if why is None or self._left or self._moving or connection is not self._connection:
                return
        self._publish(Ending(connection.served_by, "lost", -1, connection.gone(why), EVERY_GENERATION))

    def _told(self, connection, header):
        """Takes what the service pushes; returns whether that is the last of it."""
        if "ending" in header:
            self._publish(Ending(**header["ending"]))
        if header.get("closed"):
            with self._changed:
                self._steps_of_service = header.get("steps")
                self._closed = True
            return True
        if header.get("move"):
            with self._changed:
                self._moving = not any(ending.worker == 0 and ending.kind == "lost" for ending in self._endings)
            if self._moving:  # there is somebody to go to
                self._move(connection)
            return True
        return False

    def _publish(self, ending):
        with self._changed:
            if ending in self._endings:  # which the next service tells again
                return
            self._endings.append(ending)
            callbacks = list(self._callbacks)
            self._changed.notify_all()
        for callback in callbacks:
            _tell(callback, ending)


def _tell(callback, ending):
    try:
        callback(ending)
    except Exception:  # pylint: disable=broad-except
        # The thread that listens must live on for the others.
        _LOG.exception("a listener failed while it was told that worker %d ended", ending.worker)
