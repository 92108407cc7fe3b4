"""What stands before the bootstrap service: until a connection has proved the job's token, it gets next to nothing.

gRPC gives whoever connects a thread for each call and room for the largest message, for as long as they like. So it
listens where nobody else can reach it, in a folder of this user's, and a thread passes bytes on between there and the
port of worker 0. A connection is a guest at first: there are a few of them at a time, each may begin a few calls, send
a few KiB and stay for some seconds. Once a call over it has proved the token, all of that ends. Memory, threads and
descriptors are bounded, however many come.
"""

import collections
import errno
import logging
import os
import resource
import selectors
import shutil
import socket
import threading
import time

from epl import own_folders

_LOG = logging.getLogger("epl")
# Beside one for each worker, the oldest is turned away for one more.
_MAX_GUESTS = 16
_MAX_BYTES = 64 * 1024
# A client says hello, joins, and may say why it was refused.
_MAX_CALLS = 4
_PATIENCE_S = 15.0
# Descriptors that guests leave to this process, and what a connection takes of them: here, behind, and within gRPC.
_RESERVE = 64
_EACH = 3
_PIECE = 64 * 1024
# With so much that the other side has not taken, no more is read.
_FULL = 1024 * 1024
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES, _HEADERS = 9, 1  # of a frame of HTTP/2; the type that begins a call
_LOOK_S = 1.0
_LINGER_S = 2.0


