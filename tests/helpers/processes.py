"""Worker processes for tests: started without a launcher, watched, never left behind."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

from tests.helpers import on_gpus

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What a caller's shell may have set must not reach the processes of a test.
_FOREIGN = ("EPL_", "TF_CONFIG", "SLURM_", "OMPI_", "PMI_", "PMIX_", "HOROVOD_", "CUDA_VISIBLE_DEVICES")


def foreign_variables(environ):
    """The variables of `environ` that would tell EPL about a cluster or its configuration."""
    return [key for key in environ if key.startswith(_FOREIGN)]


def clean_environment(**extra):
    """This process' environment without any cluster's variables, with the repository importable, plus `extra`."""
    foreign = set(foreign_variables(os.environ))
    environ = {key: value for key, value in os.environ.items() if key not in foreign}
    path = [REPOSITORY] + [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ.update(
        PYTHONPATH=os.pathsep.join(path),
        PYTHONUNBUFFERED="1",
        TF_CPP_MIN_LOG_LEVEL="2",
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
        PYTHONWARNINGS="ignore",
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    environ.update((key, str(value)) for key, value in extra.items())
    return environ


def free_ports(count):
    """`count` TCP ports of the loopback interface that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


# communication.timeout_s of workers in tests: one that waits for nothing says so long before the test's own time-out.
_TIMEOUT_S = 60


def worker_environments(workers, devices, token="a token of the tests"):
    """The environment of each worker of a job on this host, as a launcher would set it."""
    common = {"EPL_GPU_PER_WORKER": devices, "EPL_DEVICE": "cpu", "EPL_COMMUNICATION_TIMEOUT_S": _TIMEOUT_S}
    environments = [dict(common) for _ in range(workers)]
    if on_gpus.wanted():
        for index, each in enumerate(environments):
            each.update(on_gpus.variables(index, workers))
    if workers == 1:
        return [clean_environment(**environments[0])]
    hosts = ["127.0.0.1:%d" % port for port in free_ports(workers)]
    config = [{"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}} for index in range(workers)]
    return [
        clean_environment(TF_CONFIG=json.dumps(each), EPL_JOB_TOKEN=token, **own)
        for each, own in zip(config, environments)
    ]


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def die_with_parent():
    """For preexec_fn: the child is killed when the process that started it ends, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Noted(int):
    """A process id that a process has written to a file of its own, the latter's time with it.

    The system gives a number to another process soon after its owner's end.
    """

    def __new__(cls, path):
        with open(str(path)) as file:
            found = super(Noted, cls).__new__(cls, file.read())
        found.at = os.path.getmtime(str(path))
        return found


def alive(noted):
    """Whether the process that wrote down its id, a Noted, lives and is no zombie."""
    try:
        with open("/proc/%d/stat" % noted) as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] not in "ZX" and time.time() - age_s < noted.at + 0.1


class Ended(object):
    """How a process ended: `code` as subprocess has it, or None when it had to be killed after the time-out."""

    def __init__(self, code, output, seconds):
        self.code = code
        self.output = output
        self.seconds = seconds

    def __repr__(self):
        return "exit %s after %.1f s\n%s" % (self.code, self.seconds, self.output[-4000:])


class Process(object):
    """One child in a process group of its own; its output goes to a file and is read back.

    Until `wait` or `kill` it stays a zombie when it has ended, so that its number, by which the group is killed, is not
    somebody else's.
    """

    def __init__(self, arguments, environ, log, cwd=None):
        self._log = str(log)
        self._started = time.time()
        with open(self._log, "wb") as file:
            self._child = subprocess.Popen(
                [str(each) for each in arguments],
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd or REPOSITORY,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.pid = self._child.pid

    def output(self):
        with open(self._log, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def running(self):
        return self._child.returncode is None and not os.waitid(os.P_PID, self.pid, _HAS_ENDED)

    def wait_for(self, text, timeout_s):
        """Waits until the output holds `text`; an AssertionError shows the output if it ends or takes too long."""
        deadline = time.time() + timeout_s
        while text not in self.output():
            running = self.running()
            assert time.time() < deadline and (running or text in self.output()), "no %r in: %s" % (
                text,
                self.output()[-4000:],
            )
            time.sleep(0.05)

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout_s):
        """Waits for the end; the whole group is killed when it does not come in time."""
        deadline = time.time() + timeout_s
        while self.running() and time.time() < deadline:
            time.sleep(0.02)
        running, seconds = self.running(), time.time() - self._started
        self.kill()
        return Ended(None if running else self._child.returncode, self.output(), seconds)

    def kill(self):
        """Kills what is left of the process group, if nobody has done so."""
        if self._child.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._child.wait()


def python(arguments, environ, log, cwd=None):
    """A child that runs this interpreter."""
    return Process([sys.executable] + list(arguments), environ, log, cwd)


def run_workers(start, arguments, workers, devices, folder, timeout_s, **variables):
    """Runs the same Python command as every worker of a job; returns an `Ended` for each, in order of the workers.

    `start` is `forks.Template.python` or `python`; `variables` are further ones of the environment.
    """
    extra = {key: str(value) for key, value in variables.items()}
    environments = [dict(environ, **extra) for environ in worker_environments(workers, devices)]
    children = [
        start(arguments, environ, os.path.join(str(folder), "worker_%d.log" % index))
        for index, environ in enumerate(environments)
    ]
    deadline = time.time() + timeout_s
    try:
        return [child.wait(max(0.1, deadline - time.time())) for child in children]
    finally:
        for child in children:
            child.kill()
