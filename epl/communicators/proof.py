"""Proof that both ends of the bootstrap service have the job's token, which itself never travels.

A client sends a random number and gets one of the service with an HMAC-SHA256 of both under the token, so it knows that
the service has the token. From the two numbers, the token and the client's worker both derive a key (the scheme of RFC
5869 with one block). Every message either way carries a code under that key over the method, a running number and the
bytes: nobody without the token can make one, change one, or send one again. Messages are not encrypted.

The service keeps nothing of a client before the first message that proves itself.
"""

import copy
import hashlib
import hmac
import os
import struct
import threading

from epl.errors import CommunicationError

NONCE_BYTES = 32
_CODE_BYTES = 32
_HEAD = struct.Struct(">%dsIQ%ds" % (NONCE_BYTES, _CODE_BYTES))  # the client's number, worker, running number, code
# Messages of one client may overtake each other by so many.
_WINDOW = 4096


class Refused(CommunicationError):
    """What came does not prove the token."""


class ClientProof(object):
    """A client's side.

    Args:
      token: the job's token.
      worker: index of this worker.
      nonce: this client's random number, where it has one from an earlier connection, by which services know it.

    Attributes:
      nonce: this client's random number.
    """

    def __init__(self, token, worker, nonce=None):
        self._token = token.encode("utf-8")
        self._worker = worker
        self._key = None
        self._lock = threading.Lock()
        self._number = 0
        self.nonce = nonce or os.urandom(NONCE_BYTES)

    @property
    def ready(self):
        """Whether the service has proved itself."""
        return self._key is not None

    def accept(self, answer):
        """Takes the service's answer to the client's number.

        Raises:
          Refused: it does not have the token.
        """
        expected = _greeting(self._token, self.nonce, answer[:NONCE_BYTES])
        if len(answer) != NONCE_BYTES + _CODE_BYTES or not hmac.compare_digest(answer[NONCE_BYTES:], expected):
            raise Refused("it does not prove this job's token")
        self._key = _key(self._token, self.nonce, answer[:NONCE_BYTES], self._worker)

    def seal(self, method, message):
        """(the message with its proof, a function that opens the reply number `index` to it)."""
        with self._lock:
            self._number += 1
            number = self._number
        key = self._key
        code = _code(key, b"call", method, number, 0, message)

        def opened(reply, index=0):
            expected = _code(key, b"reply", method, number, index, reply[_CODE_BYTES:])
            if not hmac.compare_digest(reply[:_CODE_BYTES], expected):
                raise Refused("its reply does not prove this job's token")
            return reply[_CODE_BYTES:]

        return _HEAD.pack(self.nonce, self._worker, number, code) + message, opened


class Caller(object):
    """Who made a call that has proved itself.

    Attributes:
      worker: its index.
      identity: text that is another for each process.
      link: the identity of the connection of a leader, where the call came through one.
    """

    def __init__(self, worker, identity, key, method, number):
        self.worker = worker
        self.identity = identity
        self.link = None
        self._seal = lambda index, reply: _code(key, b"reply", method, number, index, reply) + reply

    def changed(self, **changes):
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def sealed(self, reply, index=0):
        """Reply number `index` to the call, with its proof."""
        return self._seal(index, reply)


class ServiceProof(object):
    """The service's side.

    Args:
      token: the job's token.
    """

    def __init__(self, token):
        self._token = token.encode("utf-8")
        self._nonce = os.urandom(NONCE_BYTES)
        self._lock = threading.Lock()
        self._seen = {}

    def answer(self, nonce):
        """What a client's number is answered with."""
        if len(nonce) != NONCE_BYTES:
            raise Refused("the call begins with %d random bytes; %d were expected" % (len(nonce), NONCE_BYTES))
        return self._nonce + _greeting(self._token, nonce, self._nonce)

    def open(self, method, sealed):
        """(Caller, message) of a call.

        Raises:
          Refused: it does not prove the token, or has come before.
        """
        if len(sealed) < _HEAD.size:
            raise Refused("the call carries no proof")
        nonce, worker, number, code = _HEAD.unpack_from(sealed)
        message = sealed[_HEAD.size :]
        key = _key(self._token, nonce, self._nonce, worker)
        if not hmac.compare_digest(code, _code(key, b"call", method, number, 0, message)):
            raise Refused("the token is wrong")
        if not self._is_new(nonce, worker, number):
            raise Refused("the call has come before")
        return Caller(worker, nonce.hex(), key, method, number), message

    def _is_new(self, nonce, worker, number):
        with self._lock:
            highest, seen = self._seen.get((nonce, worker), (0, 0))
            if number > highest:
                seen = ((seen << (number - highest)) | 1) & ((1 << _WINDOW) - 1) if number - highest < _WINDOW else 1
                self._seen[nonce, worker] = number, seen
                return True
            place = 1 << (highest - number)
            if highest - number >= _WINDOW or seen & place:
                return False
            self._seen[nonce, worker] = highest, seen | place
            return True


def _greeting(token, client, service):
    return hmac.new(token, b"epl service" + client + service, hashlib.sha256).digest()


def _key(token, client, service, worker):
    return hmac.new(token, b"epl session" + client + service + struct.pack(">I", worker), hashlib.sha256).digest()


def _code(key, kind, method, number, index, message):
    head = b"%s %s %d %d " % (kind, method.encode("ascii"), number, index)
    return hmac.new(key, head + hashlib.sha256(message).digest(), hashlib.sha256).digest()
