"""Who gives no sign of life: a process that is stopped, a machine that is gone, a network that is cut.

A silent worker is named in the log after some seconds, and lost after `communication.stopped_s`. A process that was
stopped itself could hear nobody meanwhile: that time does not count.
"""

import logging
import math
import threading
import time

_LOG = logging.getLogger("epl")
NAMED_S = 10.0
_LOOK_S = 1.0
# A thread that sleeps for so much longer than it wanted to belongs to a process that was stopped.
_OVERSLEPT_S = 5.0


def lost_text(worker, silent_s):
    """Why a worker counts as lost."""
    return (
        "no sign of life from worker %d for %.0f s (communication.stopped_s): its process is stopped, its machine is "
        "gone, or the network to it is cut" % (worker, silent_s)
    )


class Silence(object):
    """What one process makes of others' silence.

    Args:
      own: index of this worker.
      stopped_s: see the module; None: nobody is lost by it.
      interval_s: seconds between signs of life.
      clock: gives seconds.
    """

    def __init__(self, own, stopped_s, interval_s=1.0, clock=time.monotonic):
        self._own = own
        self._interval_s = interval_s
        self._stopped_s = math.inf if stopped_s is None else stopped_s
        self._named_s = NAMED_S + interval_s
        self._clock = clock
        self._named = set()
        self._answered = clock()

    def over(self, ages):
        """Names those who are silent; returns those that count as lost from now on, and for how long they were silent.

        Args:
          ages: dict of worker to the seconds since its last sign of life.
        """
        silent = {worker for worker, age in ages.items() if age > self._named_s}
        for worker in sorted(silent - self._named):
            _LOG.warning(
                "worker %d: no sign of life from worker %d for %.0f s; it counts as lost after %g s "
                "(communication.stopped_s)",
                self._own,
                worker,
                ages[worker],
                self._stopped_s,
            )
        for worker in sorted(self._named - silent):
            _LOG.info("worker %d hears worker %d again", self._own, worker)
        self._named = silent
        return sorted((worker, ages[worker]) for worker in silent if ages[worker] > self._stopped_s + self._interval_s)

    def called(self, worker, answered, took_s, limit_s):
        """What a call of that worker means, for those that have nothing else to go by: as `over`.

        Args:
          answered: whether it did, within `limit_s` seconds; took_s: what the call took.
        """
        if answered or took_s > limit_s + _OVERSLEPT_S:
            self._answered = self._clock()
        return self.over({worker: self._clock() - self._answered})


def look(state, silence, stopped):
    """Has a thread look at who of a BootstrapState is silent, and lose those; until the event `stopped` is set."""

    def run():
        before = time.monotonic()
        while not stopped.wait(_LOOK_S):
            before, last = time.monotonic(), before
            if before - last > _LOOK_S + _OVERSLEPT_S:
                state.hear_all()
            for worker, age in silence.over(state.silences()):
                state.lose(worker, lost_text(worker, age))

    threading.Thread(target=run, name="epl-silence", daemon=True).start()
