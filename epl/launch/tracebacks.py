"""Tracebacks on the console: the program's own frames, and what several workers say alike from one of them only.

The logs keep every line.
"""

import re

_BEGIN = b"Traceback (most recent call last):"
_FRAME = re.compile(rb' {2,4}File "(?P<path>[^"]+)", line \d+')
# Where nothing of the program's own stands: EPL, TensorFlow, what they are made of, and Python.
_NOT_THE_USERS = re.compile(
    rb"/(site|dist)-packages/(tensorflow\w*|keras\w*|absl|epl|wrapt|six)(/|\.py)|/epl/"
    rb"|/lib/python[\d.]+/(?!site-|dist-)|^<"
)
# An error that says what another worker has done: where this one was meanwhile tells nothing.
_OF_ANOTHER = re.compile(rb"epl\.errors\.\w+: worker \d+ (failed|has)\b")
# Errors after whose line more belongs to them: tables, and where TensorFlow's operations were made.
_LONG = re.compile(rb"tensorflow\.|epl\.errors\.")
_BETWEEN = (b"", b"During handling of the above exception, another exception occurred:")
_MOST_LINES = 400


class KnownErrors:
    """The errors that workers of a job have shown: of each, its line to (worker, the lines that followed)."""

    def __init__(self):
        self.errors = {}


class Tracebacks:
    """Goes through the lines of one worker.

    Args:
      worker: its index.
      known: the `KnownErrors` of the job.
    """

    def __init__(self, worker, known):
        self._worker = worker
        self._known = known
        self._frames = None  # lists of lines, of the traceback that is being read; None outside of one
        self._following = None  # where lines go that follow a long error
        self._same = None  # the lines that another worker's error is followed by
        self._skips = False  # in a frame that is left out
        self._repeats = False  # the traceback before was another worker's too

    @property
    def inside(self):
        """Whether the next line may belong to a traceback, or to what follows its error."""
        return self._frames is not None or self._following is not None or self._same is not None

    @staticmethod
    def begins(line):
        """Whether a traceback begins with a line."""
        return line == _BEGIN

    def take(self, line):
        """The lines to show, once the next one, bytes, has come."""
        if line == _BEGIN:
            shown = self.rest()
            self._frames, self._following, self._same = [], None, None
            return shown
        if self._frames is not None:
            return self._inside(line)
        if self._same is not None:
            return self._after_the_same(line)
        if self._following is None:
            return [line]
        return self._after_an_error(line)

    def rest(self):
        """Lines that have been held back, at the end."""
        frames, self._frames = self._frames, None
        return [] if frames is None else [_BEGIN] + [line for frame in frames for line in frame]

    def _inside(self, line):
        if _FRAME.match(line):
            self._frames.append([line])
        elif line[:2] == b"  " and self._frames:
            self._frames[-1].append(line)
        elif not line or not self._frames or line[:1] == b" ":
            return self.rest() + [line]
        else:
            return self._ends(line)
        return []

    def _ends(self, error):
        frames, self._frames = self._frames, None
        worker, lines = self._known.errors.setdefault(error, (self._worker, []))
        if worker != self._worker:
            self._same = lines
            repeats, self._repeats = self._repeats, True
            return [] if repeats else [b"(the error of worker %d: %s)" % (worker, error.split(b":")[0])]
        self._repeats = False
        if _LONG.match(error):
            self._following = lines
        if _OF_ANOTHER.match(error):
            return [error]
        own = [frame for frame in frames if not _is_deep(frame[0])]
        if not own:
            return [error]
        if len(own) < len(frames):
            count = len(frames) - len(own)
            own.append(
                [
                    b"  (and %d call%s inside of EPL, TensorFlow or Python: see the log)"
                    % (count, b"" if count == 1 else b"s")
                ]
            )
        return [_BEGIN] + [line for frame in own for line in frame] + [error]

    def _after_an_error(self, line):
        if len(self._following) >= _MOST_LINES:
            self._following = None
            return [line]
        self._following.append(line)
        self._skips = _is_deep(line) if _FRAME.match(line) else self._skips and line[:4] == b"    "
        return [] if self._skips else [line]

    def _after_the_same(self, line):
        if line in _BETWEEN or line in self._same:
            return []
        self._same, self._repeats = None, False
        return [line]


def is_deep(path):
    """Whether a file is of EPL, TensorFlow or Python."""
    return _NOT_THE_USERS.search(path.encode("utf-8", "replace")) is not None


def _is_deep(frame):
    """The same of a frame, by its first line."""
    return _NOT_THE_USERS.search(_FRAME.match(frame).group("path")) is not None
