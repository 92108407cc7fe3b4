"""What the worker that leads a host does for its others, the members: it serves them as worker 0 would.

Members keep their connections to the leader alone, the leader has one to worker 0. What it passes on says for whom it
is, and worker 0 takes it for those that have joined through it; every connection proves the token. What several members
ask or bring at a time goes to worker 0 as one call. A leader that ends before its members sends them to worker 0.
"""

import atexit
import logging
import threading
import time

from epl.communicators import wire
from epl.communicators.bootstrap_state import BootstrapState, WaitError
from epl.communicators.connection import CALL_TIMEOUT_S, LEAVE_TIMEOUT_S, Connection
from epl.communicators.merged_calls import Flights, Gatherings
from epl.communicators.service import PAGE_BYTES, Service, divided, paged
from epl.communicators.silence import Silence, lost_text
from epl.communicators.wire import EVERY_GENERATION, Ending
from epl.errors import CommunicationError
from epl.version import __version__

_LOG = logging.getLogger("epl")
_REPORT_S = 1.0
_REPORT_TIMEOUT_S = 5.0
# With many hosts worker 0 would be busy with what their leaders report only.
_REPORTS_PER_S = 100.0
# Of the time that a member waits, so that the answer that worker 0 is late comes to it.
_ANSWER_S = 0.5
# Who asks how old the others' signs of life are may hear what was so a moment ago.
_AGES_KEPT_S = 0.25
# Members that end at the same time as their leader are not worth the way to worker 0.
_LINGER_S = 2.0
# For the others to have gone there.
_MOVE_S = 3.0
_POLL_S = 0.2
_STOP_GRACE_S = 1.5
_WAIT_MARGIN_S = 9.0


