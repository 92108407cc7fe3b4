"""What communicates while the program goes on: one piece of work at a time, in a thread of its own."""

import logging
import threading
import time

_LOG = logging.getLogger("epl")

# Whoever waits for longer says so, and again after as long.
_NOTICE_S = 10.0


class Work(object):
    """A function that runs in the background. The process does not end before it has.

    Args:
      function: without arguments.
      what: it is, for the log.
    """

    def __init__(self, function, what="what communicates in the background"):
        self._function, self._what, self._error = function, what, None
        self._thread = threading.Thread(target=self._run, name="epl-background")
        self._thread.start()

    def _run(self):
        try:
            self._function()
        except BaseException as error:  # whatever it is, who asks for the result gets it
            self._error = error

    @property
    def is_here(self):
        """Whether the caller is the function itself."""
        return threading.current_thread() is self._thread

    def finish(self):
        """Returns when it is through, well or not; at once for what the function itself calls.

        That it comes to an end is the function's own affair: what it waits for has deadlines.
        """
        began = time.monotonic()
        while not self.is_here and self._thread.is_alive():
            self._thread.join(_NOTICE_S)
            if self._thread.is_alive():
                _LOG.info("%s has been waited for %.0f s", self._what, time.monotonic() - began)

    def outcome(self):
        """Returns when it is through; raises what it has raised."""
        self.finish()
        if self._error is not None:
            raise self._error


class Background(object):
    """Of one job: work that has begun there is waited for before anything else communicates."""

    def __init__(self):
        self._work = None

    def start(self, function):
        """Waits for the work before, and begins this; returns its Work."""
        self.finish()
        self._work = Work(function)
        return self._work

    @property
    def is_here(self):
        """Whether the caller is the work under way."""
        return self._work is not None and self._work.is_here

    def finish(self):
        """Returns when nothing is under way; at once for what the work itself calls."""
        if self._work is not None:
            self._work.finish()
