"""Reads batches while the step before runs (io.prefetch_to_device)."""

import logging
import threading
import time

from epl import tf_compat
from epl.communicators.waiting import SLICE_S
from epl.errors import UnsupportedError

_LOG = logging.getLogger("epl")

# That a session waits at its end for reads under way; what they wait for may never come.
_END_S = 5.0


class _Load(object):
    """One run of a Prefetched's `load`, in a thread of its own. A process need not wait for it to end."""

    def __init__(self, run, name):
        self._run, self._name, self._error, self._done = run, name, None, threading.Event()
        threading.Thread(target=self._load, name="epl-ahead", daemon=True).start()

    def _load(self):
        try:
            self._run((self._name,))
        except BaseException as error:  # whatever it is, the step that needs the batch gets it
            self._error = error
        finally:
            self._done.set()

    def ends_within(self, limit_s):
        """Waits so many seconds at most for its end; returns whether that has come."""
        return self._done.wait(limit_s)

    def finish(self, check_others):
        """Waits for its end as a step waits for its data, however long that takes; `check_others` raises where another
        worker has failed meanwhile."""
        while not self.ends_within(SLICE_S):
            check_others()

    def outcome(self, check_others):
        """Returns when batches have been read; raises what reading, or `check_others`, has raised."""
        self.finish(check_others)
        if self._error is not None:
            raise self._error


class Ahead(object):
    """What one session has read, or reads, for the next steps: at most one batch for each copy of the model.

    Args:
      check_others: function that raises where another worker has failed.
    """

    def __init__(self, check_others):
        self._check_others = check_others
        self._loads = {}  # name to _Load
        self._lock = threading.Lock()

    def take(self, reading, run):
        """Waits until a step's batches are on their devices, and begins to read those of the next.

        Args:
          reading: the Reading of the step, which takes them when it is run.
          run: function that runs operations of the session, by a tuple of their names.

        Returns:
          When the wait began and ended, in seconds.

        Raises:
          Whatever reading has raised: OutOfRangeError at the end of data; FromPeer where another worker has failed
          meanwhile. What else has been read stays.
        """
        began = time.time()
        with self._lock:
            for each in reading.restarts:
                load = self._loads.pop(each.load, None)
                if load is not None:
                    load.finish(self._check_others)
                run((each.clear,))
            for each in reading.loads:
                if each.load not in self._loads:
                    self._loads[each.load] = _Load(run, each.load)
            for each in reading.loads:
                try:
                    self._loads[each.load].outcome(self._check_others)
                except tf_compat.tf.errors.OpError:  # nothing has been read
                    del self._loads[each.load]
                    raise
            for each in reading.loads:
                self._loads[each.load] = _Load(run, each.load)
        return began, time.time()

    def end(self):
        """The session is closed, which ends what it runs."""
        began = time.monotonic()
        for name, load in self._loads.items():
            if not load.ends_within(max(0.0, began + _END_S - time.monotonic())):
                _LOG.warning("'%s' still waits for data, after the session was closed", name)
        self._loads.clear()


def loads_of(plan, graph, reached):
    """(those of plan.prefetched from which a call takes batches, those whose iterators it makes anew).

    Args:
      plan: the Plan.
      graph: this worker's rewritten Graph.
      reached: names of what the call runs.

    Raises:
      UnsupportedError: it takes batches for some copies of the model only.
    """
    loads, restarts = [], []
    for each in plan.prefetched:
        if each.load not in graph.nodes:
            continue
        copies = [name for name, _ in each.copies(graph, plan)]
        taken = [name for name in copies if name in reached]
        if taken and len(taken) < len(copies):
            raise UnsupportedError(
                "this call takes data from '%s' for %d of the %d copies of the model in this worker, which have their "
                "batches already (io.prefetch_to_device), so the other copies would be left behind. Evaluate with a "
                "data set of its own, fetch in the calls that train, or set io.prefetch_to_device to False."
                % (each.get_next, len(taken), len(copies))
            )
        if taken:
            loads.append(each)
        if any(maker in reached for maker in each.makers):
            restarts.append(each)
    return tuple(loads), tuple(restarts)
