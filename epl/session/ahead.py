"""Reads batches while the step before runs (io.prefetch_to_device)."""

import logging
import threading
import time

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

    @property
    def has_ended(self):
        return self._done.is_set()

    def finish(self, timeout_s=None):
        """Waits for its end, as a step waits for its data; returns whether batches have been read."""
        return self._done.wait(timeout_s) and self._error is None

    def outcome(self):
        """Returns when batches have been read; raises what reading has raised."""
        if not self.finish():
            raise self._error


class Ahead(object):
    """What one session has read, or reads, for the next steps: at most one batch for each copy of the model."""

    def __init__(self):
        self._loads = {}  # name to _Load
        self._lock = threading.Lock()

    def take(self, step, run):
        """Waits until a step's batches are on their devices, and begins to read those of the next.

        Args:
          step: a Step, which takes them when it is run.
          run: function that runs operations of the session, by a tuple of their names.

        Returns:
          When the wait began and ended, in seconds.

        Raises:
          Whatever reading has raised: OutOfRangeError at the end of data. What else has been read stays.
        """
        began = time.time()
        with self._lock:
            for each in step.restarts:
                load = self._loads.pop(each.load, None)
                if load is not None:
                    load.finish()
                run((each.clear,))
            for each in step.loads:
                if each.load not in self._loads:
                    self._loads[each.load] = _Load(run, each.load)
            for each in step.loads:
                try:
                    self._loads[each.load].outcome()
                except Exception:
                    del self._loads[each.load]
                    raise
            for each in step.loads:
                self._loads[each.load] = _Load(run, each.load)
        return began, time.time()

    def end(self):
        """The session is closed, which ends what it runs."""
        began = time.monotonic()
        for name, load in self._loads.items():
            load.finish(max(0.0, began + _END_S - time.monotonic()))
            if not load.has_ended:
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
