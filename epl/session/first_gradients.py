"""Compares the gradients of the first step with those that need no recomputation."""

import logging

import numpy as np

from epl.errors import GradientError
from epl.graph.index import parse_input

_LOG = logging.getLogger("epl")

# What sums of another order may make of float32 numbers; of a tensor's largest magnitude.
_TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-10}


class FirstGradients(object):
    """What a session still has to compare."""

    def __init__(self):
        self._done = set()

    def of(self, step):
        """The CheckedGradients that a Step computes and that have not been compared."""
        return [each for each in step.run.checked if each not in self._done] if step.view is None else []

    def tensors(self, step):
        """Names of what a Step has to fetch for them, besides its own."""
        pairs = [each.whole or (each.tensor, each.without) for each in self.of(step)]
        return tuple("%s:%d" % parse_input(tensor) for pair in pairs for tensor in pair)

    def compared(self, step, fetched):
        """What a Step has fetched of its own, once these, which come last, are compared; see `compare`."""
        own = len(fetched) - len(self.tensors(step))
        self.compare(self.of(step), list(zip(fetched[own::2], fetched[own + 1 :: 2])))
        return fetched[:own]

    def compare(self, checked, values):
        """Compares what a step has computed.

        Args:
          checked: CheckedGradients, in the order in which they become ready.
          values: for each of them the two arrays.

        Raises:
          GradientError: the first that differs by more than another order of sums explains.
        """
        equal = 0
        for each, (with_, without) in zip(checked, values):
            equal += self._compare(each, np.asarray(with_), np.asarray(without))
        self._done.update(checked)
        if checked:
            _LOG.info(
                "gradient_checkpoint.check_gradients: %d gradients are those without recomputation, %d of them to the "
                "last bit.",
                len(checked),
                equal,
            )

    def _compare(self, each, with_, without):
        """Whether they are equal to the last bit."""
        if with_.shape == without.shape and with_.tobytes() == without.tobytes():
            return True
        largest = float(np.max(np.abs(without), initial=0)) if without.size else 0.0
        off = float(np.max(np.abs(with_ - without))) if with_.shape == without.shape and with_.size else float("inf")
        if not off <= _TOLERANCE.get(with_.dtype.itemsize, 0) * largest:
            raise GradientError(
                "the gradient '%s' of '%s' is another one with recomputation than without: they differ by up to %g, "
                "and the largest entry is %g. It is the first that differs, so look at what is computed again near "
                "it: an operation that EPL does not know and that gives something else the second time, say. Keep "
                'what it makes (gradient_checkpoint.type="collection"), or leave that part of the model out of '
                "epl.recompute()." % (each.tensor, each.variable, off, largest)
            )
        return False
