"""One worker process: how it is started, and how it ended."""

import os
import re
import signal
import subprocess
import time

# What a worker prints last that ends only because another one did.
_OTHERS_FAULT = re.compile(r"^(epl\.errors\.)?WorkerError\b")


class Worker:
    """A worker of this machine.

    Args:
      index: its index in the job.
      command: list of program and arguments.
      environ: all its variables.
      setup: function to run in the child between fork and exec.
      stream: its `output.Stream`.
    """

    def __init__(self, index, command, environ, setup, stream):
        self.index = index
        self.stream = stream
        self.code = None  # exit code, or minus the number of the signal; None while it runs
        self.seconds = None  # how long it ran
        self.stopped_with = None  # number of the first signal that we sent it while it ran
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            preexec_fn=setup,
            start_new_session=True,
        )
        self.session = self._process.pid
        self.empty = False  # nobody is left in its session; its number is no longer ours
        self.pipe = self._process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.open = True

    def poll(self):
        """Note the end of the process if it has ended; True if that is new."""
        if self.code is not None or self._process.poll() is None:
            return False
        self.code = self._process.returncode
        self.seconds = time.monotonic() - self._started
        return True

    def read(self, now):
        """Pass on what the worker has written; closes the pipe at its end."""
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return
        if data:
            self.stream.feed(data, now)
        else:
            self.close()

    def close(self):
        """Read no more."""
        if self.open:
            self.open = False
            self._process.stdout.close()
            self.stream.finish()

    @property
    def failed_itself(self):
        """Whether it ended badly before anybody told it to end."""
        return bool(self.code) and self.stopped_with is None

    @property
    def signal_number(self):
        """Number of the signal that ended it, or its script's program (a shell reports 128 + number); else None."""
        number = -self.code if self.code < 0 else self.code - 128
        return number if number in set(signal.Signals) else None

    @property
    def blames_another(self):
        """Whether its last lines say that it ended because of another worker."""
        return any(_OTHERS_FAULT.match(line) for line in self.stream.last_lines())

    @property
    def exit_status(self):
        """Exit status for the launcher: the code, or 128 + signal."""
        return 128 - self.code if self.code < 0 else self.code

    def ending(self):
        """How it ended, in words."""
        if self.code < 0:
            return "killed by %s" % _signal_name(-self.code)
        if self.signal_number is not None:
            return "exit code %d (%s ended a program of the script)" % (self.code, _signal_name(self.signal_number))
        return "exit code %d" % self.code


def _signal_name(number):
    return (
        "%s (signal %d)" % (signal.Signals(number).name, number)
        if number in set(signal.Signals)
        else ("signal %d" % number)
    )


def root_cause(workers):
    """Of the workers that failed by themselves, given in the order of their ends, the one that began it; or None.

    A killed worker comes before those that exited; those whose last words name another worker come last: they may be
    quicker to end than the one that failed.
    """
    failed = [worker for worker in workers if worker.failed_itself]
    if not failed:
        return None
    return min(failed, key=lambda worker: (worker.signal_number is None, worker.blames_another))
