"""A connection to who serves a worker: worker 0, or the worker that leads its host."""

import logging
import time

import grpc

from epl.communicators import wire
from epl.communicators.proof import ClientProof, Refused
from epl.errors import CommunicationError

_LOG = logging.getLogger("epl")
_RETRY_S = 0.1
# Whoever comes before who serves should not notice it late; each attempt costs next to nothing.
_LONGEST_BACKOFF_MS = 250
_CONNECT_TIMEOUT_MS = 5000
# Calls that do not wait for other workers, at most. Generous: the interpreter of who serves may be busy with the user's
# own code. Whoever gives worker 0 less time to be there gives its answers no more.
CALL_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 3.0
# Whoever waits for longer says so, and again after as long.
_NOTICE_S = 10.0
_ANSWERS = (  # statuses in which a service tells what is wrong; others come from gRPC itself
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
)
# gRPC's own words for a call that was not answered in time.
_TOO_LATE = "Deadline Exceeded"


class WaitTimeout(CommunicationError):
    """What was waited for did not come in time; everything else is in order."""


class Unreachable(CommunicationError):
    """Who was called does not answer; `worker` is its index."""

    def __init__(self, message, worker):
        super().__init__(message)
        self.worker = worker


class NobodyLeads(CommunicationError):
    """Nobody of this host is at the address of its leader."""


class Answered(CommunicationError):
    """The service refuses a call. `code`: gRPC's status, `details`: why."""

    def __init__(self, code, details):
        super().__init__("%s%s." % (details[:1].upper(), details[1:]))
        self.code = code
        self.details = details


