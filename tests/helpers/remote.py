"""Python functions called in other processes: one that never imports EPL, and the workers of jobs.

A function is named by where it stands, "tests.helpers.programs.sessions:train", and gets EPL (or None in the plain
process) as its first argument. Processes are started once and serve many calls, each in a graph of its own.
"""

import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time

from tests.helpers import processes


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
    """One process that answers calls."""

    def __init__(self, mode, environ, log):
        self._log = str(log)
        with open(self._log, "ab") as file:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.remote_server", mode],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=processes.REPOSITORY,
                start_new_session=True,
                preexec_fn=processes.die_with_parent,
            )

    def output(self):
        with open(self._log, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def call(self, function, args, kwargs, timeout_s):
        """What the function returned, or a RemoteError. AssertionError if the process ended or did not answer in
        time."""
        write_message(self._child.stdin, (function, args, kwargs))
        deadline = time.time() + timeout_s
        try:
            return read_message(self._child.stdout, deadline)
        except EOFError as error:
            raise AssertionError(
                "%s in %s: %s\n%s" % (error, function, "exit %s" % self._child.poll(), self.output()[-4000:])
            )

    def stop(self):
        self._child.kill()
        self._child.wait()
        self._child.stdin.close()
        self._child.stdout.close()


class Job(object):
    """The workers of a job, or the plain process; started at the first call, started again after a call that went
    wrong."""

    def __init__(self, folder, workers=1, devices=1, plain=False):
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
        environments = processes.worker_environments(self._workers, self._devices)
        self._servers = [
            Server(mode, environ, "%s_%d.log" % (self._stem, index)) for index, environ in enumerate(environments)
        ]

    def stop(self):
        for server in self._servers:
            server.stop()
        self._servers = []


def write_message(pipe, value):
    data = pickle.dumps(value, protocol=4)
    pipe.write(struct.pack("<q", len(data)) + data)
    pipe.flush()


def read_message(pipe, deadline=None):
    """The next message. EOFError at the pipe's end or when `deadline` (time.time()) passes; None means no deadline."""
    (length,) = struct.unpack("<q", _read(pipe, 8, deadline))
    return pickle.loads(_read(pipe, length, deadline))


def _read(pipe, length, deadline):
    parts = b""
    while len(parts) < length:
        wait = None if deadline is None else max(0.0, deadline - time.time())
        ready, _, _ = select.select([pipe], [], [], wait)
        if not ready:
            raise EOFError("no answer in time")
        part = os.read(pipe.fileno(), length - len(parts))
        if not part:
            raise EOFError("the process ended")
        parts += part
    return parts
