"""The process behind `forks.Template`: imports TensorFlow once and forks children that run Python commands.

    python -m tests.helpers.fork_server SOCKET

It ends, and kills what it has forked, when its standard input ends. A child is like a new interpreter but for three
things: TensorFlow's modules are there already (and EPL's with its operations, for who imports it), its hashes have its
siblings' seed, and it leaves out the very end of an interpreter (destructors). Children of children: a command that
starts this Python with `subprocess.Popen` as epl-launch does gets a fork as well.

Forking is safe because nothing but the import has happened: importing starts no thread where OMP_NUM_THREADS is 1,
which is checked, and no session, device or server exists.
"""

import atexit
import builtins
import ctypes
import faulthandler
import importlib
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types

from tests.helpers import quicker
from tests.helpers.forks import SEEN_BY_IMPORTS, read_message, write_message
from tests.helpers.ready_modules import ReadyModules

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_FIRST_PATH = list(sys.path)
_ready = None  # EPL's modules, once they are imported


def die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def seen_by_imports(environ):
    return {key: environ.get(key) for key in SEEN_BY_IMPORTS}


# ---------------------------------------------------------------------------------------------------------------------
# A child, between the fork and its end


def run(command, environ, cwd=None):
    """Runs [sys.executable, ...] as this process, which was just forked, and ends it. Does not return."""
    code = 1
    try:
        _forget_the_parent(environ, cwd)
        if command[1:3] == ["-m", "epl.launch"]:  # which leaves them to its workers
            _ready.withdraw()
        else:
            _ready.offer()
        code = _outcome(command[1:])
        threading._shutdown()  # waits for threads that are no daemons, as an interpreter's end does
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _forget_the_parent(environ, cwd):
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.closerange(3, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    atexit._clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("epl", "tests")]:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(environ)
    if cwd is not None:
        os.chdir(cwd)
    sys.excepthook = sys.__excepthook__
    if environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.modules["numpy"].random.seed()
    own = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = own + [part for part in _FIRST_PATH[1:] if part not in own]
    subprocess.Popen = popen


def _outcome(arguments):
    """Runs what the arguments of an interpreter ask for; returns its exit status."""
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _show(error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error):
    """The error as an interpreter shows it, without the frames of this file."""
    ours, trace = (__file__, runpy.__file__), error.__traceback__
    while trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _run(arguments):
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if arguments[0] == "-c":
        sys.path.insert(0, "")
        source, name, sys.argv = arguments[1], "<string>", ["-c"] + arguments[2:]
    else:
        name, sys.argv = arguments[0], list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        main.__file__ = name
        with open(name, "rb") as script:
            source = script.read()
    exec(compile(source, name, "exec"), main.__dict__)


# ---------------------------------------------------------------------------------------------------------------------
# What children start themselves

_new_process = subprocess.Popen
_STREAMS = [subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT]  # of workers


def popen(command, **options):
    """In place of subprocess.Popen: what this Python is to run as a worker is forked, the rest is started."""
    environ = options.get("env") or os.environ
    forked = isinstance(command, list) and command[0] == sys.executable and not options.get("shell")
    as_workers = [options.get(each) for each in ("stdin", "stdout", "stderr")] == _STREAMS
    if forked and as_workers and seen_by_imports(environ) == seen_by_imports(os.environ):
        return Forked(command, **options)
    return _new_process(command, **options)


class Forked(object):
    """A forked child with the part of subprocess.Popen's interface that epl-launch uses."""

    def __init__(
        self, command, env, stdin, stdout, stderr, bufsize=0, preexec_fn=None, start_new_session=False, cwd=None
    ):
        assert [stdin, stdout, stderr] == _STREAMS
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
        self.returncode = None
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if start_new_session:
                    os.setsid()
                nothing = os.open(os.devnull, os.O_RDONLY)
                for source, target in ((nothing, 0), (writing, 1), (writing, 2)):
                    os.dup2(source, target)
                if preexec_fn is not None:
                    preexec_fn()
            except BaseException:
                os._exit(255)
            run(command, dict(env), cwd)
        os.close(writing)
        self.stdout = os.fdopen(reading, "rb", bufsize)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = exit_code(status)
        return self.returncode

    def wait(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked child", timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def exit_code(status):
    """As subprocess has it: minus the signal's number for one that was killed."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# ---------------------------------------------------------------------------------------------------------------------
# The template


class Template(object):
    def __init__(self, path):
        self._listener = socket.socket(socket.AF_UNIX)
        self._children = {}  # process id -> connection to who asked for it
        self._ended = {}  # the same the other way round, of those that have ended; they keep their numbers
        self._woken, waking = os.pipe()
        for end in (self._woken, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listener.bind(path)
        self._listener.listen(100)

    def serve(self):
        """Forks until the standard input ends."""
        while True:
            ready, _, _ = select.select([0, self._woken, self._listener] + list(self._ended), [], [])
            for connection in self._ended.keys() & set(ready):
                self._reap(connection)
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._tell_ends()
            if 0 in ready:
                return self._end()
            if self._listener in ready:
                self._fork(self._listener.accept()[0])

    def _fork(self, connection):
        try:
            request = read_message(connection)
        except EOFError:
            return connection.close()  # somebody only wanted to know whether we are there
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                die_with_parent()
                nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_APPEND)
                for source, target in ((nothing, 0), (log, 1), (log, 2)):
                    os.dup2(source, target)
            except BaseException:
                os._exit(255)
            run(request["command"], request["environ"], request["cwd"])
        write_message(connection, {"pid": pid})
        self._children[pid] = connection

    def _tell_ends(self):
        for pid in list(self._children):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found:
                connection = self._children.pop(pid)
                self._ended[connection] = pid
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                try:
                    write_message(connection, {"code": code})
                except OSError:
                    self._reap(connection)  # who asked for it has gone, or does not want to know

    def _reap(self, connection):
        os.waitpid(self._ended.pop(connection), 0)
        connection.close()

    def _end(self):
        for pid in self._children:
            os.killpg(pid, signal.SIGKILL)


def import_tensorflow():
    """All of TensorFlow that programs come to: what it loads when first asked for would cost each child seconds."""
    import tensorflow as tf

    tf.estimator.Estimator, tf.keras.layers.Dense, tf.compat.v1.keras.layers.Dense  # asks for them
    if hasattr(tf, "contrib"):
        # Of 1.15; every function of a data set loads it, as AutoGraph looks through all modules.
        tf.contrib.layers


def make_epl_ready():
    """What EPL imports and loads, for the children that come to import it."""
    global _ready
    _ready = ReadyModules("epl", ["epl.tf1", "epl.tf_compat.cells"])  # the latter is for the former, on one line
    importlib.import_module("epl.communicators.library").load()
    for name in ("grpc._channel", "grpc._server", "encodings.idna"):  # imported by its first call
        importlib.import_module(name)


def main(path):
    import_tensorflow()
    make_epl_ready()
    quicker.build_graphs_quickly()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, "importing TensorFlow started %d threads; none of them would be in a child" % (threads - 1)
    Template(path).serve()


if __name__ == "__main__":
    main(sys.argv[1])