class Connection(object):
    """Calls to one service, each with its proof. Its methods may be called from any thread.

    Args:
      address: where it is, as gRPC takes it.
      token: the job's token.
      worker: index of this worker.
      root: "host:port" of worker 0.
      leader: function that says who serves, in words, where it is not worker 0 but the worker that leads this host.
      nonce: of the proof, where it goes on for an earlier connection.

    Attributes:
      served_by: index of the worker that serves; None until a leader has said which it is.
      proof: the ClientProof.
      channel: gRPC's.
    """

    def __init__(self, address, token, worker, root, leader=None, nonce=None):
        self._leader = leader
        self._address = root
        self._root = "Worker 0 at %s" % root
        self._worker = worker
        self._stream = None
        self.served_by = None if leader else 0
        self.proof = ClientProof(token, worker, nonce)
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.enable_http_proxy", 0),  # workers talk to each other directly
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", _LONGEST_BACKOFF_MS),
                # What gRPC calls so is how long one attempt may take.
                ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
                ("grpc.max_receive_message_length", wire.MAX_TRAVELLING_BYTES),
                ("grpc.max_send_message_length", wire.MAX_TRAVELLING_BYTES),
            ],
        )

    @property
    def who(self):
        """Who serves, in words that begin a sentence."""
        if self._leader is None:
            return self._root
        return "Worker %d, which leads this host," % self.served_by if self.served_by is not None else self._leader()

    def method(self, name):
        return self.channel.unary_unary("/%s/%s" % (wire.SERVICE, name))

    def enter(self, name, header, timeout_s, call_timeout_s):
        """Proves the token and makes the call `name`, with which the service takes this worker in.

        Raises:
          NobodyLeads: see there; only where a leader serves.
          CommunicationError: it cannot be reached in time, or refuses this worker; says why.
        """
        # gRPC works on a connection only while a call is under way or someone listens to what becomes of it; these
        # calls are too short for that as long as worker 0 is not there. A leader is not waited for here.
        if self._leader is None:
            self.channel.subscribe(_ignore, try_to_connect=True)
        answer, _ = self._enter(name, header, timeout_s, call_timeout_s)
        self.served_by = answer.get("leader", self.served_by)
        if self._leader is None:
            self.channel.unsubscribe(_ignore)

    def _enter(self, name, header, timeout_s, call_timeout_s):
        began = time.monotonic()
        deadline = began + timeout_s
        notice = began + _NOTICE_S
        while True:
            try:
                # A foreign server that accepts and says nothing must not use up all the time with one call.
                limit_s = max(0.1, min(call_timeout_s, deadline - time.monotonic()))
                if not self.proof.ready:
                    self.proof.accept(self.method("Hello")(self.proof.nonce, timeout=limit_s))
                return self.rpc(name, header, b"", limit_s)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            except Refused as error:
                self._let_it_be_logged(name)
                code, details = grpc.StatusCode.UNAUTHENTICATED, "this is another job: %s" % error
            if code == grpc.StatusCode.UNAUTHENTICATED:
                raise CommunicationError(
                    "%s refused worker %d: %s. Another job uses this address, or EPL_JOB_TOKEN differs between "
                    "workers. Without EPL_JOB_TOKEN the workers' machines must share the user's home folder."
                    % (self._root, self._worker, details)
                )
            if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                raise CommunicationError("%s refused worker %d: %s." % (self._root, self._worker, details))
            if self._leader is not None and code == grpc.StatusCode.UNAVAILABLE:
                raise NobodyLeads("%s is gone: %s" % (self.who, details))
            if time.monotonic() + _RETRY_S >= deadline:
                raise self._timed_out(timeout_s, details or code.name)
            if time.monotonic() >= notice:
                notice += _NOTICE_S
                _LOG.info(
                    "worker %d has waited %.0f s for %s, and gives up after %g s",
                    self._worker,
                    time.monotonic() - began,
                    self.who[:1].lower() + self.who[1:],
                    timeout_s,
                )
            time.sleep(_RETRY_S)

    def _timed_out(self, timeout_s, details):
        if self._leader is not None:
            return CommunicationError(
                "Worker %d could not join within %g s: %s. %s connects the workers of this host with worker 0 at "
                "%s: see whether its process is stopped, and its output."
                % (self._worker, timeout_s, details, self._leader(), self._address)
            )
        return CommunicationError(
            "Worker 0 at %s could not be reached within %g s: %s. See whether worker 0 was started and runs, whether "
            "the address is right (the first in the list of workers), and whether a firewall is between."
            % (self._address, timeout_s, details)
        )

    def _let_it_be_logged(self, name):
        """A call without proof, so that the log of who serves tells of who came in vain."""
        try:
            self.method(name)(b"", timeout=LEAVE_TIMEOUT_S)
        except grpc.RpcError as error:
            _LOG.debug("%s", error)

    def rpc(self, name, header, body, timeout_s, limit=wire.MAX_MESSAGE_BYTES):
        sealed, opened = self.proof.seal(name, wire.pack(header, body, limit))
        return wire.unpack(opened(self.method(name)(sealed, timeout=timeout_s)))

    def _rpc_in_time(self, name, header, body, timeout_s, limit):
        """`rpc`, a second time where the first was over long before its time: gRPC goes by the time of day, which may
        be set meanwhile."""
        began = time.monotonic()
        try:
            return self.rpc(name, header, body, timeout_s, limit)
        except grpc.RpcError as error:
            left = timeout_s - (time.monotonic() - began)
            is_late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and error.details() == _TOO_LATE
            if not is_late or left < timeout_s / 2:
                raise
        return self.rpc(name, header, body, left, limit)

    def call(self, name, header, body, timeout_s, limit=wire.MAX_MESSAGE_BYTES):
        """(header, body) of the answer to a call.

        Raises:
          Answered: the service refuses it.
          WaitTimeout: it has waited in vain, as it was told to.
          Unreachable: it does not answer.
          CommunicationError: this worker has left.
        """
        try:
            answer, found = self._rpc_in_time(name, header, body, timeout_s, limit)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
        except ValueError as error:  # gRPC's answer to a call on a closed channel
            raise CommunicationError("This worker has left the job already: %s" % error)
        else:
            if "unreachable" in answer:  # said by the leader, of worker 0
                raise Unreachable(answer["unreachable"], 0)
            return answer, found
        if code in _ANSWERS:
            raise Answered(code, details)
        if code == grpc.StatusCode.DEADLINE_EXCEEDED and details != _TOO_LATE:
            raise WaitTimeout("%s%s." % (details[:1].upper(), details[1:]))
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Unreachable("%s did not answer within %g s." % (self.who, timeout_s), self.served_by)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            text = "%s is gone, or the network to it is cut: %s" % (self.who, details)
            raise Unreachable(text, self.served_by)
        raise CommunicationError("%s%s." % (details[:1].upper(), details[1:]))

    def watch(self, header, told):
        """Has `told(header)` called for all that the service pushes, until it returns something or the stream breaks.

        Returns:
          None, or why the stream ended.
        """
        method = self.channel.unary_stream("/%s/Watch" % wire.SERVICE)
        try:
            # No time limit: the stream lives as long as the job, and breaks with the connection.
            sealed, opened = self.proof.seal("Watch", wire.pack(header))
            self._stream = method(sealed)
            for index, message in enumerate(self._stream):
                if told(wire.unpack(opened(message, index))[0]):
                    return None
        except grpc.RpcError as error:
            return error.details() or error.code().name
        except (ValueError, CommunicationError) as error:
            return str(error)
        return "the stream ended"

    def stop_watching(self):
        """Ends the stream; calls go on."""
        self._stream.cancel()

    def gone(self, why):
        """What is said of who serves when the stream of endings breaks."""
        if self._leader is not None:
            return "worker %d, which leads this host, is gone: its process was killed or crashed (%s)" % (
                self.served_by,
                why,
            )
        return (
            "worker 0 at %s is gone: its process was killed or crashed, its machine is gone, or the network to it is "
            "cut (%s)" % (self._address, why)
        )

    def close(self):
        self.channel.close()


def _ignore(connectivity):
    del connectivity
