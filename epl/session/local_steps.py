"""Training steps that workers take without each other (local_sgd): how many, when they average, and what is saved."""

import struct

import numpy as np

from epl import tf_compat
from epl.plan.facts.names import saved_name, saved_value_name


class LocalSteps(object):
    """Of one session.

    Attributes:
      steps: taken since the variables were given values, or since data ended somewhere.
      ended: whether data has ended since the copies were the same, so that they may have taken different steps.
    """

    def __init__(self):
        self.steps, self.ended = 0, False
        self._first = 0  # the global step at which they were given values
        self._since = 0  # steps since the copies were the same
        self._kept = None  # variable to its value then, on the worker that writes checkpoints
        self._waiting = None  # with overlap, what else was so when the copies began their average under way
        self._is_overlapped = False  # whether they have been averaged late since they were the same
        self._losses = []  # of this period's steps, where periods follow from them
        self._first_loss = self._period = None  # the mean of the first period's, and how many steps this one has

    @property
    def started(self):
        """Whether the copies' values have been noted since they were given."""
        return self._kept is not None

    @property
    def behind(self):
        """Whether the copies differ by steps of their own."""
        return self._since > 0 or self.ended or self._is_overlapped

    @property
    def place(self):
        """The number of the latest step, from 1, counted like the program's global step."""
        return self._first + self.steps

    def given(self, variables, averaged):
        """Notes that the program gave variables new values.

        Args:
          variables: which.
          averaged: those that the copies average.
        """
        if self._kept is None:
            return
        if averaged & variables:
            self.steps, self._since, self._kept, self.ended = 0, 0, None, False
            self._waiting, self._is_overlapped = None, False
        else:
            for variable in variables:
                self._kept.pop(variable, None)
                (self._waiting or {}).pop(variable, None)

    def begin(self, first, kept):
        """The copies are the same, before their first steps.

        Args:
          first: the global step; 0 where the program counts none.
          kept: variables to their values, for checkpoints; empty on other workers.
        """
        self.steps, self._since, self._first, self._kept, self.ended = 0, 0, first, dict(kept), False
        self._waiting, self._is_overlapped = None, False
        self._losses, self._first_loss, self._period = [], None, None

    def without_losses(self, values, count, copies):
        """What a step has fetched without the losses at the end, which are noted.

        Args:
          values: list of arrays.
          count: number of losses, of all micro-batches of all copies of the model in this worker.
          copies: number of these.
        """
        if not count:
            return values
        self._losses.append(float(sum(np.mean(value, dtype=np.float64) for value in values[-count:])) / copies)
        return values[:-count]

    def taken(self, local_sgd):
        """Counts a step; returns whether the copies are to be averaged now."""
        self.steps += 1
        self._since += 1
        return local_sgd.is_due(self.place, self._since, self._period or local_sgd.first_steps)

    def end(self):
        """A step, or the average after it, has come to an error that the program may live through, as data's end."""
        self._first += self.steps
        self.steps, self.ended, self._waiting = 0, True, None

    def averaged(self, kept, local_sgd, exchange):
        """The copies are the same again.

        Args:
          kept: as for `begin`.
          local_sgd: the LocalSgd of the plan.
          exchange: function from this worker's bytes to those of all workers, in their order; all call it.
        """
        if local_sgd.first_steps is not None:
            own = struct.pack("<d", np.mean(self._losses) if self._losses else np.nan)
            of_workers = [struct.unpack("<d", each)[0] for each in exchange(own)]
            self._adapt(local_sgd, float(np.mean(of_workers)))
        self._since, self._kept, self.ended = 0, dict(kept), False
        self._waiting, self._is_overlapped = None, False

    def overlapped(self, kept):
        """The copies have begun to average what they are now, and go on (local_sgd.overlap).

        Args:
          kept: as for `begin`, but for the variables that are averaged.
        """
        self._since, self._is_overlapped, self._waiting = 0, True, dict(kept)

    def came(self, averages):
        """What they had begun to average has come: with what `overlapped` was given it is what checkpoints get.

        Args:
          averages: variables to their averages; empty on other workers.
        """
        self._kept, self._waiting = dict(self._waiting, **averages), None

    def _adapt(self, local_sgd, loss):
        """Says how many steps the next period has, by the mean loss of all workers in this one."""
        self._losses = []
        if self.place <= local_sgd.begin_step:
            return
        if self._first_loss is None:
            self._first_loss = loss
        period = self._period or local_sgd.first_steps
        self._period = local_sgd.next_period(self._first_loss, loss, period)

    def fed(self, saved):
        """What a checkpoint is fed, {tensor: value}, for the variables `saved` that it holds."""
        if not self.behind or not self._kept:
            return {}
        return {saved_name(name) + ":0": self._kept[name] for name in saved if name in self._kept}


def kept(read, graph, variables):
    """{variable: its value} of those that checkpoints hold.

    Args:
      read: function from a tuple of tensor names to their values.
      graph: this worker's rewritten Graph.
      variables: names of those that have a value.
    """
    names = [name for name in sorted(variables) if saved_value_name(name) in graph.nodes]
    return dict(zip(names, read(tuple(saved_value_name(name) + ":0" for name in names)))) if names else {}


def first_step(read, graph, tf_graph, variables):
    """What the program's global step is; 0 where it counts none. Arguments as of `kept`, and the program's tf.Graph."""
    step = tf_compat.tf.train.get_global_step(tf_graph)
    own = set(variables) & ({tf_compat.variable_op_name(step)} if step is not None else set())
    return sum(int(value) for value in kept(read, graph, own).values())