class Gate(object):
    """The thread that passes bytes on.

    Args:
      listener: bound socket.
      worker_num: number of workers.

    Attributes:
      inside: where the service listens, as gRPC takes it.
      trouble: why workers cannot come in, in words that go on after "worker 0"; None: they can.
    """

    def __init__(self, listener, worker_num):
        self._listener = listener
        self._max_guests = _MAX_GUESTS + worker_num
        self._folder = own_folders.make_folder(own_folders.GATE)
        self._number = 0
        self._lock = threading.Lock()
        self._guests = collections.OrderedDict()  # by the name that gRPC knows them by
        self._passages = set()
        self._peers = {}  # name to the address outside
        self._limit = _raise_limit(_EACH * worker_num + 4 * _RESERVE)
        self._spare = _open_spare()
        self._selector = selectors.DefaultSelector()
        self._wake, self._waking = socket.socketpair()
        self._until = None
        self.inside = "unix:" + self._path("service")
        self.trouble = None

    def start(self):
        """Once the service listens."""
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._welcome)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        threading.Thread(target=self._run, name="epl-gate", daemon=True).start()

    def admit(self, name):
        """A call over the connection that gRPC knows by this name has proved the token."""
        with self._lock:
            guest = self._guests.pop(name, None)
        if guest is not None:
            guest.admitted = True

    def peer(self, name):
        """Where the connection comes from that gRPC knows by this name."""
        return self._peers.get(name, name)

    def close(self):
        """When the service has ended; what it has said last is passed on. May be called again."""
        if self._until is None:
            self._until = time.monotonic() + _LINGER_S
            self._waking.send(b"x")

    def abandon(self):
        """Before `start`: the service could not be started."""
        self._end()

    def _path(self, name):
        return os.path.join(self._folder, name)

    def _run(self):
        while not self._is_over():
            for key, _ in self._selector.select(_LOOK_S if self._until is None else 0.05):
                if key.data is not None:
                    self._serve(key.data)
            self._turn_away_late()
        self._end()

    @staticmethod
    def _serve(call):
        try:
            call()
        except Exception:  # pylint: disable=broad-except
            # The thread must live on for the other connections.
            _LOG.exception("a connection to the bootstrap service could not be served")

    def _is_over(self):
        return self._until is not None and (not self._passages or time.monotonic() > self._until)

    def _end(self):
        for passage in list(self._passages):
            self.drop(passage)
        self._selector.close()
        for each in (self._listener, self._wake, self._waking):
            each.close()
        if self._spare is not None:
            os.close(self._spare)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _welcome(self):
        try:
            outer, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._without_descriptors()
            return
        if outer.fileno() >= self._limit - _RESERVE and not self._turn_away_oldest():
            self._say_trouble()
            outer.close()
            return
        if len(self._guests) >= self._max_guests:
            self._turn_away_oldest()
        outer.setblocking(False)
        self._number += 1
        name = self._path("%d" % self._number)
        passage = _Passage(self, outer, name)
        with self._lock:
            self._guests["unix:" + name] = passage
        self._peers["unix:" + name] = "%s:%d" % address[:2]
        self._passages.add(passage)
        passage.watch()

    def connect(self, name):
        """A socket to the service, bound to a name; None where there is none to be had."""
        try:
            inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            self._say_trouble()
            return None
        try:
            inner.bind(name)
            inner.settimeout(1.0)
            inner.connect(self._path("service"))
            inner.setblocking(False)
            os.unlink(name)
        except OSError as error:
            _LOG.debug("the service takes no connection: %s", error)
            inner.close()
            return None
        return inner

    def register(self, end, events, call):
        """Has `call` called when the socket is ready for these events; for none of them it is forgotten."""
        known = end in self._selector.get_map()
        if known and not events:
            self._selector.unregister(end)
        elif known:
            self._selector.modify(end, events, call)
        elif events:
            self._selector.register(end, events, call)

    def _turn_away_late(self):
        now = time.monotonic()
        with self._lock:
            late = [guest for guest in self._guests.values() if now > guest.began + _PATIENCE_S]
        for guest in late:
            self.drop(guest)

    def _turn_away_oldest(self):
        """Whether there was one."""
        with self._lock:
            oldest = next(iter(self._guests.values()), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def drop(self, passage):
        """Ends a connection."""
        with self._lock:
            self._guests.pop("unix:" + passage.name, None)
        self._peers.pop("unix:" + passage.name, None)
        self._passages.discard(passage)
        passage.close()

    def _without_descriptors(self):
        """Takes the next connection with the descriptor that is kept for it, as it would wait there for ever else."""
        self._say_trouble()
        if self._spare is None:
            time.sleep(0.1)
            self._spare = _open_spare()
            return
        os.close(self._spare)
        try:
            self._listener.accept()[0].close()
        except OSError as error:
            _LOG.debug("no connection is taken: %s", error)
        self._spare = _open_spare()

    def _say_trouble(self):
        if self.trouble is None:
            self.trouble = (
                "has no file descriptors left for the connections of the others: its limit is %d (`ulimit -n`). Raise "
                "it, or close what the program leaves open (EMFILE)" % self._limit
            )
            _LOG.error("worker 0 %s", self.trouble)


class _Passage(object):
    """One connection, and the one to the service that belongs to it once it has begun to speak HTTP/2.

    Attributes:
      name: path to which the latter is bound.
      began: when it came, by time.monotonic().
      admitted: whether it has proved the token.
    """

    def __init__(self, gate, outer, name):
        self._gate = gate
        self._outer = outer
        self._inner = None
        self._in, self._out = bytearray(), bytearray()  # what is on its way to the service, and from it
        self._calls = _Calls()
        self._ending = False
        self.name = name
        self.began = time.monotonic()
        self.admitted = False

    def watch(self):
        """Waits for what each side can do."""
        if self._outer is None:
            return
        reads = not self._ending and len(self._in) < _FULL
        self._gate.register(self._outer, _events(reads, bool(self._out)), self._serve_outer)
        if self._inner is not None:
            reads = not self._ending and len(self._out) < _FULL
            self._gate.register(self._inner, _events(reads, bool(self._in)), self._serve_inner)

    def _serve_outer(self):
        self._serve(self._outer, self._in, self._out, self._may_come)

    def _serve_inner(self):
        self._serve(self._inner, self._out, self._in, lambda data: True)

    def _serve(self, end, read, write, may_come):
        if end is None:  # dropped, after it was found ready
            return
        try:
            _write(end, write)
            data = _read(end) if not self._ending and len(read) < _FULL else None
        except OSError:
            self._gate.drop(self)
            return
        if data:
            read += data
            if not may_come(data):
                self._gate.drop(self)
                return
        self._ending = self._ending or data == b""
        if self._ending and not (self._in if self._inner is not None else b"") and not self._out:
            self._gate.drop(self)
            return
        self.watch()

    def _may_come(self, data):
        """Whether this much may come of what a guest sends; connects with the service when it begins to speak."""
        if self._inner is None:
            if not _PREFACE.startswith(bytes(self._in[: len(_PREFACE)])):
                return False
            if len(self._in) < len(_PREFACE):
                return True
            self._inner = self._gate.connect(self.name)
            if self._inner is None:
                return False
        if self.admitted:
            return True
        self._calls.take(data)
        return self._calls.bytes <= _MAX_BYTES and self._calls.begun <= _MAX_CALLS

    def close(self):
        for end in (self._outer, self._inner):
            if end is not None:
                self._gate.register(end, 0, None)
                end.close()
        self._outer = self._inner = None


class _Calls(object):
    """Counts what a client of HTTP/2 sends.

    Attributes:
      bytes: that have come.
      begun: calls.
    """

    def __init__(self):
        self.bytes = self.begun = 0
        self._skip = len(_PREFACE)
        self._head = bytearray()

    def take(self, data):
        self.bytes += len(data)
        start = 0
        while start < len(data):
            skipped = min(self._skip, len(data) - start)
            self._skip -= skipped
            start += skipped
            missing = _HEAD_BYTES - len(self._head)
            if self._skip == 0 and start < len(data):
                self._head += data[start : start + missing]
                start += missing
                if len(self._head) == _HEAD_BYTES:
                    self.begun += self._head[3] == _HEADERS
                    self._skip = int.from_bytes(self._head[:3], "big")
                    self._head.clear()


def _events(reads, writes):
    return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)


def _read(end):
    """What has come; b"" at the end, None where nothing has."""
    try:
        return end.recv(_PIECE)
    except BlockingIOError:
        return None


def _write(end, data):
    """Writes as much as is taken, and forgets that."""
    if data:
        try:
            del data[: end.send(data[:_PIECE])]
        except BlockingIOError:
            return


def _open_spare():
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _raise_limit(wanted):
    """The number of descriptors that this process may have; raised to `wanted` where it is allowed to do so itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
