"""What training steps are asked for besides training, taken from every n-th of them (execution.fetch_every)."""

import copy

from epl.graph.index import node_of
from epl.rules import effects


class EveryNth(object):
    """The latest values of one session.

    Args:
      every: a value is that of one of the latest `every` training steps in which it was asked for.
    """

    def __init__(self, every):
        self.every = every
        self._calls = 0
        self._latest = {}  # tensor to (number of the call, its value then)

    def run(self, call, fetches, may_wait):
        """The values of `fetches` in a training step.

        Args:
          call: function from tensor names to their values, which makes the step.
          fetches: tuple of tensor names.
          may_wait: those of which an earlier value will do.
        """
        self._calls += 1
        wanted = tuple(name for name in fetches if name not in may_wait or self._is_old(name))
        values = dict(zip(wanted, call(wanted)))
        # Copies, as arrays that a call has given belong to the program.
        self._latest.update((name, (self._calls, copy.copy(values[name]))) for name in wanted if name in may_wait)
        return [values[name] if name in values else copy.copy(self._latest[name][1]) for name in fetches]

    def _is_old(self, name):
        return name not in self._latest or self._calls - self._latest[name][0] >= self.every


def made_of_data(program, fetches, feeds):
    """Those of the fetches that a batch goes into and that change nothing; not the global step, or a learning rate.

    Args:
      program: the Program as captured.
      fetches, feeds: names of tensors.
    """
    graph, writes, fed = program.graph, set(program.plan.analysis.writes), {node_of(name) for name in feeds}
    found = set()
    for name in fetches:
        before = graph.ancestors([node_of(name)])
        has_data = bool(before & fed) or any(graph.nodes[each].op in effects.SOURCES for each in before)
        if has_data and not before & writes:
            found.add(name)
    return frozenset(found)
