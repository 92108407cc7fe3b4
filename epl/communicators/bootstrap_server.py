"""The bootstrap service, which runs in worker 0's process: keys, gatherings and endings over gRPC."""

import atexit
import errno
import os
import socket
import threading

from epl.communicators import wire
from epl.communicators.bootstrap_state import BootstrapState, WriteError
from epl.communicators.gate import Gate
from epl.communicators.service import Service, divided, heartbeat_interval_s, paged, refuse
from epl.communicators.silence import Silence, look
from epl.errors import CommunicationError
from epl.version import __version__

# Where worker 0 listens, if that is not its address in the list of workers.
_BIND_ADDRESS = "EPL_BIND_ADDRESS"
_OF_LEADERS = ("Lead", "Report", "Several", "Lost", "Detach")
_FOR_MEMBERS = ("Leave", "Ages", "Set", "Get", "Clear", "Fail", "Queue", "QueueSize")
_BROKE = (
    "the connection to worker %d broke: its process was killed or crashed, its machine is gone, or the network to it "
    "is cut"
)
_MAX_WAIT_S = 24 * 3600.0
_STOP_GRACE_S = 1.0
_LINGER_S = 5.0


class BootstrapServer(Service):
    """Serves keys, gatherings and endings to the workers of one job, with the token of that job.

    Workers come by themselves, or through the worker that leads their host, which speaks for those that have joined
    through it (see bootstrap_relay.py).

    Args:
      address: "host:port" that this worker has in the list of workers; port 0 takes any free one.
      token: the job's token; calls that do not prove it are refused.
      worker_num: number of workers.
      timeout_s: seconds; the longest that one call may wait for other workers.
      stopped_s: seconds without a sign of life after which a worker is lost; None: no number of them.

    Attributes:
      port: the port that is served.

    Raises:
      CommunicationError: the port is taken, or the address does not belong to this machine's resolver.
    """

    def __init__(self, address, token, worker_num, timeout_s=600.0, stopped_s=None):
        super().__init__(token, BootstrapState(worker_num))
        self._worker_num = worker_num
        self._timeout_s = min(timeout_s, _MAX_WAIT_S)
        listener = _bind(address)
        self.port = listener.getsockname()[1]
        self._gate = Gate(listener, worker_num)
        self._server = self._make_server()
        self._server.add_insecure_port(self._gate.inside)
        self._server.start()
        self._gate.start()
        self._stopped = threading.Event()
        look(self._state, Silence(0, stopped_s, heartbeat_interval_s(worker_num)), self._stopped)
        atexit.register(self.close)  # a script that ends with an exception ends

    def close(self):
        """Tells the workers that still listen that worker 0 ends in good order, and stops. May be called again.

        Others may still be reading what was left for them here: they have a moment for that.
        """
        atexit.unregister(self.close)
        self._stopped.set()
        self._state.wait_for_leaving(_LINGER_S)
        self._state.close({"closed": True, "steps": dict(self._state.left()).get(0)})
        self._server.stop(_STOP_GRACE_S).wait(2 * _STOP_GRACE_S)
        self._gate.close()

    @property
    def trouble(self):
        """Why workers cannot come in, in words that go on after "worker 0"; None: they can."""
        return self._gate.trouble

    def _admitted(self, peer):
        self._gate.admit(peer)

    def _peer(self, peer):
        return self._gate.peer(peer)

    def _calls(self):
        return {
            "Join": self._join,
            "Leave": self._leave,
            "Heartbeat": self._heartbeat,
            "Ages": self._ages,
            "Set": self._set,
            "Get": self._get,
            "Clear": self._clear,
            "Gather": self._gather,
            "Fail": self._fail,
            "Queue": self._queue,
            "QueueSize": self._queue_size,
            # Of leaders alone
            "Lead": self._lead,
            "Report": self._report,
            "Several": self._gather_several,
            "Lost": self._lost,
            "Detach": self._detach,
        }

    def _admit(self, name, caller, header, context):
        if header.get("for") is not None:
            return self._spoken_for(name, caller, header, context)
        if name in _OF_LEADERS or name == "Watch" and header.get("leads"):
            if name != "Lead" and not self._state.is_link(caller.identity):
                refuse(context, "this process has not said that it leads a host as worker %d" % caller.worker)
            return caller.changed(link=caller.identity)
        return super()._admit(name, caller, header, context)

    def _spoken_for(self, name, caller, header, context):
        """The worker for whom a leader calls: with "Join" for any process that it says, then for those alone."""
        worker, known = header["for"], self._state.is_link(caller.identity)
        if name == "Join" and known:
            return caller.changed(worker=worker, identity=str(header["identity"]), link=caller.identity)
        if name not in _FOR_MEMBERS or not self._state.speaks_for(caller.identity, worker):
            refuse(context, "worker %s has not joined the job through worker %d" % (worker, caller.worker))
        return caller.changed(worker=worker, identity=None, link=caller.identity)

    # One method per call: (Caller, header, body, gRPC's context) -> (header, body)

    def _join(self, caller, header, _, context):
        self._check_fits(header, context)
        problem = self._state.join(caller.worker, caller.identity, caller.link)
        if problem:
            refuse(context, problem)
        return {}, b""

    def _lead(self, caller, header, _, context):
        self._check_fits(header, context)
        problem = self._state.lead(caller.worker, caller.link)
        if problem:
            refuse(context, problem)
        return {}, b""

    def _check_fits(self, header, context):
        if header["version"] != __version__:
            refuse(context, "it runs epl %s, worker 0 runs epl %s" % (header["version"], __version__))
        if header["worker_num"] != self._worker_num:
            refuse(context, "it was started for %d workers, worker 0 for %d" % (header["worker_num"], self._worker_num))

    def _leave(self, caller, header, _, __):
        self._state.leave(caller.worker, header.get("steps"))
        return {}, b""

    def _heartbeat(self, caller, header, __, ___):
        self._state.heard(caller.worker, header.get("place"))
        return {}, b""

    def _ages(self, _, __, ___, ____):
        header = {"ages": sorted(self._state.ages().items()), "left": self._state.left()}
        header["places"] = sorted(self._state.places().items())
        if self._state.has_links():
            header["through"] = self._state.silent_through()
        return header, b""

    def _set(self, caller, header, body, _):
        self._state.set(header["key"], body, caller.worker)
        return {}, b""

    def _get(self, _, header, __, context):
        limit_s, writer = self._limit(header), header.get("writer")
        return {}, self._state.get(header["key"], limit_s, context.is_active, writer)

    def _clear(self, caller, header, _, __):
        self._state.clear(header["prefix"], caller.worker)
        return {}, b""

    def _gather(self, caller, header, body, context):
        """Answers with as many of the values, from `begin` on, as one message should have."""
        place = header["topic"], header["rank"], header["size"]
        values, missing = self._state.gather(*place, body, caller.worker, self._limit(header), context.is_active)
        if missing:
            return {"missing": missing}, b""
        lengths, page = paged(values, header["begin"])
        return {"missing": [], "lengths": lengths}, page

    def _gather_several(self, caller, header, body, context):
        """`_gather` of several members of a host; "entries" are [rank, worker, length of its value]."""
        values = divided([length for _, _, length in header["entries"]], body)
        entries = [(rank, worker, value) for (rank, worker, _), value in zip(header["entries"], values)]
        for _, worker, _ in entries:
            if not self._state.speaks_for(caller.link, worker):
                refuse(context, "worker %d has not joined the job through worker %d" % (worker, caller.worker))
        topic, size = header["topic"], header["size"]
        found = self._state.gather_several(topic, size, entries, self._limit(header), context.is_active)
        values, missing, refused = found
        answer = {"missing": missing, "refused": sorted(refused.items())}
        if missing:
            return answer, b""
        lengths, page = paged(values, header["begin"])
        return dict(answer, lengths=lengths), page

    def _fail(self, caller, header, _, __):
        ending = wire.Ending(**header["ending"])
        if ending.worker != caller.worker:
            raise WriteError("worker %d cannot say that worker %d has ended" % (caller.worker, ending.worker))
        return {"ending": vars(self._state.fail(ending))}, b""

    def _queue(self, caller, header, body, context):
        what = header["kind"], header["name"], body, header["capacity"]
        limit_s = self._limit(header)
        return {}, self._state.queue_call(*what, caller.worker, header["numbers"], limit_s, context.is_active)

    def _queue_size(self, _, header, __, ___):
        return {"size": self._state.queue_size(header["name"])}, b""

    def _report(self, caller, header, _, __):
        self._state.heard_through(caller.link, header["signs"])
        return {}, b""

    def _lost(self, caller, header, _, __):
        worker = header["worker"]
        self._state.lose_through(caller.link, worker, _BROKE % worker)
        return {}, b""

    def _detach(self, caller, _, __, ___):
        self._state.detach(caller.link)
        return {}, b""

    def _limit(self, header):
        return max(0.0, min(float(header["timeout_s"]), self._timeout_s))

    def _lose(self, caller):
        if caller.link is not None:
            self._state.lose_link(caller.link, _BROKE + ". The workers of its host are connected through it")
        else:
            self._state.lose(caller.worker, _BROKE % caller.worker)


