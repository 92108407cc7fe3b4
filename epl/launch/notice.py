"""Notice that a job has to end: the launcher gives it by a file, for which workers look at the end of each step.

A signal would not do: it ends shells, and programs that do not expect it, at once.
"""

import os
import signal

VARIABLE = "EPL_LAUNCH_NOTICE"


class Notice:
    """The launcher's side of it.

    Args:
      path: of the file, which an earlier job may have left.
      seconds: that workers have to save and to end; 0: they are ended at once.
      say: function that takes a line for the user.
    """

    def __init__(self, path, seconds, say):
        self.path = os.path.abspath(path)
        self._seconds = seconds
        self._say = say
        self._until = None
        self.remove()

    def left_s(self, stops, now):
        """Seconds that workers have yet to end by themselves, once the launcher is to stop.

        Only the first SIGTERM comes with notice; who sends another signal, or a second one, wants the end.

        Args:
          stops: `stops.Stops`.
          now: `time.monotonic()`.
        """
        if not self._seconds or stops.number != signal.SIGTERM or stops.count > 1:
            return 0.0
        if self._until is None:
            self._until = now + self._seconds
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._say("SIGTERM: the workers have %g s to save and to end" % self._seconds)
        return max(0.0, self._until - now)

    def remove(self):
        if os.path.lexists(self.path):
            os.unlink(self.path)


def given(environ):
    """Whether a worker's launcher has given notice."""
    path = environ.get(VARIABLE)
    return bool(path) and os.path.exists(path)
