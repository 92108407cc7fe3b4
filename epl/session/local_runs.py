"""Runs the training steps that workers take without each other (local_sgd), and the averages between them."""

import threading

from epl import tf_compat
from epl.plan.facts.names import (
    apply_average_name,
    average_name,
    overlapped_average_name,
    overlapped_name,
    snapshot_name,
)
from epl.session.local_steps import first_step, kept


class PendingAverage(object):
    """An average that is under way in the background, from the end of one period to that of the next.

    Whatever else communicates waits for it first, so that all workers communicate in the same order.

    Args:
      background: the job's Background.
      local: the LocalSteps of the session.
    """

    def __init__(self, background, local):
        self._background, self._local = background, local
        self._work = None  # the Work of an average that has begun and has not been applied

    def begin(self, function):
        """Runs a function that averages, in the background."""
        self._work = self._background.start(function)

    def forget(self):
        self._work = None

    def finish(self):
        """Before anything else communicates: waits for the average under way, and raises what it has come to."""
        if self._work is None or self._background.is_here:
            return
        try:
            self._work.outcome()
        except Exception:
            self._work = None
            self._local.end()
            raise

    def take(self):
        """Whether there was one to be applied, which has come to its end well; from now on there is none."""
        if self._work is None:
            return False
        self._work.outcome()
        self._work = None
        return True


class LocalRuns(object):
    """What a session does where copies of the model train by themselves.

    Args:
      versions: its Versions.
      runner: its Runner.
      copies: its Copies.
      together: its Together.
      values: its Values.
      local: its LocalSteps.
      average: its PendingAverage.
      job: the Job.
      writes_files: whether this worker writes checkpoints.
    """

    def __init__(self, versions, runner, copies, together, values, local, average, job, writes_files):
        self._versions, self._runner, self._copies, self._together = versions, runner, copies, together
        self._values, self._local, self._pending, self._job = values, local, average, job
        self._writes_files = writes_files
        self._turn = threading.RLock()  # threads of a program take their steps one after the other

    def run(self, step, feeds, run_options, metadata):
        """Runs a training step without the other workers, and averages all copies of the model where that is due.

        Args:
          step: a Step.
          feeds: dict of tensor name to value.
          run_options: serialized RunOptions or None.
          metadata: TF_Buffer for the RunMetadata or None.

        Returns:
          The values of the fetches that the program has asked for.
        """
        job, local, versions = self._job, self._local, self._versions
        plan = versions.plan
        with self._turn:
            if plan.mesh.num_workers > 1 and (self._values.to_send or not local.started):
                self._together.run(versions.step((), (), ()), (), (), (), {})
            self._copies.make(step)
            if not local.started:
                self._pending.forget()
                valued = self._values.valued
                first = first_step(versions.read, versions.rewritten.own_graph, versions.graph, valued)
                local.begin(first, self._kept())
            if local.ended:
                self.average()
            try:
                with job.telling_others():
                    job.check_others()
                    values = self._taken(step, feeds, run_options, metadata)
                    copies = len(plan.mesh.instances) * versions.rewritten.micro_batches.count
                    values = local.without_losses(values, len(step.run.losses), copies)
                job.took_step()
                if local.taken(plan.local_sgd):
                    self._end_period()
            except Exception:
                local.end()
                self._pending.forget()
                raise
        return values

    def average(self):
        """Gives all copies of the model the average of their variables; all workers take part."""
        self._pending.finish()
        self._pending.forget()
        with self._job.lock:
            self._run_average(average_name(), self._local.steps)
            self._local.averaged(self._kept(), self._versions.plan.local_sgd, self._job.exchange)

    def _taken(self, step, feeds, run_options, metadata):
        """What a step fetches. Where data has ended, the others, who hear of it, have the average under way first."""
        try:
            return self._runner.together(step, feeds, run_options, metadata)
        except tf_compat.tf.errors.OutOfRangeError:
            self._job.background.finish()
            raise

    def _end_period(self):
        """Averages the copies, at once or late."""
        local_sgd = self._versions.plan.local_sgd
        if not local_sgd.overlap or self._local.place <= local_sgd.begin_step:
            self.average()
            return
        self._apply_pending()
        self._begin_average()

    def _run_average(self, name, steps):
        step = self._versions.step((), (name,), ())
        if step.traffic.communicates:
            self._together.run(step, (), (name,), (), {}, steps=steps)
        else:
            self._runner.run(step, {})

    def _begin_average(self):
        """Begins to average what the copies are now."""
        averaged, steps = self._versions.plan.averaged, self._local.steps
        self._versions.run_targets((snapshot_name(),))
        self._local.overlapped(self._kept(without=averaged))
        with self._job.lock:
            self._job.ready()
        self._versions.step((), (overlapped_average_name(),), ())  # before others can come to change the graph
        self._pending.begin(lambda: self._run_average(overlapped_average_name(), steps))

    def _apply_pending(self):
        """Gives the copies the average of the period before, to which they add what they have done since."""
        if not self._pending.take():
            return
        self._versions.run_targets((apply_average_name(),))
        names = sorted(self._versions.plan.averaged) if self._writes_files else []
        values = self._versions.read(tuple(overlapped_name(name) + ":0" for name in names)) if names else []
        self._local.came(dict(zip(names, values)))

    def _kept(self, without=frozenset()):
        """{variable: its value} for checkpoints, on the worker that writes them."""
        if not self._writes_files:
            return {}
        versions = self._versions
        return kept(versions.read, versions.rewritten.own_graph, self._values.valued - without)
