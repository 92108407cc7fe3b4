"""A job whose worker 1 is held up in ways that are planted, and what epl-top has to say of each."""

import os
import signal
import subprocess
import sys
import time

from tests.helpers.processes import clean_environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, "tests", "helpers", "programs", "held_up.py")
# Beyond it something hangs.
LIMIT_S = 120

_PYTHON = r"late: worker 1, in its own Python for [\d.]+ s, at held_up\.py:\d+ in "
_STEP = r"late: worker 1, in a step of .* for [\d.]+ s, at held_up\.py:\d+ in "
_DATA = r"late: worker 1, waits for data \(.*IteratorGetNext.*\) for [\d.]+ s, at held_up\.py:\d+ in "
# What the sentence about the worker that is late has to have: the worker, what it is in, and the line.
NAMES = {
    "sleeps": _PYTHON + r"sleeps: time\.sleep\(0\.1\)",
    "endless_loop": _PYTHON + r"(endless_loop|fault): ",
    "endless_call": _STEP + r"(endless_call|fault): ",
    "holds_the_interpreter": _PYTHON + r"holds_the_interpreter: re\.match",
    "starved": _DATA + r"(rows|fault): ",
    "other_fetches": r"late: worker 1, waits for data \(taken\) for [\d.]+ s, at held_up\.py:\d+ in ",
    "slow": r"late: worker 1, .* for [\d.]+ s, at held_up\.py:\d+ in <module>: ",
    "full_disk": _PYTHON + r"(full_disk|fault): ",
    "waits_for_a_lock": _PYTHON + r"waits_for_a_lock: lock\.acquire",
    "reads_a_pipe": _PYTHON + r"reads_a_pipe: os\.read",
    "opens_a_fifo": _PYTHON + r"opens_a_fifo: open\(path\)",
    "reads_a_socket": _PYTHON + r"reads_a_socket: here\.recv",
    "takes_of_an_empty_queue": _PYTHON + r"takes_of_an_empty_queue: items\.get",
    "joins_a_thread": _PYTHON + r"joins_a_thread: thread\.join",
    "waits_for_a_process": _PYTHON + r"waits_for_a_process: child\.wait",
    "collects_garbage": _PYTHON + r"(collects_garbage|fault): ",
    "handles_a_signal": _PYTHON + r"(handles_a_signal|fault): ",
    # Nothing tells the two apart from outside: the process is idle in a step that takes data.
    "hung_call": _DATA + r"(hung_call|fault): ",
    "dead_feeder": _DATA + r"dead_feeder: items\.get",
    "stopped": r"late: worker 1, stopped \(SIGSTOP\); it was in .*",
}
# Of these worker 1 makes steps, or is in one, so that worker 0 does not wait in the exchange before it.
IN_STEP = ("endless_call", "starved", "hung_call", "dead_feeder")


class HeldUp(object):
    """A running job of held_up.py with two workers."""

    def __init__(self, folder):
        self.folder = folder
        arguments = [sys.executable, "-m", "epl.launch", "--num_workers", "2", "--device", "cpu", PROGRAM, str(folder)]
        self.output = open(str(folder / "output"), "wb")
        self.process = subprocess.Popen(
            arguments,
            cwd=str(folder),
            env=clean_environment(TMPDIR=str(folder)),
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def top(self, *arguments):
        """(exit status, output) of epl-top."""
        command = [sys.executable, "-m", "epl.launch.top"] + list(arguments)
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, env=clean_environment()
        )
        return ended.returncode, ended.stdout.decode()

    def once(self):
        return self.top("--once", str(self.process.pid))[1]

    def until(self, told, what):
        """Waits until `told` gives something; returns that."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = told()
            if found:
                return found
            assert self.process.poll() is None, (self.folder / "output").read_text()
            assert time.monotonic() < deadline, "not %s: %s" % (what, (self.folder / "output").read_text())
            time.sleep(0.05)

    def begin(self, fault):
        path = self.folder / "at"
        if path.exists():
            path.unlink()
        (self.folder / "next").write_text(fault)
        (self.folder / "next").rename(self.folder / "fault")  # the program may look at any time
        self.until(lambda: path.exists() and path.read_text() == fault, "at " + fault)
        time.sleep(1.0)  # until the others have waited for it for a while

    def end(self):
        (self.folder / "fault").unlink()
        self.until(lambda: "\nnobody is late" in self.once(), "going on")

    def stop(self):
        """Stops worker 1 where it is; returns its process id, for `os.kill(pid, signal.SIGCONT)`."""
        self.begin("stopped")
        pid = int(row(self.once(), 1).split()[1])
        os.kill(pid, signal.SIGSTOP)
        return pid

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(LIMIT_S)
        finally:
            self.output.close()


def row(text, worker):
    """The line of a worker in the table."""
    return next(line for line in text.splitlines() if line.startswith("%d " % worker))
