"""Gives the copies of variables the values that they share: those in this worker, and those of other workers."""

from epl.plan.facts.names import copy_name, sync_name
from epl.session.added import begin


class Copies(object):
    """Of one session.

    Args:
      versions: its Versions.
      values: its Values.
      job: the Job.
      lock: of the session.
    """

    def __init__(self, versions, values, job, lock):
        self._versions, self._values, self._job, self._lock = versions, values, job, lock

    def make(self, step):
        """Gives the copies of variables values before the first Step that needs them.

        Another thread's step waits until that is done: no copy is made of what a step is changing.
        """
        with self._lock:
            if step.changes.added:
                begin(self._versions.inner.run, self._versions.plan, self._values, step)
            if step.run.several_copies and self._values.uncopied:
                self._copy(sorted(self._values.uncopied))

    def settle(self, fresh, constants, sharded):
        """Gives variables with new first values the same on all workers, as these have agreed
        (epl.session.variable_values)."""
        if fresh or constants or sharded:
            self._values.agreed(fresh, constants, sharded)
        if fresh:
            self._synchronise(list(fresh))

    def _synchronise(self, variables):
        """Gives all copies of the variables the value of the chief's first copy."""
        versions = self._versions
        known = list(filter(versions.plan.is_sent, variables))
        orders = versions.rewritten.sync_orders(known)
        self._job.pool.join(versions.rewritten.communicators(orders))
        self._job.pool.expect(orders)
        versions.run_targets(tuple(map(sync_name, known)))
        self._copy(variables)
        self._values.sent(variables, known)

    def _copy(self, variables):
        """Gives all copies of the variables in this worker the value of its first copy."""
        plan = self._versions.plan
        copied = tuple(copy_name(v) for v in variables if v in plan.analysis.cloned and plan.is_sent(v))
        if copied and len(plan.mesh.instances) > 1:
            self._versions.run_targets(copied)
        self._values.copied(variables)
