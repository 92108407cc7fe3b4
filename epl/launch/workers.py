"""One worker process: how it is started, and how it ended."""

import os
import re
import signal
import subprocess
import time

# What a worker prints last that ends only because another one did.
_OTHERS_FAULT = re.compile(r"^(epl\.errors\.)?WorkerError\b|^\S*OutOfRangeError: the data of worker \d+ ended at step")
# What all workers say in the same words of the one that is at fault.
_AT_FAULT = re.compile(r"^(?:epl\.errors\.)?WorkerError: worker (\d+)\b")
# And one that has lost the others, or has waited for them in vain.
_MISSED_OTHERS = re.compile(r"^(epl\.errors\.)?(Worker|Communication)Error\b")
# Whom it has waited for in vain: that one's process may take longer to end than those that wait for it.
_GONE = re.compile(r"\bworker (\d+) has (?:ended already|finished)\b")
# Likewise where that one may still run: "waited 8 s for workers 1 (process 7, stopped), 2 (process 8)" and the like.
_AWAITED = [
    re.compile(words)
    for words in (
        r"\bwaited \S+ s (?:in vain )?for workers? ((?:\d+(?: \([^)]*\))?(?:, )?)+)",
        r": ((?:worker \d+ \([^)]*\)(?:, )?)+) did not come within",
        r"\b[Ww]orker (\d+) (?:has not saved it within|at \S+ could not be reached)",
        r"\bno sign of life from worker (\d+)",
        r"\bworkers? (\d+(?: and \d+(?! others))?)(?: and \d+ others)? (?:has|have) not started within",
    )
]
_ASIDE = re.compile(r"\([^)]*\)")


class Worker:
    """A worker of this machine.

    Args:
      index: its index in the job.
      command: list of program and arguments.
      environ: all its variables.
      setup: function to run in the child between fork and exec.
      stream: its `output.Stream`.
      note: its `notes.Note`.
    """

    def __init__(self, index, command, environ, setup, stream, note):
        self.index = index
        self.stream = stream
        self.code = None  # exit code, or minus the number of the signal; None while it runs
        self.seconds = None  # how long it ran
        self.stopped_with = None  # number of the first signal that we sent it while it ran
        self.stopped = False  # SIGSTOP held it when the end of the job began, or until our patience ended
        self.waited_for_by = None  # the worker that waits in epl.init() for this one, which has ended without
        self.note = note
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
        """Whether it ended badly, or too early, before anybody told it to end."""
        return self.waited_for_by is not None or bool(self.code) and self.stopped_with is None

    @property
    def signal_number(self):
        """Number of the signal that ended it, or its script's program (a shell reports 128 + number); else None."""
        number = -self.code if self.code < 0 else self.code - 128
        return number if number in set(signal.Signals) else None

    @property
    def blames_another(self):
        """Whether its last lines say that it ended because of another worker."""
        return any(_OTHERS_FAULT.match(line) for line in self._last_words()) and not self.blames_itself

    @property
    def missed_others(self):
        """Whether its last lines say that it lost other workers, or waited for them in vain."""
        return any(_MISSED_OTHERS.match(line) for line in self._last_words()) and not self.blames_itself

    @property
    def blames_itself(self):
        """Whether its last lines say, as those of all workers do, that it is the one at fault."""
        return any(match.group(1) == str(self.index) for match in map(_AT_FAULT.match, self._last_words()) if match)

    @property
    def missed(self):
        """Indices of the workers of which its last lines say that they had ended while it needed them."""
        return {int(found) for line in self._last_words() for found in _GONE.findall(line)}

    @property
    def awaited(self):
        """Indices of the workers for which its last words say that it waited in vain."""
        found = (found for line in self._last_words() for words in _AWAITED for found in words.findall(line))
        return {int(index) for each in found for index in re.findall(r"\d+", _ASIDE.sub("", each))}

    @property
    def silent(self):
        """Whether it ran on, and not stopped by a signal, until we ended it."""
        return self.stopped_with is not None and not self.stopped and self.waited_for_by is None

    def _last_words(self):
        return self.stream.errors.message + self.stream.last_lines()

    @property
    def exit_status(self):
        """Exit status for the launcher: the code, or 128 + signal; 1 for one that ended well, but too early."""
        return 128 - self.code if self.code < 0 else self.code or 1

    def ending(self):
        """How it ended, in words."""
        if self.stopped:
            return "it was stopped (SIGSTOP), and the others waited for it in vain"
        if self.waited_for_by is not None:
            return "exit code 0, but without epl.init(), so that worker %d waits for it in vain" % self.waited_for_by
        if self.silent:
            return "it still ran, but the others waited for it in vain"
        if self.code == 0:
            return "exit code 0, while the others still trained"
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
    """Of `workers`, given in the order of their ends, the one that began the end of a job that failed; or None.

    A killed worker comes before those that exited; those whose last words name another worker come last: they may be
    quicker to end than the one that failed. Where all who failed have only lost another, it is one that is stopped, or
    one that had ended well while they still needed it, or one that still ran but did not come.
    """
    failed = [worker for worker in workers if worker.failed_itself]
    held = [worker for worker in workers if worker.stopped]
    if not failed:
        return held[0] if held else None
    first = min(
        failed, key=lambda worker: (worker.signal_number is None, worker.blames_another or worker.missed_others)
    )
    if not first.missed_others or first.signal_number is not None:
        return first
    before = workers[: workers.index(first)]
    gone = [worker for worker in workers if worker.code == 0 and (worker in before or worker.index in first.missed)]
    silent = [worker for worker in workers if worker.silent and worker.index in first.awaited]
    return (held + gone + silent + [first])[0]
