"""What a worker tells the launcher of how it goes on, and of what goes wrong."""

import contextlib
import os

from epl.communicators.bootstrap import WaitTimeout
from epl.errors import CommunicationError
from epl.launch import notes
from epl.session.endings.blame import blamed


class Noting(object):
    """The notes of one worker.

    Args:
      cluster: of the process. With one worker, whose exit code says all, nothing is noted.
      facts: what the launcher goes by, told whenever the worker has met the others.
    """

    def __init__(self, cluster, **facts):
        self._cluster = cluster
        self._facts = facts
        self._wrong = False  # something has been, since the latest step

    def error(self, error, step):
        """Something has gone wrong here, in the step of that number."""
        if self._cluster.worker_num > 1:
            self._wrong = True
            because, follows = blamed(error, self._cluster.worker_index)
            notes.tell_failure(os.environ, error, step, because, follows)

    @contextlib.contextmanager
    def errors(self, step):
        """What of communication goes wrong in this context is noted; `step`: function that gives its number."""
        try:
            yield
        except WaitTimeout:
            raise  # whoever waits knows whether that is wrong
        except CommunicationError as error:
            self.error(error, step())
            raise

    def took_step(self):
        """All workers have come through a step, so what went wrong before has been lived through."""
        if self._wrong:
            self.joined()

    @contextlib.contextmanager
    def waiting_for_all(self):
        """Meanwhile the launcher looks whether one of the others has gone without a word."""
        notes.tell(notes.JOINING, os.environ)
        yield
        self.joined()

    def joined(self):
        """This worker has met the others."""
        self._wrong = False
        notes.tell(notes.JOINED, os.environ, process=os.getpid(), **self._facts)

    def left(self):
        """This worker ends in good order."""
        notes.tell(notes.LEFT, os.environ)
