"""The error with which a Python program ended, found in the lines that it printed."""

import re

_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(:|$)")
_ANY_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # what ends a traceback need not be called an error
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+')
# Tracebacks after these are of what goes wrong while a program ends: not why it ends.
_ASIDE = ("Exception ignored in", "Error in atexit", "Error in sys.excepthook")
_NOT_THE_USERS = ("site-packages", "dist-packages", "/lib/python", "<frozen", "/epl/")
# Of a message that begins with a line such as "Graph execution error:", or that lists several causes.
_GOES_ON = (":", " root error(s) found.")
_MORE_LINES = 8
# What a device was out of memory for, and what would need less, is a table and a list.
_OUT_OF_MEMORY = re.compile(r"[\w.]*ResourceExhaustedError:")
_LINES_OF_ADVICE = 30
_HINT = "Hint: If you want to see a list of allocated tensors"
# TensorFlow 2 puts before such a message where the operation was made, which its name says too, and all of that again
# behind it.
_WHERE_MADE = re.compile(r"Detected at node |Node: |<stack traces unavailable>")
_MADE_AGAIN = "Original stack trace for "


class ErrorsSeen:
    """Takes lines one by one.

    Attributes:
      message: lines of the last error: the line that ends a traceback, and the next ones where it ends with a colon.
        Empty until there is one.
      place: where in the user's program it was raised, as the traceback says; lines, perhaps none.
    """

    def __init__(self):
        self.message, self.place = [], []
        self._frames = []  # of the current traceback: lists of lines
        self._inside = False
        self._aside = False
        self._more = 0

    def take(self, line):
        """The next line, as text without its end."""
        if line.startswith("Traceback (most recent call last)"):
            self._frames, self._inside, self._more = [], True, 0
        elif line.startswith(_ASIDE):
            self._aside, self._inside, self._more = True, False, 0
        elif _FRAME.match(line):
            self._frames.append([line.strip()])
        elif line.startswith("    "):
            if self._frames and len(self._frames[-1]) == 1:
                self._frames[-1].append(line.strip())
        elif _ERROR.match(line) or self._inside and _ANY_ERROR.match(line):
            self._found(line)
        elif self._more:
            self._go_on(line)

    def _found(self, line):
        if not self._aside:
            self.message = [line]
            own = [frame for frame in self._frames if not any(part in frame[0] for part in _NOT_THE_USERS)]
            self.place = own[-1] if own else []
            self._more = _MORE_LINES if line.endswith(_GOES_ON) else 0
            if _OUT_OF_MEMORY.match(line):
                self._more = _LINES_OF_ADVICE
        self._frames, self._inside, self._aside = [], False, False

    def _go_on(self, line):
        if line.startswith(_MADE_AGAIN):
            self._more = 0
        elif line.strip() and not _WHERE_MADE.match(line) and not line.startswith(_HINT):
            self.message.append(line)
            self._more -= 1
