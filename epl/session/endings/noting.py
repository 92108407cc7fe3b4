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
      following: the Following of the process.
      facts: what the launcher goes by, told whenever the worker has met the others.
    """

    def __init__(self, cluster, following, **facts):
        self._cluster = cluster
        self._following = following
        self._facts = facts
        self._wrong = False  # something has been, since the latest step
        self._updates = 0  # training steps since the program began or restored a checkpoint

    def error(self, error, step):
        """Something has gone wrong here, in the step of that number."""
        self._following.message("%s: %s" % (type(error).__name__, error))
        if self._cluster.worker_num > 1:
            self._wrong = True
            because, follows = blamed(error, self._cluster.worker_index)
            notes.tell_failure(os.environ, error, step, because, follows, self._updates)

    def updated(self, number):
        """Variables have changed so many times more."""
        self._updates += number
        if number and "trains" not in self._facts:
            self._tell(trains=True)

    def restored(self, step):
        """A checkpoint of that global step has been restored."""
        self._updates = 0
        self._tell(restored=step)

    def _tell(self, **facts):
        self._facts.update(facts)
        notes.tell_fact(os.environ, **facts)

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
    def waiting_for_all(self, what):
        """Meanwhile the launcher looks whether one of the others has gone without a word.

        Args:
          what: is waited for, in words that go on after "worker 0 waits for".
        """
        notes.tell(notes.JOINING, os.environ)
        with self._following.waiting(what):
            yield
        self.joined()

    def joined(self):
        """This worker has met the others."""
        self._wrong = False
        notes.tell(notes.JOINED, os.environ, process=os.getpid(), **self._facts)

    def left(self):
        """This worker ends in good order."""
        self._following.left()
        notes.tell(notes.LEFT, os.environ)