def _bind(address):
    """A socket bound to EPL_BIND_ADDRESS, else to the given address, which has to be this machine's."""
    host, port = split_address(address)
    given = os.environ.get(_BIND_ADDRESS, "").strip("[] ")
    try:
        family, _, _, _, target = socket.getaddrinfo(given or host, port, 0, socket.SOCK_STREAM)[0]
    except OSError as error:
        if given:
            raise CommunicationError("%s=%s cannot be resolved: %s." % (_BIND_ADDRESS, given, error))
        raise CommunicationError(
            "Worker 0's address %s cannot be resolved on its own machine: %s. Correct the list of workers "
            "(TF_CONFIG or --machine_list)." % (address, error)
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(1)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _taken(address)
        if error.errno == errno.EADDRNOTAVAIL:
            raise _not_ours(given, address)
        raise CommunicationError("Worker 0 cannot listen at %s: %s." % (address, error))
    return listener


def _not_ours(given, address):
    if given:
        return CommunicationError(
            "%s=%s is no address of worker 0's machine; `ip address` lists those." % (_BIND_ADDRESS, given)
        )
    return CommunicationError(
        "Worker 0 cannot listen at %s, which is no address of its machine. Correct the list of workers (TF_CONFIG or "
        "--machine_list). Where addresses are translated, as for a service of Kubernetes, say at which one to listen: "
        "epl-launch --bind_address, or EPL_BIND_ADDRESS; 0.0.0.0 is all of them, strangers' networks included."
        % address
    )


def _taken(address):
    return CommunicationError(
        "Worker 0 cannot listen at %s: the port is taken by another process. Name a free one: for the first machine of "
        "epl-launch --machine_list (host:port); without the launcher in EPL_BOOTSTRAP_ADDRESS, EPL_BOOTSTRAP_PORT or "
        "for the first worker of TF_CONFIG. Or end that process (for instance what is left of an earlier run); "
        "`ss -ltnp` shows who has it." % address
    )


def split_address(address):
    """Returns (host, port) of "host:port"; an IPv6 host may stand in brackets.

    Raises:
      CommunicationError: the text is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CommunicationError(
            "The worker address '%s' is not of the form host:port, such as 10.0.0.7:2222." % address
        )
    return host.strip("[]"), int(port)
