"""What stands behind one session of the user: keeps its rewritten graph, runs it, keeps the copies of variables
alike."""

import os
import threading

from epl.errors import UnsupportedError
from epl.session.added import restore
from epl.session.copies import Copies
from epl.session.endings.data_end import check_repeated, last_of, metadata_of
from epl.session.endings.no_value import check_values
from epl.session.endings.peer_errors import for_programs
from epl.session.every_nth import EveryNth
from epl.session.inner import divides, one_copy_serves
from epl.session.local_runs import LocalRuns, PendingAverage
from epl.session.local_steps import LocalSteps
from epl.session.recorded import recorder_of
from epl.session.runner import Runner
from epl.session.save_graph import SaveGraph
from epl.session.step_times import step_times_of
from epl.session.taken_up import Positions
from epl.session.together import Together
from epl.session.variable_values import VariableValues
from epl.session.versions import Versions


class Driver(object):
    """Runs the calls of one session.

    Args:
      graph: the user's tf.Graph.
      session_config: ConfigProto or None.
      config, cluster: of the process.
      job: the Job.

    Attributes:
      is_saved_by_hook: whether a CheckpointSaverHook knows this session.
    """

    def __init__(self, graph, session_config, config, cluster, job):
        lock, worker = threading.RLock(), cluster.worker_index
        self._job, self._cluster, self._lock = job, cluster, lock
        self._values, self._local = VariableValues(lock), LocalSteps()
        self._versions = Versions(graph, session_config, config, cluster, job, self._values, lock)
        self._every_nth = EveryNth(config.execution.fetch_every)
        self._copies = Copies(self._versions, self._values, job, lock)
        self._recorder = recorder_of(os.environ, cluster)
        self._every_s = config.checkpoint.every_s if worker == 0 else 0
        self.is_saved_by_hook = False
        self._times = step_times_of(os.environ)
        self._saves = {}  # of the tensor that a save fetches: this worker's Graph, and its SaveGraph
        self._positions = Positions(self._versions, cluster) if config.checkpoint.data_position else None
        self._runner = Runner(self._versions, self._values, self._local, config, cluster, job, self._recorder)
        self._average = PendingAverage(job.background, self._local)
        running = self._versions, self._runner, self._copies
        self._together = Together(*running, self._values, self._local, self._average, job, worker)
        local = self._together, self._values, self._local, self._average, job
        self._local_runs = LocalRuns(*running, *local, writes_files=worker == 0)

    def run(self, fetches, targets, feeds, run_options=None, metadata=None):
        """Runs one call.

        Args:
          fetches: tuple of tensor names.
          targets: tuple of operation names.
          feeds: dict of tensor name to value.
          run_options: serialized RunOptions or None.
          metadata: TF_Buffer for the RunMetadata or None.

        Returns:
          The values of the fetches, in order.
        """
        step, following = self._versions.step(fetches, targets, tuple(feeds)), self._job.following
        if self._every_s and step.changes.trains and not self.is_saved_by_hook:
            raise UnsupportedError(
                "checkpoint.every_s=%g has no effect in this session: no CheckpointSaverHook saves it. Train with "
                "tf.train.MonitoredTrainingSession(checkpoint_dir=...), whose save_checkpoint_secs or "
                "save_checkpoint_steps is not None, or an Estimator; else leave checkpoint.every_s at 0."
                % self._every_s
            )
        if self._recorder is not None:
            self._recorder.begins(self, step, fetches, targets, feeds)
        if self._positions is not None:
            self._positions.before(step)
        following.takes(step, feeds, self._versions.rewritten)
        timed = None
        if self._times is not None and not run_options:  # those of a monitored session are empty
            timed = self._times.begins(step, self._versions.plan.mesh, following.waited_s)
        if timed is not None:
            run_options, metadata = timed.traced.options, timed.traced.buffer
        began = following.begins(step)
        try:
            values = self._run_call(step, fetches, targets, feeds, run_options, metadata)
            check_values(self.user_graph, fetches, values)
        except BaseException:
            following.ends(began)
            raise
        following.ends(began, step, fetches, values, self._versions.rewritten, self.user_graph)
        if timed is not None:
            self._times.ends(timed, self._versions.plan.mesh, following.waited_s, self._runner.read_ahead)
        if self._positions is not None:
            self._positions.after(step)
        if self._recorder is not None:
            self._recorder.ends(self)
        return values

    def _run_call(self, step, fetches, targets, feeds, run_options, metadata):
        if step.is_plain:  # where a step is short, each question that is asked of it counts
            return self._runner.plain(step, run_options, metadata)
        rest = (targets, feeds, run_options, metadata)
        if self._every_nth.every <= 1 or not step.changes.trains:
            return self._run(step, fetches, *rest)

        def call(wanted):
            return self._run(self._versions.step(wanted, targets, tuple(feeds)), wanted, *rest)

        return self._every_nth.run(call, fetches, step.may_wait(fetches))

    def _run(self, step, fetches, targets, feeds, run_options, metadata):
        names, versions = tuple(feeds), self._versions
        if names and not divides(step.feeding, feeds):
            step = versions.step(fetches, targets, names, one_copy_serves(versions.rewritten, step.feeding, feeds))
        if step.run.repeats > 1:
            check_repeated(feeds, step.run.repeats)
        if step.changes.averaged:
            return self._local_runs.run(step, feeds, run_options, metadata)
        if step.traffic.communicates:
            values = self._together.run(step, fetches, targets, names, feeds, run_options, metadata)
        else:
            values = self._run_alone(step, feeds, run_options, metadata)
        self._note(step, feeds)
        return values

    def _run_alone(self, step, feeds, run_options, metadata):
        """Runs a step that does not communicate, as many times as it is to be."""
        run = step.run
        if step.changes.writes or step.changes.initialises:
            self._job.background.finish()
        self._make_copies(step)
        if run.repeats == 1:
            return self._runner.alone(step, feeds, run_options, metadata)
        each, options = metadata_of(run.repeats, metadata), self._runner.options(step, run_options)
        return last_of(each, lambda metadata: self._runner.alone(step, feeds, options, metadata))

    def _make_copies(self, step):
        if step.changes.writes or step.run.several_copies or step.changes.added:
            self._copies.make(step)

    def _note(self, step, feeds):
        """Notes which variables a step has given values that not all copies have."""
        changes, plan, values = step.changes, self._versions.plan, self._values
        if plan.local_sgd is not None:
            self._local.given(changes.initialises | changes.updated, plan.averaged)
        if changes.initialises:
            sharded = frozenset(filter(plan.spans_workers, changes.initialises))
            values.first(changes.initialises, changes.constants, sharded)
            values.to_begin(changes.begins_anew)
            restore(self._versions.inner.run, plan, values, changes.restores, feeds)
        if changes.shared and not step.traffic.communicates:
            values.changed(changes.shared)  # other workers may not have run it; the chief's value counts

    def keep_saved(self, fetch, feeds):
        """Copies what a Saver's operations would write now.

        Args:
          fetch: the tensor that has the checkpoint's name once it is written.
          feeds: dict of the tensor that is fed this name to it.

        Returns:
          A SaveGraph, which writes it; until then nothing else may be saved.
        """
        step, following = self._versions.step((fetch,), (), tuple(feeds)), self._job.following

        def keep(step):
            graph, own = self._versions.rewritten.own_graph, step.run.fetches[0]
            if self._saves.get(own, (None,))[0] is not graph:
                self._forget_saves(own)
                self._saves[own] = graph, SaveGraph(graph, own)
            self._runner.keep_saved(step, feeds, self._saves[own][1])
            return self._saves[own][1]

        began = following.begins(step)
        try:
            if step.traffic.communicates:
                (saves,) = self._together.run(step, (fetch,), (), tuple(feeds), feeds, keep=keep)
            else:
                self._make_copies(step)
                saves = keep(step)
        finally:
            following.ends(began)
        return saves

    def _forget_saves(self, *names):
        for name in names:
            if name in self._saves:
                self._saves.pop(name)[1].close()

    def num_copies(self, fetches, targets, feeds):
        """How many copies of the model in this worker take part in a call, given by names."""
        step = self._versions.step(fetches, targets, feeds)
        return len(self._versions.plan.mesh.instances) if step.run.several_copies else 1

    @for_programs
    def synchronise(self):
        """Gives all workers the chief's values of variables that have new ones; all workers take part.

        Programs that read variables before the first step that communicates need it; nothing is done where no step of
        this session can communicate.
        """
        if self._cluster.worker_num == 1:
            return
        step = self._versions.step((), (), ())
        if self._versions.plan.mesh.num_workers > 1:
            self._together.run(step, (), (), (), {})

    @for_programs
    def finish(self):
        """Tells the other workers that this session is through, and hears whether they agree; all take part.

        A worker that wanted another step gets an OutOfRangeError for it, as if the data had ended. Where all end after
        the same local steps, their variables are averaged.
        """
        if not self._together.is_over:
            self._average.finish()
        if self._cluster.worker_num == 1 and self._local.behind:
            self._local_runs.average()
        self._together.finish(self._local_runs.average)

    def save_positions(self, checkpoint):
        """Writes how far this worker has read its data beside a checkpoint that is being written, where it is to."""
        if self._positions is not None:
            self._positions.save(checkpoint)

    def take_up_data(self, checkpoint):
        """Reads data from where it was when a checkpoint was written, by the prefix of its files, if that is kept."""
        if self._positions is not None:
            self._positions.taken_up_from(checkpoint)

    @property
    def user_graph(self):
        """The program's tf.Graph."""
        return self._versions.graph

    @property
    def rewritten(self):
        """The Rewritten that is run; None before the first run."""
        return self._versions.rewritten

    @property
    def graph(self):
        """This worker's rewritten Graph; None before the first run."""
        return self.rewritten.own_graph if self.rewritten is not None else None

    def read(self, names):
        """The values of tensors of this worker's rewritten graph as they are now, by a tuple of their names."""
        return self._versions.read(names)

    def close(self):
        self._job.background.finish()
        self._forget_saves(*list(self._saves))
        with self._lock:
            if self._versions.inner is not None:
                self._versions.close()
                self._runner.close()

    @property
    @for_programs
    def divided(self):
        """Whether workers have parts of the graph, so that no worker has all variables."""
        self._versions.step((), (), ())
        return self.rewritten.program.part is not None

    @property
    @for_programs
    def shards_span_workers(self):
        """Whether workers have parts of tensors, so that all of them take part in what reads these."""
        self._versions.step((), (), ())
        return self._versions.plan.shards_span_workers

    @for_programs
    def help(self, fetches, feeds):
        """Helps the chief with a step that only reads, such as writing a checkpoint; all other workers call it.

        Nothing is done where the chief needs nobody for it.

        Args:
          fetches, feeds: names of tensors, as the chief's call has them.
        """
        if self.divided:
            self._together.help(fetches, feeds)

    @for_programs
    def help_until_done(self):
        """Helps the chief with whatever it reads, until it calls `done`; all other workers call it."""
        if self.divided:
            self._together.help_until_done()

    @for_programs
    def done(self):
        """The chief has read what others help with until then; whoever does not help goes on as before."""
        if self.divided:
            self._together.done()
