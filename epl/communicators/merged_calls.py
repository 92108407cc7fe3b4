"""What the leader of a host does with the calls of its members, so that worker 0 has few: one for several of them.

No network in it. All methods may be called from any thread.
"""

import threading
import time

from epl.communicators.bootstrap_state import WaitError, WriteError, foreign_rank
from epl.communicators.connection import WaitTimeout

# The members of a host come to a gathering at about the same time: who comes first waits as long for the others of its
# host. Longer where all workers of the job take part, as it then ends with the last of them in any case.
_MERGE_S = 0.02
_MERGE_ALL_S = 0.5
# A waiting call wakes this often to see whether its caller is still there.
_POLL_S = 0.5


class _Topic(object):
    """One gathering, as far as it concerns this host."""

    def __init__(self, lock):
        self.changed = threading.Condition(lock)
        self.pending = {}  # rank -> (worker, value), which worker 0 does not have yet
        self.brought = {}  # rank that came here -> its worker
        self.answered = set()  # ranks of which worker 0 has the value
        self.given = set()  # ranks that have got the values
        self.refused = {}  # rank -> why
        self.values = None
        self.missing = []
        self.sending = self.asking = False


class Gatherings(object):
    """Gatherings to which members of one host bring values.

    Args:
      ask: function from (topic, size, [(rank, worker, value)], time-out in seconds) to (all values or None, missing
        ranks, {rank: why it was refused}); it asks worker 0.
      members: function that says how many members there are.
      worker_num: number of workers of the job.
      merge_s: seconds that who comes first waits for the other members at most, in gatherings of fewer and of all.
      clock: function that says the time in seconds.
    """

    def __init__(self, ask, members, worker_num, merge_s=(_MERGE_S, _MERGE_ALL_S), clock=time.monotonic):
        self._ask = ask
        self._members = members
        self._worker_num = worker_num
        self._merge_s = merge_s
        self._clock = clock
        self._lock = threading.Lock()
        self._topics = {}

    def gather(self, topic, rank, size, value, worker, timeout_s, alive):
        """As `BootstrapState.gather`; other errors are those of `ask`."""
        deadline = self._clock() + timeout_s
        with self._lock:
            found = self._topics.get((topic, size))
            if found is None or rank in found.given:  # or it is a new gathering of the same name
                found = self._topics[topic, size] = _Topic(self._lock)
            if rank not in found.brought:
                found.brought[rank] = worker
                found.pending[rank] = worker, value
                if self._all_here(size, found):  # each that wakes for less costs the host's cores
                    found.changed.notify_all()
            if found.brought[rank] != worker:
                raise foreign_rank(worker, topic, rank, found.brought[rank])
            while True:
                if rank in found.refused:
                    found.brought.pop(rank)
                    raise WriteError(found.refused.pop(rank))
                if found.values is not None:
                    return found.values, []
                left = deadline - self._clock()
                if found.pending and not found.sending:
                    self._send(topic, size, found, left)
                elif rank in found.answered and left <= 0:
                    return None, found.missing
                elif rank in found.answered and not found.asking and not found.pending:
                    self._call(topic, size, found, [], left)
                else:
                    if not alive():
                        raise WaitError("gone", "the caller has gone")
                    found.changed.wait(_POLL_S if left <= 0 else min(left, _POLL_S))

    def give(self, topic, size, rank):
        """This rank has all values; when all that came have, they are forgotten here, but not at worker 0."""
        with self._lock:
            found = self._topics.get((topic, size))
            if found is not None:
                found.given.add(rank)
                if found.given.issuperset(found.brought):
                    del self._topics[topic, size]

    def _send(self, topic, size, found, left):
        """Brings worker 0 what members of this host have brought since. Meanwhile more may come, for the next time.

        Where all members have come, none will, and this call waits there for the other hosts, unless one does."""
        found.sending = True
        until = self._clock() + min(self._merge_s[size >= self._worker_num], max(0.0, left))
        while not self._all_here(size, found) and self._clock() < until:
            found.changed.wait(max(0.0, until - self._clock()))
        taken, found.pending = found.pending, {}
        waits = self._all_here(size, found) and not found.asking
        found.sending = not waits  # one that joins this host only now need not wait as long
        try:
            entries = [(rank,) + taken[rank] for rank in sorted(taken)]
            self._call(topic, size, found, entries, left if waits else 0.0)
        except Exception:
            for rank, entry in taken.items():
                found.pending.setdefault(rank, entry)
            raise
        finally:
            if not waits:
                found.sending = False
            found.changed.notify_all()

    def _all_here(self, size, found):
        return len(found.brought) >= min(size, self._members())

    def _call(self, topic, size, found, entries, left):
        waits = left > 0
        found.asking = found.asking or waits
        self._lock.release()
        try:
            values, missing, refused = self._ask(topic, size, entries, max(0.0, left))
        finally:
            self._lock.acquire()
            if waits:
                found.asking = False
            found.changed.notify_all()
        found.refused.update(refused)
        found.answered.update(rank for rank, _, _ in entries)
        found.missing = missing
        if values is not None:
            found.values = values


class Flights(object):
    """Equal questions that are asked at the same time go to worker 0 once.

    Args:
      kept_s: for how many seconds an answer serves those who ask later.
    """

    def __init__(self, kept_s=0.0, clock=time.monotonic):
        self._kept_s = kept_s
        self._clock = clock
        self._changed = threading.Condition()
        self._under_way = {}  # question -> [answer], empty while it is on its way
        self._kept = {}  # question -> (answer, time)

    def ask(self, question, timeout_s, call):
        """What `call(seconds)` returns, of this caller's or of another one's that asked the same.

        Raises:
          WaitTimeout: what it raises, after `timeout_s` seconds.
        """
        deadline = self._clock() + timeout_s
        while True:
            with self._changed:
                answer, then = self._kept.get(question, (None, None))
                if then is not None and self._clock() - then <= self._kept_s:
                    return answer
                flight = self._under_way.get(question)
                if flight is None:
                    mine = self._under_way[question] = []
                else:
                    while not flight and self._under_way.get(question) is flight and self._clock() < deadline:
                        self._changed.wait(min(_POLL_S, max(0.0, deadline - self._clock())))
                    if flight:
                        return flight[0]
                    if self._clock() >= deadline:
                        raise WaitTimeout("the answer to %s has not come within %g s" % (question, timeout_s))
                    continue
            try:
                answer = call(max(0.0, deadline - self._clock()))
                with self._changed:
                    mine.append(answer)
                    if self._kept_s:
                        self._kept[question] = answer, self._clock()
                return answer
            finally:
                with self._changed:
                    del self._under_way[question]
                    self._changed.notify_all()