class BootstrapRelay(Service):
    """Serves the members of a host.

    Args:
      seat: the Seat, which this process has; it is given up at the end.
      token: the job's token.
      worker: index of this worker.
      worker_num: number of workers.
      hosts: number of hosts.
      stopped_s: seconds without an answer after which worker 0 is lost; None: no number of them.

    Raises:
      CommunicationError: the address is taken.
    """

    def __init__(self, seat, token, worker, worker_num, hosts, stopped_s=None):
        super().__init__(token, BootstrapState(worker_num))
        self._worker = worker
        self._worker_num = worker_num
        self._seat = seat
        self._stopped_s = stopped_s
        self._report_s = max(_REPORT_S, hosts / _REPORTS_PER_S)
        self._link = Connection(seat.root, token, worker, seat.root)
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._closing = False
        self._gatherings = Gatherings(self._ask, self._state.members, worker_num)
        self._gets = Flights()
        self._ages_asked = Flights(_AGES_KEPT_S)
        self._server = self._make_server()
        try:
            bound = self._server.add_insecure_port(seat.address)
        except RuntimeError:  # newer gRPC raises where older ones return 0
            bound = 0
        if not bound:
            raise CommunicationError(
                "Worker %d cannot listen at %s for the workers of its host." % (worker, seat.address)
            )
        self._server.start()
        atexit.register(self.close)

    def connect(self, timeout_s):
        """Connects with worker 0; until then members wait.

        Raises:
          CommunicationError: worker 0 cannot be reached in time, or refuses this worker; says why.
        """
        limit_s = min(CALL_TIMEOUT_S, timeout_s)
        self._link.enter("Lead", {"worker_num": self._worker_num, "version": __version__}, timeout_s, limit_s)
        threading.Thread(target=self._listen, name="epl-watch", daemon=True).start()
        if not self._ready.wait(limit_s):
            raise CommunicationError("%s did not answer within %g s." % (self._link.who, limit_s))
        threading.Thread(target=self._report, name="epl-heartbeat", daemon=True).start()

    def close(self):
        """Ends in good order: members that are still there go on with worker 0. May be called again."""
        atexit.unregister(self.close)
        if self._closing:
            return
        self._state.wait_for_members(_LINGER_S)
        self._closing = True
        self._state.close({"move": True})
        self._state.wait_for_members(_MOVE_S)
        self._stopped.set()
        self._server.stop(_STOP_GRACE_S).wait(2 * _STOP_GRACE_S)
        self._seat.leave()
        try:
            self._link.call("Detach", {}, b"", LEAVE_TIMEOUT_S)
        except CommunicationError as error:
            _LOG.debug("worker %d could not take leave as the leader of its host: %s", self._worker, error)
        self._link.close()

    def abandon(self):
        """Stops at once, before anybody has joined."""
        atexit.unregister(self.close)
        self._closing = True
        self._stopped.set()
        self._server.stop(None).wait(_STOP_GRACE_S)
        self._seat.leave()
        self._link.close()

    def _calls(self):
        return {
            "Join": self._join,
            "Leave": self._leave,
            "Heartbeat": self._heartbeat,
            "Ages": self._ages,
            "Set": self._pass_on("Set"),
            "Get": self._get,
            "Clear": self._pass_on("Clear"),
            "Gather": self._gather,
            "Fail": self._pass_on("Fail"),
            "Queue": self._queue,
            "QueueSize": self._pass_on("QueueSize"),
        }

    # One method per call: (Caller, header, body, gRPC's context) -> (header, body)

    def _join(self, caller, header, _, context):
        if not self._ready.wait(_time_of(context)):
            raise WaitError(
                "timeout",
                "worker %d, which leads this host, has not reached worker 0 at %s yet"
                % (self._worker, self._seat.root),
            )
        self._up("Join", caller, dict(header, identity=caller.identity), b"", context)
        self._state.join(caller.worker, caller.identity)
        return {"leader": self._worker}, b""

    def _leave(self, caller, header, _, context):
        try:
            return self._up("Leave", caller, header, b"", context)
        finally:
            self._state.leave(caller.worker)

    def _heartbeat(self, caller, header, __, ___):
        self._state.heard(caller.worker, header.get("place"))
        return {}, b""

    def _ages(self, caller, _, __, context):
        return self._ages_asked.ask("Ages", _time_of(context), lambda _: self._up("Ages", caller, {}, b"", context))

    def _get(self, caller, header, _, context):
        """Keys are set once, so that an answer that is on its way serves who asks now."""

        def ask(left):
            return self._up("Get", caller, dict(header, timeout_s=round(left, 2)), b"", context, left)

        question = "the key '%s'" % header["key"], header.get("writer")
        return {}, self._gets.ask(question, float(header["timeout_s"]), ask)[1]

    def _gather(self, caller, header, body, context):
        topic, rank, size = header["topic"], header["rank"], header["size"]
        limit_s = float(header["timeout_s"])
        values, missing = self._gatherings.gather(topic, rank, size, body, caller.worker, limit_s, context.is_active)
        if missing:
            return {"missing": missing}, b""
        lengths, page = paged(values, header["begin"])
        if header["begin"] + len(lengths) == size:
            self._gatherings.give(topic, size, rank)
        return {"missing": [], "lengths": lengths}, page

    def _queue(self, caller, header, body, context):
        return self._up("Queue", caller, header, body, context, float(header["timeout_s"]))

    def _pass_on(self, name):
        return lambda caller, header, body, context: self._up(name, caller, header, body, context)

    # Worker 0

    def _up(self, name, caller, header, body, context, wait_s=None):
        """Worker 0's answer to a call for a member."""
        limit_s = CALL_TIMEOUT_S if wait_s is None else wait_s + _WAIT_MARGIN_S
        header = dict(header, **{"for": caller.worker})
        limit_s = max(0.1, min(limit_s, _time_of(context)))
        return self._link.call(name, header, body, limit_s, wire.MAX_RELAYED_BYTES)

    def _ask(self, topic, size, entries, timeout_s):
        """See Gatherings."""
        refused, values, pages = {}, [], _pages(entries)
        while True:
            page = pages.pop(0) if pages else []
            header = {"topic": topic, "size": size, "begin": len(values), "timeout_s": 0.0 if pages else timeout_s}
            header["entries"] = [[rank, worker, len(value)] for rank, worker, value in page]
            body = b"".join(value for _, _, value in page)
            limit_s = header["timeout_s"] + _WAIT_MARGIN_S
            answer, body = self._link.call("Several", header, body, limit_s, wire.MAX_RELAYED_BYTES)
            refused.update(map(tuple, answer["refused"]))
            if pages:
                continue
            if answer["missing"]:
                return None, answer["missing"], refused
            values += divided(answer["lengths"], body)
            if len(values) >= size:
                return values, [], refused

    def _report(self):
        silence = Silence(self._worker, self._stopped_s, self._report_s)
        while not self._stopped.wait(self._report_s):
            places = self._state.places()
            signs = [[worker, round(age, 3), places.get(worker)] for worker, age in sorted(self._state.ages().items())]
            began, answered = time.monotonic(), True
            try:
                self._link.call("Report", {"signs": signs}, b"", _REPORT_TIMEOUT_S)
            except CommunicationError as error:
                _LOG.debug("report of worker %d: %s", self._worker, error)
                answered = self._closing
            for _, age in silence.called(0, answered, time.monotonic() - began, _REPORT_TIMEOUT_S):
                self._state.publish(Ending(0, "lost", -1, lost_text(0, age), EVERY_GENERATION))
                return

    def _listen(self):
        why = self._link.watch({"leads": True}, self._told)
        if why is not None and not self._closing:
            self._state.publish(Ending(0, "lost", -1, self._link.gone(why), EVERY_GENERATION))

    def _told(self, header):
        self._ready.set()
        if "ending" in header:
            self._state.publish(Ending(**header["ending"]))
        if header.get("closed"):
            self._state.close(header)
            return True
        return False

    def _news(self, context):
        yield from super()._news(context)
        # That a member ends the stream says that it has come to worker 0.
        while self._closing and context.is_active() and not self._stopped.wait(_POLL_S):
            yield {}

    def _lose(self, caller):
        """A member's stream ended: it has left, has gone to worker 0, which then knows better, or is gone."""
        worker = caller.worker
        if not self._state.has_left(worker):
            threading.Thread(target=self._tell_lost, args=(worker,), name="epl-bootstrap", daemon=True).start()

    def _tell_lost(self, worker):
        try:
            self._link.call("Lost", {"worker": worker}, b"", LEAVE_TIMEOUT_S)
        except CommunicationError as error:
            _LOG.debug("worker %d cannot tell that worker %d is gone: %s", self._worker, worker, error)
        self._state.leave(worker)


def _time_of(context):
    """Seconds that the caller still waits, less those for the answer."""
    left = context.time_remaining()
    return CALL_TIMEOUT_S if left is None else max(0.0, left - _ANSWER_S)


def _pages(entries):
    """The entries in lists, none of which has more bytes than one message should; a large value has its own."""
    pages, length = [[]], 0
    for entry in entries:
        if pages[-1] and length + len(entry[2]) > PAGE_BYTES:
            pages.append([])
            length = 0
        pages[-1].append(entry)
        length += len(entry[2])
    return pages
