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
from epl.session.inner import own_copy
from epl.session.local_steps import LocalSteps, first_step, kept


class LocalRuns(object):
    """What a Driver, which is one, does where copies of the model train by themselves.

    With local_sgd.overlap an average is under way in the background (job.background) from the end of one period to that
    of the next. Whatever else communicates waits for it first, so that all workers communicate in the same order.
    """

    def __init__(self):
        self._local = LocalSteps()
        self._pending_average = None  # the Work of an average that has begun and has not been applied
        self._local_turn = threading.RLock()  # threads of a program take their steps one after the other

    def _run_local(self, step, feeds, run_options, metadata):
        """Runs a training step without the other workers, and averages all copies of the model where that is due."""
        job, local, plan = self._job, self._local, self._rewritten.plan
        with self._local_turn:
            if plan.mesh.num_workers > 1 and (self._values.to_send or not local.started):
                self._run_together(self._step((), (), ()), (), (), (), {})
            self._make_copies(step)
            if not local.started:
                self._pending_average = None
                first = first_step(self._read, self._rewritten.own_graph, self._graph, self._values.valued)
                local.begin(first, self._kept())
            if local.ended:
                self._average()
            try:
                with job.telling_others():
                    job.check_others()
                    values = self._taken(step, feeds, run_options, metadata)
                    values = local.without_losses(values, len(step.losses), len(plan.mesh.instances))
                job.took_step()
                if local.taken(plan.local_sgd):
                    self._end_period()
            except Exception:
                local.end()
                self._pending_average = None
                raise
        return values

    def _taken(self, step, feeds, run_options, metadata):
        """What a step fetches. Where data has ended, the others, who hear of it, have the average under way first."""
        try:
            return self._run_fed(step, feeds, run_options, metadata)
        except tf_compat.tf.errors.OutOfRangeError:
            self._job.background.finish()
            raise

    def _end_period(self):
        """Averages the copies, at once or late."""
        local_sgd = self._rewritten.plan.local_sgd
        if not local_sgd.overlap or self._local.place <= local_sgd.begin_step:
            self._average()
            return
        self._apply_pending()
        self._begin_average()

    def _average(self):
        """Gives all copies of the model the average of their variables; all workers take part."""
        self._finish_pending()
        self._pending_average = None
        with self._job.lock:
            self._run_average(average_name(), self._local.steps)
            self._local.averaged(self._kept(), self._rewritten.plan.local_sgd, self._job.exchange)

    def _run_average(self, name, steps):
        step = self._step((), (name,), ())
        if step.communicates:
            self._run_together(step, (), (name,), (), {}, steps=steps)
        else:
            self._run_step(step, {}, None, None)

    def _begin_average(self):
        """Begins to average what the copies are now."""
        averaged, steps = self._rewritten.plan.averaged, self._local.steps
        self._inner.run((), [], (), (snapshot_name(),))
        self._local.overlapped(self._kept(without=averaged))
        with self._job.lock:
            self._job.ready()
        self._step((), (overlapped_average_name(),), ())  # made before others can come to change the graph
        self._pending_average = self._job.background.start(lambda: self._run_average(overlapped_average_name(), steps))

    def _apply_pending(self):
        """Gives the copies the average of the period before, to which they add what they have done since."""
        if self._pending_average is None:
            return
        self._pending_average.outcome()
        self._pending_average = None
        self._inner.run((), [], (), (apply_average_name(),))
        names = sorted(self._rewritten.plan.averaged) if self._writes_files else []
        values = self._read(tuple(overlapped_name(name) + ":0" for name in names)) if names else []
        self._local.came(dict(zip(names, values)))

    def _finish_pending(self):
        """Before anything else communicates: waits for the average under way, and raises what it has come to."""
        if self._pending_average is None or self._job.background.is_here:
            return
        try:
            self._pending_average.outcome()
        except Exception:
            self._pending_average = None
            self._local.end()
            raise

    @property
    def _writes_files(self):
        return self._cluster.worker_index == 0

    def _kept(self, without=frozenset()):
        """{variable: its value} for checkpoints, on the worker that writes them."""
        if not self._writes_files:
            return {}
        return kept(self._read, self._rewritten.own_graph, self._values.valued - without)

    def _read(self, names):
        return [own_copy(value) for value in self._inner.run((), [], names, ())]
