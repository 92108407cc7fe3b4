"""The bootstrap service, which runs in worker 0's process: keys, gatherings and endings over gRPC."""

import atexit
import errno
import logging
import os
import socket
import threading
from concurrent.futures import Executor, Future

import grpc

from epl.communicators import wire
from epl.communicators.bootstrap_state import BootstrapState, WaitError, WriteError
from epl.communicators.proof import Refused, ServiceProof
from epl.errors import CommunicationError
from epl.version import __version__

_LOG = logging.getLogger("epl")
# A watch stream with nothing to tell sends an empty message this often, so that a dead connection is noticed.
_IDLE_WATCH_S = 5.0
# Where worker 0 listens, if that is not its address in the list of workers.
_BIND_ADDRESS = "EPL_BIND_ADDRESS"
# Of values that were gathered, in one answer.
_PAGE_BYTES = wire.MAX_MESSAGE_BYTES // 2
_MAX_WAIT_S = 24 * 3600.0
_STOP_GRACE_S = 1.0
_LINGER_S = 5.0


class BootstrapServer:
    """Serves keys, gatherings and endings to the workers of one job, with the token of that job.

    Args:
      address: "host:port" that this worker has in the list of workers; port 0 takes any free one.
      token: the job's token; calls that do not prove it are refused.
      worker_num: number of workers.
      timeout_s: seconds; the longest that one call may wait for other workers.

    Attributes:
      port: the port that is served.

    Raises:
      CommunicationError: the port is taken, or the address does not belong to this machine's resolver.
    """

    def __init__(self, address, token, worker_num, timeout_s=600.0):
        self._worker_num = worker_num
        self._timeout_s = min(timeout_s, _MAX_WAIT_S)
        self._state = BootstrapState(worker_num)
        self._proof = ServiceProof(token)
        self._strangers = _Strangers()
        options = [
            ("grpc.so_reuseport", 0),  # two jobs on one port must not share it silently
            ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES + 1024),
            ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES + 1024),
        ]
        self._server = grpc.server(_DaemonThreads(), handlers=(self._handlers(),), options=options)
        self.port = _bind(self._server, address)
        self._server.start()
        atexit.register(self.close)  # a script that ends with an exception ends

    def close(self):
        """Tells the workers that still listen that worker 0 ends in good order, and stops. May be called again.

        Others may still be reading what was left for them here: they have a moment for that.
        """
        atexit.unregister(self.close)
        self._state.wait_for_leaving(_LINGER_S)
        self._state.close()
        self._server.stop(_STOP_GRACE_S).wait(2 * _STOP_GRACE_S)

    def _handlers(self):
        calls = {
            "Join": self._join,
            "Leave": self._leave,
            "Heartbeat": self._heartbeat,
            "Ages": self._ages,
            "Set": self._set,
            "Get": self._get,
            "Clear": self._clear,
            "Gather": self._gather,
            "Fail": self._fail,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(name, call)) for name, call in calls.items()
        }
        handlers["Hello"] = grpc.unary_unary_rpc_method_handler(self._hello)
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        return grpc.method_handlers_generic_handler(wire.SERVICE, handlers)

    def _hello(self, nonce, context):
        try:
            return self._proof.answer(nonce)
        except Refused as error:
            self._turn_away(context, error)

    def _open(self, name, request, context):
        """(Caller, header, body) of a call; ends it where it does not prove the token or comes from a second process
        of a worker."""
        try:
            caller, message = self._proof.open(name, request)
        except Refused as error:
            self._turn_away(context, error)
        header, body = wire.unpack(message)
        if name != "Join" and not self._state.is_member(caller.worker, caller.identity):
            _refuse(context, "this process has not joined the job as worker %d" % caller.worker)
        return caller, header, body

    def _turn_away(self, context, error):
        self._strangers.log(context.peer())
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "this is another job: %s" % error)

    def _guarded(self, name, call):
        """Turns what goes wrong in a call into a gRPC status that the client turns back."""

        def serve(request, context):
            try:
                caller, header, body = self._open(name, request, context)
                return caller.sealed(wire.pack(*call(caller, header, body, context)))
            except WaitError as error:
                code = grpc.StatusCode.DEADLINE_EXCEEDED if error.code == "timeout" else grpc.StatusCode.ABORTED
                context.abort(code, str(error))
            except WriteError as error:
                _LOG.warning("refused: %s (from %s)", error, context.peer())
                context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except (KeyError, TypeError, ValueError, CommunicationError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "%s: %s" % (type(error).__name__, error))

        return serve

    # One method per call: (Caller, header, body, gRPC's context) -> (header, body)

    def _join(self, caller, header, _, context):
        if header["version"] != __version__:
            _refuse(context, "it runs epl %s, worker 0 runs epl %s" % (header["version"], __version__))
        if header["worker_num"] != self._worker_num:
            _refuse(
                context, "it was started for %d workers, worker 0 for %d" % (header["worker_num"], self._worker_num)
            )
        problem = self._state.join(caller.worker, caller.identity)
        if problem:
            _refuse(context, problem)
        return {}, b""

    def _leave(self, caller, header, _, __):
        self._state.leave(caller.worker, header.get("steps"))
        return {}, b""

    def _heartbeat(self, caller, _, __, ___):
        self._state.heard(caller.worker)
        return {}, b""

    def _ages(self, _, __, ___, ____):
        return {"ages": sorted(self._state.ages().items()), "left": self._state.left()}, b""

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
        page, length = [], 0
        for value in values[header["begin"] :]:
            if page and length + len(value) > _PAGE_BYTES:
                break
            page.append(value)
            length += len(value)
        return {"missing": [], "lengths": [len(value) for value in page]}, b"".join(page)

    def _fail(self, caller, header, _, __):
        ending = wire.Ending(**header["ending"])
        if ending.worker != caller.worker:
            raise WriteError("worker %d cannot say that worker %d has ended" % (caller.worker, ending.worker))
        return {"ending": vars(self._state.fail(ending))}, b""

    def _limit(self, header):
        return max(0.0, min(float(header["timeout_s"]), self._timeout_s))

    def _watch(self, request, context):
        """A stream of endings. That it breaks is how a worker's death is noticed."""
        caller, _, _ = self._open("Watch", request, context)
        context.add_callback(lambda: self._lose(caller.worker))
        for index, header in enumerate(self._news(context)):
            yield caller.sealed(wire.pack(header), index)

    def _news(self, context):
        yield {}  # the watcher knows from now on that it is heard
        position = 0
        while context.is_active():
            endings, closed = self._state.endings_after(position, _IDLE_WATCH_S)
            position += len(endings)
            for ending in endings:
                yield {"ending": vars(ending)}
            if closed:
                yield {"closed": True, "steps": dict(self._state.left()).get(0)}
                return
            if not endings:
                yield {}

    def _lose(self, worker):
        self._state.lose(
            worker,
            "the connection to worker %d broke: its process was killed or crashed, its machine is gone, or the network "
            "to it is cut" % worker,
        )


