"""Output of the workers: prefixed and live on the console, as it is in a log file each."""

import collections
import os
import re
import select
import time

from epl.launch.errors_seen import ErrorsSeen
from epl.launch.noise import Noise
from epl.launch.progress import columns_of
from epl.launch.tracebacks import KnownErrors, Tracebacks

# An unfinished line is shown after this time, so that "Loading... " is seen before "done" comes.
PARTIAL_LINE_S = 0.2
# A line longer than this is passed on in pieces.
LONGEST_PIECE = 64 * 1024
TAIL_LINES = 20
_TAIL_LINE_BYTES = 2000
# With this much text that the terminal has not taken, workers' pipes are left to fill up, which holds the workers.
_CONSOLE_LIMIT = 1024 * 1024
# A pipe that is ready to be written takes at least this much without blocking.
_WRITE_BYTES = 4096
# What EPL's messages begin with where they go to a file. The log keeps it; on the console it would be in the way.
_TIME_AND_LEVEL = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ (?=epl: )")
_WARNING = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (WARNING|ERROR|CRITICAL) epl: ")
# The plan's first line says what is done; the table below it is for those who ask for all.
_PLAN = re.compile(rb"^[-\d]+ [:\d]+ INFO epl: Plan: ")
# How much of what a worker prints is shown; its errors are always.
EVERYTHING, OWN, ERRORS = "everything", "own", "errors"


