"""One worker process: how it is started, and how it ended."""

import os
import signal
import subprocess
import time

from epl.launch import notes


class Worker:
    """A worker of this machine.

    Args:
      index: its index in the job.
      command: list of program and arguments.
      environ: all its variables.
      setup: function to run in the child between fork and exec.
      stream: its `output.Stream`.
      note: its `notes.Note`.
      stdin: of the process, as for subprocess.Popen.
    """

    def __init__(self, index, command, environ, setup, stream, note, stdin=subprocess.DEVNULL):
        self.index = index
        self.stream = stream
        self.code = None  # exit code, or minus the number of the signal; None while it runs
        self.seconds = None  # how long it ran
        self.ended_at = None  # by time.monotonic()
        self.stopped_with = None  # number of the first signal that we sent it while it ran
        self.stopped = False  # SIGSTOP held it when the end of the job began, or until our patience ended
        self.waited_for_by = None  # the worker that waits in epl.init() for this one, which has ended without
        self.note = note
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env=environ,
            stdin=stdin,
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
        self.ended_at = time.monotonic()
        self.seconds = self.ended_at - self._started
        self.note.keep()
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
    def failure(self):
        """The notes.Failure that it has noted, or None."""
        return self.note.failure

    @property
    def since(self):
        """When it went wrong, by time.monotonic(), as far as is known: when it noted that, or ended."""
        return self.ended_at if self.failure is None else self.failure.at

    @property
    def silent(self):
        """Whether it ran on, and not stopped by a signal, until we ended it."""
        return self.stopped_with is not None and not self.stopped and self.waited_for_by is None

    @property
    def exit_status(self):
        """Exit status for the launcher: the code, or 128 + signal; 1 for one that ended well, but too early."""
        return 128 - self.code if self.code < 0 else self.code or 1

    def ending(self):
        """How it ended, in words."""
        if self.stopped:
            return "it was stopped (SIGSTOP), and the others waited for it in vain"
        if self.waited_for_by is not None:
            what = "without leaving its job in good order" if self.note.state else "without epl.init()"
            if self.note.state == notes.LEFT:
                what = "before all others had come to epl.init()"
            return "exit code 0, but %s, so that worker %d waits for it in vain" % (what, self.waited_for_by)
        if self.silent:
            return "it still ran%s" % (" after its error" if self.failure else ", but the others waited for it in vain")
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

    Whoever notes that it failed because of another one leads to that one, and so on; of those to which that leads, the
    one counts where something was wrong first. It may be one that is stopped, has ended well while others needed it, or
    still ran but did not come. Where nobody knows because of whom, it is one that was stopped, or had ended well. Where
    they lead in a circle, it is one that still ran: whoever was waited for was waiting for it, and did not know yet.
    """
    failed = [worker for worker in workers if worker.failed_itself]
    held = [worker for worker in workers if worker.stopped]
    if not failed:
        return held[0] if held else None
    by_index = {worker.index: worker for worker in workers}
    origins = [_origin(worker, by_index) for worker in failed]
    known = [(since, worker) for since, worker in origins if not _lost_somebody(worker)]
    if known:
        return min(known, key=lambda origin: (origin[0], origin[1].signal_number is None))[1]
    first = min(origins, key=lambda origin: origin[0])[1]
    gone = [worker for worker in workers if worker.code == 0 and worker.ended_at < first.ended_at]
    named = [_named(worker) for worker in failed]
    here = all(each and by_index.keys() >= set(each) for each in named)
    waited_for = [worker for worker in workers if worker.silent and worker.failure is None] if here else []
    return (held + gone + waited_for + [first])[0]


def _origin(worker, by_index):
    """(since when, which worker): where the notes lead, from one worker to that which it names, and so on."""
    since, seen = worker.since, set()
    while worker.index not in seen:
        seen.add(worker.index)
        since = min(since, worker.since)
        named = [by_index[index] for index in _named(worker) if index in by_index and index not in seen]
        if named:
            worker = min(named, key=lambda each: each.since)
    return since, worker


def _named(worker):
    return worker.failure.because if worker.failure is not None else ()


def _lost_somebody(worker):
    """Whether it only knows that it lost others, or waited for them in vain, and not whom of this machine."""
    return worker.failure is not None and worker.failure.follows