class _DaemonThreads(Executor):
    """A thread for each call. Unlike those of ThreadPoolExecutor they do not keep the process alive: the watch streams
    last as long as the job, and the interpreter would wait for them before it runs any exit handler."""

    def submit(self, function, *args, **kwargs):
        future = Future()
        thread = threading.Thread(target=self._run, args=(future, function, args, kwargs), name="epl-bootstrap")
        thread.daemon = True
        thread.start()
        return future

    @staticmethod
    def _run(future, function, args, kwargs):
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # pylint: disable=broad-except
            future.set_exception(error)  # gRPC looks at the future


class _Strangers(object):
    """Says of each caller without the token once that it was refused."""

    def __init__(self):
        self._logged = set()

    def log(self, peer):
        # The peer is like "ipv4:10.0.0.7:53124"; its port changes with every attempt.
        caller = peer.rsplit(":", 1)[0]
        if caller not in self._logged and len(self._logged) < 100:
            self._logged.add(caller)
            _LOG.warning("refused a connection from %s, which does not have this job's token", caller)


def _refuse(context, why):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


def _bind(server, address):
    host, port = split_address(address)
    bind_host = _bindable(host, port, address)
    try:
        bound = server.add_insecure_port("%s:%d" % (bind_host, port))
    except RuntimeError:  # newer gRPC raises where older ones return 0
        bound = 0
    if not bound:
        raise _taken(address)
    return bound


def _bindable(host, port, address):
    """The host to bind: that of EPL_BIND_ADDRESS, else the given one, which has to be this machine's."""
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
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(address)
            if error.errno == errno.EADDRNOTAVAIL:
                raise _not_ours(given, address)
            raise CommunicationError("Worker 0 cannot listen at %s: %s." % (address, error))
    return "[%s]" % target[0] if family == socket.AF_INET6 else target[0]


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
        "Worker 0 cannot listen at %s: the port is taken by another process. Choose a free port for the first worker "
        "in the list of workers (TF_CONFIG), or end that process (for instance what is left of an earlier run); "
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