class Console:
    """Standard output of the launcher, shared by the workers line by line. Never blocks.

    Args:
      descriptor: file descriptor to write to.
    """

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.broken = False
        self._pending = bytearray()
        self._open_line = None  # worker whose unfinished line the cursor stands in
        self._status = b""  # the line below all others, of a terminal
        self._drawn = False  # it is there now

    def status(self, text):
        """Keeps a line below all others, on a terminal, instead of the one before; "" takes it away."""
        self._erase()
        self._status = text.encode("utf-8", "replace")
        self._draw()

    def _erase(self):
        if self._drawn:
            self._pending += b"\r\x1b[K"
            self._drawn = False

    def _draw(self):
        if self._status and self._open_line is None:
            self._pending += self._status[: columns_of(self.descriptor) - 1]
            self._drawn = True

    @property
    def pending(self):
        """Whether there is text left to write."""
        return bool(self._pending)

    @property
    def full(self):
        """Whether workers should be held until the reader has caught up."""
        return len(self._pending) > _CONSOLE_LIMIT

    def piece(self, worker, data, ends):
        """Add `data` (bytes without line ends) of `worker` (an int, or a name); `ends`: the line is complete."""
        self._erase()
        if self._open_line not in (None, worker):
            self._pending += b"\n"
            self._open_line = None
        if self._open_line is None:
            self._pending += ("[%s] " % (worker if isinstance(worker, str) else "worker %d" % worker)).encode("utf-8")
        self._pending += data
        if ends:
            self._pending += b"\n"
        self._open_line = None if ends else worker
        self._draw()

    def end_line(self, worker):
        """Complete the line of `worker`, if the cursor still stands in it."""
        if self._open_line == worker:
            self.piece(worker, b"", True)

    def say(self, text):
        """A line of the launcher's own."""
        self.piece("epl-launch", text.encode("utf-8", "replace"), True)

    def write_some(self):
        """Write a piece; call it when the descriptor is ready. Sets `broken` if the reader has gone."""
        if not self._pending:
            return
        try:
            written = os.write(self.descriptor, self._pending[:_WRITE_BYTES])
        except BlockingIOError:
            return  # somebody else has made the terminal non-blocking
        except OSError:
            self.broken = True
            self._pending.clear()
            return
        del self._pending[:written]
        if self.broken:
            self._pending.clear()

    def finish(self, timeout_s=2.0):
        """Write what is left, for at most `timeout_s` seconds."""
        self.status("")
        if self._open_line is not None:
            self._pending += b"\n"
            self._open_line = None
        poller = select.poll()
        poller.register(self.descriptor, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while self._pending and not self.broken:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if poller.poll(left * 1000):
                self.write_some()


class Stream:
    """Output of one worker.

    Args:
      worker: its index.
      console: the `Console`.
      log: binary file for the unchanged output, or None.
      everything: show noise of TensorFlow's too, times and whole tracebacks, which otherwise are in the log alone.
      known: the errors that the workers of this console have shown; None: none.
      shown: EVERYTHING; OWN: without tables of EPL's; ERRORS: only errors, and what EPL warns of.
      lines: called with each whole line, text; None: nobody wants them.
    """

    def __init__(self, worker, console, log=None, everything=False, known=None, shown=EVERYTHING, lines=None):
        self._worker = worker
        self._console = console
        self._log = log
        self._line = bytearray()  # unfinished line, as far as it has not been passed on
        self._begun = False  # a first part of it has been
        self._since = None  # when its first part came
        self._after_return = False  # a "\n" now would belong to the "\r" before
        self._tail = collections.deque(maxlen=TAIL_LINES)
        self._tail_line = bytearray()
        self._shown, self._lines = shown, lines
        self._errors = Tracebacks(worker, KnownErrors())  # to know what of the output belongs to one
        self._in_table = False
        self._noise = None if everything else Noise()
        self._tracebacks = None if everything else Tracebacks(worker, known or KnownErrors())
        self.errors = ErrorsSeen()
        self.log_error = None

    def feed(self, data, now):
        """Take `data` (bytes of any form) that the worker wrote; `now`: `time.monotonic()`."""
        self._write_log(data)
        after_return, self._after_return = self._after_return, data.endswith(b"\r")
        if after_return and data.startswith(b"\n"):
            data = data[1:]
        for text in data.splitlines(True):
            self._take(text, now)

    def _take(self, text, now):
        ends = text[-1:] in (b"\n", b"\r")
        self._line += text.rstrip(b"\r\n")
        if ends:
            # A progress bar begins with "\r"; that alone is no line worth showing.
            if text != b"\r" or self._line or self._begun:
                self._pass_on(True)
        elif len(self._line) >= LONGEST_PIECE:
            self._pass_on(False)
        elif self._since is None:
            self._since = now

    def _pass_on(self, ends):
        if ends and not self._begun and self._noise is not None and self._noise.has(bytes(self._line)):
            self._since = None
            self._line.clear()
            return
        hidden = self._is_hidden(bytes(self._line), ends)
        if not self._begun and self._noise is not None:
            self._line = bytearray(_TIME_AND_LEVEL.sub(b"", self._line))
        if hidden:
            self._show_held()
        elif ends and not self._begun and self._tracebacks is not None:
            self._show(self._tracebacks.take(bytes(self._line)))
        elif self._line or not self._begun:
            self._show_held()
            self._console.piece(self._worker, bytes(self._line), ends)
        elif ends:
            self._console.end_line(self._worker)
        if len(self._tail_line) < _TAIL_LINE_BYTES:
            self._tail_line += self._line[: _TAIL_LINE_BYTES - len(self._tail_line)]
        if ends:
            self._tail.append(bytes(self._tail_line))
            text = self._tail_line.decode("utf-8", "replace")
            self.errors.take(text)
            if self._lines is not None:
                self._lines(text)
            self._tail_line.clear()
        self._begun = not ends
        self._since = None
        self._line.clear()

    def _is_hidden(self, line, ends):
        """Whether a line, or a part of one, is in the log alone."""
        if self._shown == EVERYTHING:
            return False
        if self._shown == ERRORS:
            if not ends or self._begun:
                return True
            inside = self._errors.inside or self._errors.begins(line)
            self._errors.take(line)
            return not (inside or _WARNING.match(line))
        self._in_table = _PLAN.match(line) is not None or self._in_table and line[:2] == b"  "
        return self._in_table and line[:2] == b"  "

    def _show(self, lines):
        for line in lines:
            self._console.piece(self._worker, line, True)

    def _show_held(self):
        if self._tracebacks is not None:
            self._show(self._tracebacks.rest())

    def show_partial(self, now):
        """Pass on an unfinished line that is old enough; returns seconds until there may be one, or None."""
        if self._since is None:
            return None
        wait = self._since + PARTIAL_LINE_S - now
        if wait <= 0:
            self._pass_on(False)
            return None
        return wait

    def finish(self):
        """The worker will write no more."""
        if self._line or self._begun:
            self._pass_on(True)
        self._show_held()
        if self._log is not None:
            self._log.close()
            self._log = None

    def interrupt(self):
        """The worker is interrupted because the user has asked for it: it need not say where."""
        if self._noise is not None:
            self._noise.interrupted = True

    def last_lines(self):
        """The last lines as text; bytes that are no UTF-8 are replaced."""
        return [line.decode("utf-8", "replace") for line in self._tail]

    def _write_log(self, data):
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:
            # A full disk must not end the training; the console still shows everything.
            self.log_error = error
            self._log = None
