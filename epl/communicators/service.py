"""What serves workers over gRPC, whoever does it: the proof of the token, calls, and a stream of endings."""

import logging
import threading
from concurrent.futures import Executor, Future

import grpc

from epl.communicators import wire
from epl.communicators.bootstrap_state import WaitError, WriteError
from epl.communicators.connection import Answered, Unreachable, WaitTimeout
from epl.communicators.proof import Refused, ServiceProof
from epl.errors import CommunicationError

_LOG = logging.getLogger("epl")
# A watch stream with nothing to tell sends an empty message this often, so that a dead connection is noticed.
_IDLE_WATCH_S = 5.0
HEARTBEAT_S = 1.0
# With many workers the service would be busy with heartbeats only.
_HEARTBEATS_PER_S = 100.0
# Of values that were gathered, in one answer.
PAGE_BYTES = wire.MAX_MESSAGE_BYTES // 2


class Service:
    """Serves the calls of subclasses, which are methods (Caller, header, body, gRPC's context) -> (header, body).

    Args:
      token: the job's token; calls that do not prove it are refused.
      state: the BootstrapState, of which this serves the endings.
    """

    def __init__(self, token, state):
        self._state = state
        self._proof = ServiceProof(token)
        self._strangers = _Strangers()

    def _make_server(self):
        options = [
            ("grpc.so_reuseport", 0),  # two jobs on one port must not share it silently
            ("grpc.max_receive_message_length", wire.MAX_TRAVELLING_BYTES),
            ("grpc.max_send_message_length", wire.MAX_TRAVELLING_BYTES),
        ]
        return grpc.server(_DaemonThreads(), handlers=(self._handlers(),), options=options)

    def _calls(self):
        """{name: method} of the calls."""
        raise NotImplementedError

    def _lose(self, caller):
        """The stream of a caller broke."""
        raise NotImplementedError

    def _admitted(self, peer):
        """A call over the connection that gRPC calls so has proved the token."""

    def _peer(self, peer):
        """Where a connection comes from, for the log."""
        return peer

    def _admit(self, name, caller, header, context):
        """The Caller for whom a call is; ends the call where its process may not make it."""
        if name != "Join" and not self._state.is_member(caller.worker, caller.identity):
            refuse(context, "this process has not joined the job as worker %d" % caller.worker)
        return caller

    def _handlers(self):
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(name, call)) for name, call in self._calls().items()
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
        """(who sent it, for whom it is, header, body) of a call; ends it where it does not prove the token or comes
        from a second process of a worker."""
        try:
            caller, message = self._proof.open(name, request)
        except Refused as error:
            self._turn_away(context, error)
        self._admitted(context.peer())
        header, body = wire.unpack(message)
        return caller, self._admit(name, caller, header, context), header, body

    def _turn_away(self, context, error):
        self._strangers.log(self._peer(context.peer()))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "this is another job: %s" % error)

    def _guarded(self, name, call):
        """Turns what goes wrong in a call into a gRPC status that the client turns back."""

        def serve(request, context):
            try:
                sender, caller, header, body = self._open(name, request, context)
                try:
                    answer = wire.pack(*call(caller, header, body, context), limit=wire.MAX_RELAYED_BYTES)
                except Unreachable as error:  # what this service itself would have called
                    answer = wire.pack({"unreachable": str(error)})
                return sender.sealed(answer)
            except WaitError as error:
                code = grpc.StatusCode.DEADLINE_EXCEEDED if error.code == "timeout" else grpc.StatusCode.ABORTED
                context.abort(code, str(error))
            except WaitTimeout as error:
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error).rstrip("."))
            except Answered as error:
                context.abort(error.code, error.details)
            except WriteError as error:
                _LOG.warning("refused: %s (from %s)", error, self._peer(context.peer()))
                context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except (KeyError, TypeError, ValueError, CommunicationError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "%s: %s" % (type(error).__name__, error))

        return serve

    def _watch(self, request, context):
        """A stream of endings. That it breaks is how a worker's death is noticed."""
        sender, caller, _, _ = self._open("Watch", request, context)
        context.add_callback(lambda: self._lose(caller))
        for index, header in enumerate(self._news(context)):
            yield sender.sealed(wire.pack(header), index)

    def _news(self, context):
        yield {}  # the watcher knows from now on that it is heard
        seen = 0
        while context.is_active():
            endings, last_words = self._state.endings_after(seen, _IDLE_WATCH_S)
            seen += len(endings)
            for ending in endings:
                yield {"ending": vars(ending)}
            if last_words:
                yield last_words
                return
            if not endings:
                yield {}


def heartbeat_interval_s(worker_num):
    """Seconds between the signs of life of a worker."""
    return max(HEARTBEAT_S, worker_num / _HEARTBEATS_PER_S)


def paged(values, begin):
    """(lengths, bytes) of as many of the values, from `begin` on, as one message should have."""
    page, length = [], 0
    for value in values[begin:]:
        if page and length + len(value) > PAGE_BYTES:
            break
        page.append(value)
        length += len(value)
    return [len(value) for value in page], b"".join(page)


def divided(lengths, body):
    """The values of which a body consists."""
    values, start = [], 0
    for length in lengths:
        values.append(body[start : start + length])
        start += length
    return values


def refuse(context, why):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


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
        # The peer is like "10.0.0.7:53124", whose port changes with every attempt, or "unix:" on this host.
        caller = peer.rsplit(":", 1)[0]
        if caller not in self._logged and len(self._logged) < 100:
            self._logged.add(caller)
            _LOG.warning("refused a connection from %s, which does not have this job's token", caller)
