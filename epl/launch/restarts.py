"""Whether a job that has failed starts again, and with how many workers."""

import collections

# So many attempts one after another that have not trained a step show that none will.
FRUITLESS = 3


class Attempt(collections.namedtuple("Attempt", "workers seconds cause ending error position progress")):
    """How one attempt of a job has ended.

    Attributes:
      workers: how many it had.
      seconds: from its start to its end.
      cause: index of the worker that ended it; None: all ended well, or were told to.
      ending: how that one ended, in words.
      error: the error that it raised by itself, as text; None where it was killed, stopped, or ended without one.
      position: training steps that the model had made when that was raised; None: not known.
      progress: whether a step was trained in this attempt.
    """

    __slots__ = ()


class Restarts:
    """Decides after each attempt.

    Args:
      limit: how many times the job may start again.
      min_workers: with how few workers; None: always with all.

    Attributes:
      limit: see above.
      attempts: the Attempts so far.
      left_out: indices, in the first attempt, of workers that are left out from now on.
    """

    def __init__(self, limit, min_workers=None):
        self.limit = limit
        self._min_workers = min_workers
        self.attempts = []
        self.left_out = []

    @property
    def may_follow(self):
        """Whether another attempt may follow the one that runs."""
        return len(self.attempts) < self.limit

    def ended(self, attempt, indices):
        """Takes an attempt that failed.

        Args:
          indices: of its workers, which they had in the first attempt.

        Returns:
          (whether the job starts again, why not or what changes: a sentence, perhaps empty).
        """
        self.attempts.append(attempt)
        if len(self.attempts) > self.limit:
            return False, "" if not self.limit else "That was the last of %d attempts." % len(self.attempts)
        before = self.attempts[-2] if len(self.attempts) > 1 else None
        if before is not None and attempt.error is not None and _same(attempt, before):
            where = "" if attempt.position is None else ", after step %d" % attempt.position
            return False, "The same error came twice at the same place%s, so it is not tried again." % where
        last = self.attempts[-FRUITLESS:]
        if len(last) == FRUITLESS and not any(each.progress for each in last):
            return False, "%d attempts one after another have not trained a step, so it is not tried again." % FRUITLESS
        return True, self._leave_out(attempt, before, indices)

    def _leave_out(self, attempt, before, indices):
        """A worker whose process ends two attempts one after another is taken for lost, with its devices."""
        if self._min_workers is None or before is None or attempt.error is not None or before.error is not None:
            return ""
        if attempt.cause != before.cause or attempt.workers != before.workers:
            return ""
        if attempt.workers - 1 < self._min_workers:
            return ""
        self.left_out.append(indices[attempt.cause])
        return "Worker %d has failed twice one after another and is left out." % attempt.cause


def _same(attempt, other):
    return (attempt.error, attempt.position, attempt.workers) == (other.error, other.position, other.workers)


def table(attempts):
    """Lines about attempts, one each."""
    return [
        "attempt %d: %d worker%s, %.1f s: %s"
        % (
            number,
            each.workers,
            "" if each.workers == 1 else "s",
            each.seconds,
            each.ending if each.cause is None else "worker %d: %s" % (each.cause, each.ending),
        )
        for number, each in enumerate(attempts, 1)
    ]
