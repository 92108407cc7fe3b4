"""Tells every so many training steps how long they have waited for data (io.stats)."""

import logging

from epl.plan.input.waits import covered, line

_LOG = logging.getLogger("epl")
_STEPS = 100  # that a line is about


class InputStats(object):
    """Of one session."""

    def __init__(self):
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0

    def note(self, times, seconds, graph):
        """Notes a training step.

        Args:
          times: when each operation that gives a batch began and ended, one after the other, in seconds.
          seconds: that the step took.
          graph: the program's Graph.

        Returns:
          The seconds for which it has waited for data.
        """
        waited = covered(zip(times[::2], times[1::2]))
        self._steps += 1
        self._seconds += seconds
        self._waited += waited
        if self._steps % _STEPS == 0:
            types = {node.op for node in graph.nodes.values()}
            types.update(node.op for function in graph.library.function for node in function.node_def)
            numbers = (self._steps - _STEPS + 1, self._steps)
            _LOG.info("%s", line(*numbers, self._seconds / _STEPS, self._waited / _STEPS, types))
            self._seconds = self._waited = 0.0
        return waited
