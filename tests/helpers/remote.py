"""Python functions called in other processes: one that never imports EPL, and the workers of jobs.

A function is named by where it stands, "tests.helpers.programs.sessions:train", and gets EPL (or None in the plain
process) as its first argument. Processes are started once and serve many calls, each in a graph of its own.
"""

import contextlib
import itertools
import os
import pickle
import select
import socket
import struct
import threading
import time

from tests.helpers import processes

_NUMBERS = itertools.count()
_START_S = 120


class RemoteError(Exception):
    """The function raised. `kind` is the name of the exception's class, `bases` those of all its bases."""

    def __init__(self, kind, bases, message, text):
        super(RemoteError, self).__init__("%s: %s\n%s" % (kind, message, text))
        self.kind = kind
        self.bases = bases
        self.message = message
        self._text = text

    def __reduce__(self):
        return RemoteError, (self.kind, self.bases, self.message, self._text)


class Server(object):
    """One process that answers calls.

    Args:
      start: `forks.Template.python` or `processes.python`.
      mode: "epl" or "plain".
    """

    def __init__(self, start, mode, environ, log):
        address = "epl-tests-%d-%d" % (os.getpid(), next(_NUMBERS))  # without a file: Linux' abstract names
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind("\0" + address)
            listener.listen(1)
            self._child = start(["-m", "tests.helpers.remote_server", mode, address], environ, log)
            self._connection = self._accept(listener)

    def _accept(self, listener):
        listener.settimeout(0.2)
        deadline = time.time() + _START_S
        while True:
            try:
                return listener.accept()[0]
            except socket.timeout:
                if not self._child.running() or time.time() > deadline:
                    self._child.kill()
                    raise AssertionError("a process has not started: %s" % self._child.output()[-4000:])

    def call(self, function, args, kwargs, timeout_s):
        """What the function returned, or a RemoteError. AssertionError if the process ended or did not answer in
        time."""
        try:
            write_message(self._connection, (function, args, kwargs))
            return read_message(self._connection, time.time() + timeout_s)
        except (EOFError, OSError) as error:
            raise AssertionError(
                "%s in %s: %r\n%s" % (error, function, self._child.wait(2).code, self._child.output()[-4000:])
            )

    def stop(self):
        self._child.kill()
        self._connection.close()


class Job(object):
    """The workers of a job, or the plain process; started at the first call, started again after a call that went
    wrong. `start` is that of Server."""

    def __init__(self, start, folder, workers=1, devices=1, plain=False):
        self._start_process = start
        self._stem = os.path.join(str(folder), "plain" if plain else "job_%dx%d" % (workers, devices))
        self._workers, self._devices, self._plain = workers, devices, plain
        self._servers = []

    def outcomes(self, function, *args, **kwargs):
        """Calls the function in all workers at once; a list with a value or an exception for each."""
        timeout_s = kwargs.pop("timeout_s", 120)
        self._start()
        results = [None] * len(self._servers)

        def call(index):
            try:
                results[index] = self._servers[index].call(function, args, kwargs, timeout_s)
            except AssertionError as error:  # handed to the caller below
                results[index] = error

        threads = [threading.Thread(target=call, args=(index,)) for index in range(len(self._servers))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if any(isinstance(result, Exception) for result in results):
            self.stop()
        return results

    def __call__(self, function, *args, **kwargs):
        """Like `outcomes`, but raises the first exception."""
        results = self.outcomes(function, *args, **kwargs)
        errors = [(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
        # A worker that failed because another one did says less than that one.
        errors.sort(key=lambda each: "WorkerError" in getattr(each[1], "bases", ()))
        if errors:
            raise errors[0][1]
        return results

    def _start(self):
        if self._servers:
            return
        mode = "plain" if self._plain else "epl"
        for index, environ in enumerate(processes.worker_environments(self._workers, self._devices)):
            self._servers.append(Server(self._start_process, mode, environ, "%s_%d.log" % (self._stem, index)))

    def stop(self):
        for server in self._servers:
            server.stop()
        self._servers = []


def write_message(connection, value):
    data = pickle.dumps(value, protocol=4)
    connection.sendall(struct.pack("<q", len(data)) + data)


def read_message(connection, deadline=None):
    """The next message. EOFError at the connection's end or when `deadline` (time.time()) passes; None means no
    deadline."""
    (length,) = struct.unpack("<q", _read(connection, 8, deadline))
    return pickle.loads(_read(connection, length, deadline))


def _read(connection, length, deadline):
    parts = b""
    while len(parts) < length:
        wait = None if deadline is None else max(0.0, deadline - time.time())
        ready, _, _ = select.select([connection], [], [], wait)
        if not ready:
            raise EOFError("no answer in time")
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError("the process ended")
        parts += part
    return parts
