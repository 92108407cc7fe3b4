"""The state of the bootstrap service: keys, barriers, endings, and when each worker was last heard. No network in it.

All methods may be called from any thread. Waiting methods take a time-out and `alive`, a function that says whether
whoever asked still waits.
"""

import threading
import time

from epl.communicators.wire import EVERY_GENERATION, Ending

# A waiting call wakes this often to see whether its caller is still there.
_POLL_S = 0.5


class WaitError(Exception):
    """A wait ended without what was waited for. `code` is "timeout", "lost" or "gone"."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class WriteError(Exception):
    """A worker would change, or has changed, what is another one's."""


class _Barrier:
    """One use of a barrier."""

    def __init__(self, worker_num):
        self.complete = False
        self.arrived = set()
        self.gave_up = set()
        self._worker_num = worker_num

    def absent(self):
        return [worker for worker in range(self._worker_num) if worker not in self.arrived]


class BootstrapState:
    """See the module."""

    def __init__(self, worker_num, clock=time.monotonic):
        self._worker_num = worker_num
        self._clock = clock
        self._changed = threading.Condition()
        self._values = {}  # key -> (value, worker that set it)
        self._barriers = {}  # name -> _Barrier
        self._endings = []
        self._instances = {}  # worker -> identity of its process
        self._heard = {}  # worker -> time of its last sign of life
        self._left = {}  # worker that ended in good order -> steps that it made
        self._closed = False

    # Membership

    def join(self, worker, instance):
        """Registers a worker's process. Returns what is wrong with it, or None."""
        with self._changed:
            if not 0 <= worker < self._worker_num:
                return "there is no worker %d in a job of %d" % (worker, self._worker_num)
            known = self._instances.setdefault(worker, instance)
            if known != instance:
                return (
                    "two processes say that they are worker %d of this job. Give every process its own index "
                    "(TF_CONFIG task.index), and end what is left of an earlier run" % worker
                )
            self._heard[worker] = self._clock()
            return None

    def is_member(self, worker, instance):
        """Whether this process is the one that joined as this worker."""
        with self._changed:
            return self._instances.get(worker) == instance

    def heard(self, worker):
        with self._changed:
            self._heard[worker] = self._clock()

    def ages(self):
        """Seconds since each worker that joined and has not left was last heard: {worker: seconds}."""
        with self._changed:
            now = self._clock()
            return {worker: now - then for worker, then in self._heard.items() if worker not in self._left}

    def leave(self, worker, steps=None):
        """The worker ends in good order, after so many steps: its silence is no ending from now on."""
        with self._changed:
            self._left[worker] = steps
            self._changed.notify_all()

    def wait_for_leaving(self, limit_s):
        """When worker 0 has left in good order: until those who joined have left too, or something has gone wrong."""

        def through():
            return 0 not in self._left or self._endings or set(self._left).issuperset(self._instances)

        with self._changed:
            self._changed.wait_for(through, limit_s)

    def left(self):
        """[worker, steps that it made] of those that ended in good order."""
        with self._changed:
            return [list(item) for item in sorted(self._left.items())]

    def lose(self, worker, message):
        """The worker is gone; an ending for all generations, unless it left in good order or is known to be lost."""
        with self._changed:
            if worker in self._left or self._lost(worker) or self._closed:
                return
            self._endings.append(Ending(worker, "lost", -1, message, EVERY_GENERATION))
            self._changed.notify_all()

    def _lost(self, worker=None):
        for ending in self._endings:
            if ending.kind == "lost" and worker in (None, ending.worker):
                return ending
        return None

    # Endings

    def fail(self, ending):
        """Publishes an ending; returns the one that counts, the first of its generation."""
        with self._changed:
            for earlier in self._endings:
                if earlier.concerns(ending.generation):
                    return earlier
            self._endings.append(ending)
            self._changed.notify_all()
            return ending

    def endings_after(self, position, timeout_s):
        """Waits up to `timeout_s` for endings from `position` on. Returns (these, whether the service closes)."""
        deadline = self._clock() + timeout_s
        with self._changed:
            while len(self._endings) <= position and not self._closed and self._clock() < deadline:
                self._changed.wait(max(0.0, deadline - self._clock()))
            return self._endings[position:], self._closed

    def close(self):
        """Ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # Keys

    def set(self, key, value, worker):
        """A worker sets a key. Raises WriteError when another one has set it: a key belongs to who sets it first."""
        with self._changed:
            owner = self._values.get(key, (None, worker))[1]
            if owner != worker:
                raise WriteError("worker %d cannot set the key '%s', which is worker %d's" % (worker, key, owner))
            self._values[key] = value, worker
            self._changed.notify_all()

    def get(self, key, timeout_s, alive, writer=None):
        """The value of `key`, as soon as it has one; of a `writer` alone if one is given. Raises WaitError, or
        WriteError when somebody else has set it."""
        with self._changed:
            who = "nobody has" if writer is None else "worker %d has not" % writer
            self._wait(lambda: key in self._values, timeout_s, alive, lambda: who + " set the key '%s'" % key)
            value, owner = self._values[key]
            if writer not in (None, owner):
                raise WriteError("the key '%s' is worker %d's to set, but worker %d did" % (key, writer, owner))
            return value

    def clear(self, prefix, worker):
        """Forgets all keys that begin with `prefix`. Raises WriteError when one is another worker's; worker 0 may."""
        with self._changed:
            found = [key for key in self._values if key.startswith(prefix)]
            foreign = [key for key in found if self._values[key][1] != worker]
            if foreign and worker != 0:
                raise WriteError(
                    "worker %d cannot clear the key '%s', which is worker %d's"
                    % (worker, foreign[0], self._values[foreign[0]][1])
                )
            for key in found:
                del self._values[key]

    # Barriers

    def barrier(self, name, worker, timeout_s, alive, generation=None):
        """Waits until every worker has come to the barrier `name`, which can be used again. Raises WaitError.

        With a `generation`, an ending that concerns it ends the wait: who failed will not come.
        """

        with self._changed:
            barrier = self._barriers.setdefault(name, _Barrier(self._worker_num))
            barrier.arrived.add(worker)
            if not barrier.absent():
                self._barriers[name] = _Barrier(self._worker_num)
                barrier.complete = True
                self._changed.notify_all()
                return

            def missing():
                # Those who waited as long as this one and gave up a moment earlier did come.
                names = [other for other in barrier.absent() if other not in barrier.gave_up] or barrier.absent()
                return "%s did not come to the barrier '%s'" % (name_workers(names), name)

            def departed():
                return [other for other in barrier.absent() if other in self._left]

            try:
                self._wait(lambda: barrier.complete, timeout_s, alive, missing, departed, generation)
            except WaitError:
                barrier.arrived.discard(worker)
                barrier.gave_up.add(worker)
                raise

    def _ended(self, generation):
        for ending in self._endings:
            if generation is not None and ending.concerns(generation):
                return ending
        return None

    def _wait(self, ready, timeout_s, alive, what, departed=list, generation=None):
        deadline = self._clock() + timeout_s
        while not ready():
            lost = self._lost()
            if lost:
                raise WaitError("lost", "%s, and it cannot come any more: %s" % (what(), lost.message))
            failed = self._ended(generation)
            if failed:
                raise WaitError("gone", "%s, and worker %d has failed: %s" % (what(), failed.worker, failed.message))
            if departed():
                raise WaitError("gone", "%s, and %s has ended already" % (what(), name_workers(departed())))
            if self._closed:
                raise WaitError("gone", "%s, and worker 0 has ended" % what())
            left = deadline - self._clock()
            if left <= 0:
                raise WaitError("timeout", "%s within %g s" % (what(), timeout_s))
            if not alive():
                raise WaitError("gone", "the caller has gone")
            self._changed.wait(min(left, _POLL_S))


def name_workers(workers):
    """ "worker 1", "workers 1 and 2", "workers 1, 2 and 3"."""
    names = [str(worker) for worker in workers]
    if len(names) == 1:
        return "worker %s" % names[0]
    return "workers %s and %s" % (", ".join(names[:-1]), names[-1])
