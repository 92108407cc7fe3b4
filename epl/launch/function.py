"""`epl.run`: worker processes for a function, from a notebook or any other program that need not load TensorFlow."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile

import cloudpickle

from epl.errors import LaunchError, WorkerError
from epl.launch import call

# What is left of a job after Ctrl-C gets so long to end.
_END_S = 30.0
_COLUMNS = 100
# How the launcher takes its line away, and how a page does that understands no more than a carriage return.
_ERASE, _BLANK = b"\r\x1b[K", b"\r" + b" " * _COLUMNS + b"\r"


class RemoteTraceback(Exception):
    """Where in a worker an error was raised: the cause of the error that `run` raises."""

    def __init__(self, worker, text):
        super().__init__('in worker %d\n"""\n%s"""' % (worker, text))


def run(function, num_workers=1, gpu_per_worker=1, args=(), kwargs=None, options=()):
    """Calls a function in worker processes that train together, as epl-launch would run a script; returns at their end.

    The function is the whole program: it calls `epl.init()` and builds the model. It is sent as it is, with what it
    uses of a notebook; modules that it imports have to be there. What the first worker prints is shown, and how far the
    job is. May be called again; each call has processes of its own, which are gone when it returns.

    Args:
      function: any that takes no arguments but these; lambdas and functions of a notebook's cells too.
      num_workers: worker processes.
      gpu_per_worker: devices of each: GPUs, or CPU devices where there are not enough.
      args: for the function, the same in each worker.
      kwargs: by name, the same.
      options: further options of epl-launch, such as `["--verbose", "--config", "run.yaml"]`.

    Returns:
      What the function returned in worker 0.

    Raises:
      LaunchError: the workers cannot be started, or the function cannot be sent to them.
      WorkerError: a worker ended without an error of Python's; says how.
      Exception: whatever the function raises, of the worker that began it; its cause is the traceback in the worker.
    """
    payload = _payload(function, args, kwargs or {})
    with tempfile.TemporaryDirectory(prefix="epl-run-") as folder:  # for this user alone
        command = [sys.executable, "-m", "epl.launch", "--num_workers", str(num_workers)]
        command += ["--gpu_per_worker", str(gpu_per_worker), "--stdin"]
        command += ["--progress", "line" if _shows_lines() else "plain"] + list(options) + [call.__file__]
        status, said = _launch(command, pickle.dumps((folder, sys.path, payload)))
        errors = _errors(folder)
        if errors:
            _raise(errors)
        if status != 0:
            raise (LaunchError if status == 2 else WorkerError)(
                "the workers of epl.run did not end well:\n%s" % (said.strip() or "exit status %d" % status)
            )
        with open(os.path.join(folder, call.VALUE), "rb") as stream:
            return pickle.load(stream)


def _payload(function, args, kwargs):
    if not callable(function):
        raise LaunchError(
            "epl.run calls a function in each worker, and got a %s. Give the function itself: epl.run(train), not "
            "epl.run(train())." % type(function).__name__
        )
    try:
        return cloudpickle.dumps((function, tuple(args), kwargs))
    except Exception as error:
        raise LaunchError(
            "epl.run cannot send the function to other processes: %s. It may use what the notebook holds, but no "
            "session, graph, lock or open file of it: make these in the function." % error
        ) from error


def _shows_lines():
    """Whether a line can be kept up to date where output goes: on a terminal, and in a notebook."""
    return sys.stdout.isatty() or type(sys.stdout).__module__.startswith("ipykernel")


def _launch(command, payload):
    """(exit status, standard error) of the launcher; its output is shown as it comes."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(payload)
        given.seek(0)
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=said, bufsize=0, start_new_session=True
        )
        try:
            while True:
                data = process.stdout.read(65536)
                if not data:
                    break
                sys.stdout.write(data.replace(_ERASE, _BLANK).decode("utf-8", "replace"))
                sys.stdout.flush()
            status = process.wait(_END_S)
        except BaseException:  # Ctrl-C in a notebook, most often
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)
            raise
        finally:
            process.stdout.close()
        said.seek(0)
        return status, said.read().decode("utf-8", "replace")


def _errors(folder):
    """[(worker, the error or None, its traceback as text)] of those that failed."""
    found = []
    for name in sorted(os.listdir(folder)):
        kind, _, worker = name.partition(".")
        if kind == call.ERROR and worker.isdigit():
            with open(os.path.join(folder, name), "rb") as stream:
                data, text = pickle.load(stream)
            found.append((int(worker), data, text))
    return found


def _raise(errors):
    """Raises the error that began it: not one that says what another worker has done, if there is any other."""
    told = [(worker, _made(data), text) for worker, data, text in errors]
    own = [each for each in told if not isinstance(each[1], WorkerError)]
    worker, error, text = (own + told)[0]
    if error is None:
        error = WorkerError("worker %d failed: %s" % (worker, text.strip().splitlines()[-1]), worker=worker, cause=text)
    raise error from RemoteTraceback(worker, text)


def _made(data):
    """The error of that pickle; None where this process cannot make it, as it lacks the module, for instance."""
    try:
        return None if data is None else pickle.loads(data)
    except Exception:  # whatever an error's class does when it is made; its text is told
        return None
