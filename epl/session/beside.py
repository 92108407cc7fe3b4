"""Checkpoints that are written beside training (checkpoint.async): one at a time in a process.

What goes wrong with one is logged when it does, and raised at the next save, or at the end of the session.
"""

import logging

from epl.errors import CheckpointError, CommunicationError, WorkerError
from epl.session.background import Work

_LOG = logging.getLogger("epl")


class Beside(object):
    """What is under way; on other workers than the chief, what the chief has under way. Kept for the process."""

    def __init__(self):
        self._holder = self._wait = self._work = self._error = None

    def write(self, holder, path, write):
        """Begins to write a checkpoint, in a thread; nothing else may be under way.

        Args:
          holder: what stands for the session.
          path: the checkpoint.
          write: function that writes it.
        """

        def written():
            try:
                write()
            except Exception as error:
                _LOG.error("The checkpoint '%s' could not be written beside training: %s", path, error)
                raise

        self._work = work = Work(written, "a checkpoint that is written beside training")
        self._begin(holder, lambda: _outcome(work, path))

    def follow(self, holder, wait):
        """Another worker writes one; `wait`: function that returns when it is written, and raises what went wrong."""
        self._work = None
        self._begin(holder, wait)

    def _begin(self, holder, wait):
        self._holder, self._wait, self._error = holder, wait, None

    def finish(self):
        """Returns when nothing is under way; what went wrong is raised later."""
        wait = self._wait
        if wait is None or self._work is not None and self._work.is_here:
            return
        try:
            wait()
        except (CheckpointError, CommunicationError, WorkerError) as error:
            self._error = error
        self._wait = None

    def settle(self, holder=None):
        """Returns when nothing is under way; raises what went wrong, once.

        Args:
          holder: what stands for a session, of which alone it is to be; None: of any.
        """
        if holder is not None and self._holder is not holder:
            return
        self.finish()
        error, self._error, self._holder = self._error, None, None
        if error is not None:
            raise error

    def drop(self, holder):
        """Returns when nothing of this session is under way; something else has gone wrong, which is raised."""
        if self._holder is holder:
            self.finish()
            self._error = self._holder = None


def _outcome(work, path):
    try:
        work.outcome()
    except Exception as error:
        raise CheckpointError(
            "the checkpoint '%s' could not be written beside training (checkpoint.async): %s: %s. The one before it is "
            "whole, and named by the folder's state file." % (path, type(error).__name__, str(error).split("\n")[0])
        ) from error


BESIDE = Beside()
