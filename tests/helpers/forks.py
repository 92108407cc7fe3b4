"""Python processes that are forked from one that has imported TensorFlow: the import costs seconds of each of them."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from tests.helpers import processes

# Variables that take effect when Python starts or TensorFlow is imported: those of the template hold for its children.
# MALLOC_... do too, but change only how quickly memory is had.
SEEN_BY_IMPORTS = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_ENABLE_ONEDNN_OPTS",
)
_START_S = 120


class Template(object):
    """The process that is forked; starts when it is first needed. A context manager."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="forks")
        self._path = os.path.join(self._folder, "socket")
        self._environ = processes.clean_environment()
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(20)
        shutil.rmtree(self._folder)

    def python(self, arguments, environ, log, cwd=None):
        """Like `processes.python`. An environment that differs where imports see it gets an interpreter of its own."""
        if any(environ.get(key) != self._environ.get(key) for key in SEEN_BY_IMPORTS):
            return processes.python(arguments, environ, log, cwd)
        return ForkedProcess(self._connect(), arguments, environ, log, cwd)

    def start(self):
        """Starts it now. Threads that share it need it to have started."""
        self._connect().close()

    def _connect(self):
        if self._process is None:
            with open(os.path.join(self._folder, "log"), "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.helpers.fork_server", self._path],
                    env=self._environ,
                    cwd=processes.REPOSITORY,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=processes.die_with_parent,
                )
        deadline = time.time() + _START_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._path)
                return connection
            except OSError:
                connection.close()
                if self._process.poll() is not None or time.time() > deadline:
                    with open(os.path.join(self._folder, "log")) as log:
                        raise AssertionError("the process to fork has not started: %s" % log.read()[-4000:])
                time.sleep(0.05)


class ForkedProcess(processes.Process):
    """A child of the template, in a session of its own. It stays a zombie until the connection is closed."""

    def __init__(self, connection, arguments, environ, log, cwd):
        self._log = str(log)
        self._started = time.time()
        self._connection = connection
        self._code = None
        open(self._log, "wb").close()
        command = [sys.executable] + [str(each) for each in arguments]
        request = {"command": command, "environ": environ, "log": self._log, "cwd": cwd or processes.REPOSITORY}
        write_message(connection, request)
        self.pid = read_message(connection)["pid"]

    def running(self):
        return self._poll(0) is None

    def wait(self, timeout_s):
        code = self._poll(timeout_s)
        ended = processes.Ended(code, self.output(), time.time() - self._started)
        self.kill()
        return ended

    def kill(self):
        if self._connection is None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(self.pid, signal.SIGKILL)  # it has just been forked, and leads no group yet
        assert self._poll(20) is not None, "process %d did not end" % self.pid
        self._connection.close()
        self._connection = None

    def _poll(self, timeout_s):
        if self._code is None:
            self._connection.settimeout(timeout_s)
            try:
                self._code = read_message(self._connection)["code"]
            except (socket.timeout, BlockingIOError):
                return None
        return self._code


def write_message(connection, value):
    data = json.dumps(value).encode("utf-8")
    connection.sendall(struct.pack("<I", len(data)) + data)


def read_message(connection):
    """The next message. A time-out of the connection holds for its beginning; the rest is on its way then."""
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise EOFError("the other side has gone")
    (length,) = struct.unpack("<I", head)
    parts = b""
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError("the other side has gone")
        parts += part
    return json.loads(parts.decode("utf-8"))
