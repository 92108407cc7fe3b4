"""Runs one step on this worker: feeds it, takes its batches, and looks at what came of it."""

import time

from epl import tf_compat
from epl.graph.index import canonical_tensor
from epl.session import first_gradients, out_of_memory, replicas
from epl.session.ahead import Ahead
from epl.session.endings import file_errors
from epl.session.endings.data_end import no_data
from epl.session.inner import fed_to, of_program
from epl.session.input_stats import InputStats


class Runner(object):
    """Of one session.

    Args:
      versions: its Versions.
      values: its Values.
      local: its LocalSteps.
      config, cluster: of the process.
      job: the Job.
      recorder: the Recorder of what training steps are given and make; None for none.
    """

    def __init__(self, versions, values, local, config, cluster, job, recorder=None):
        self._versions, self._values, self._local = versions, values, local
        self._config, self._cluster, self._following = config, cluster, job.following
        self._has_read = False  # True once a step has had data
        self._checks = replicas.Checks(config.communication.check_replicas_every)
        self._stats = InputStats()
        self._ahead = Ahead(job.check_others)
        self._gradients = first_gradients.FirstGradients()
        self._recorder = recorder
        self.read_ahead = ()  # when the latest step began and ended to wait for batches that were read ahead

    def plain(self, step, run_options, metadata):
        """The values of the fetches of a Step that is plain (`Step.is_plain`)."""
        fetched = self._compute(step, (), [], step.run.fetches, run_options, metadata)
        self._has_read = self._has_read or bool(step.reading.sources)
        return of_program(step, fetched)

    def run(self, step, feeds, run_options=None, metadata=None, shares=None):
        """The values of the fetches of any Step, as the program gets them.

        Args:
          step: the Step.
          feeds: dict of tensor name to value.
          run_options: serialized RunOptions or None.
          metadata: TF_Buffer for the RunMetadata or None.
          shares: what Feeding.shared gives; None for nothing.
        """
        names, values, run, reading = (), [], step.run, step.reading
        if feeds or step.changes.saved or run.open_gates:
            kept = dict(self._local.fed(step.changes.saved), **(shares or {}))
            names, values = fed_to(step, feeds, kept, self._versions.plan)
        if step.leaves_copies:
            self._values.changed_here(step.changes.touched)
        fetches = run.fetches + reading.times if reading.times else run.fetches
        if run.checked:
            fetches += self._gradients.tensors(step)
        if self._recorder is not None:
            fetches += self._recorder.tensors(step)
        began = time.time() if reading.timed else None  # the clock of the operations that take the time too
        waited = self.read_ahead = ()
        if reading.loads or reading.restarts:
            try:
                waited = self.read_ahead = self._ahead.take(reading, self._versions.run_targets)
            except tf_compat.tf.errors.OpError as error:
                self._raise(error, names, values)
        fetched = self._compute(step, names, values, fetches, run_options, metadata)
        if self._recorder is not None:
            fetched = self._recorder.took(step, names, values, fetched)
        if run.checked:
            fetched = self._gradients.compared(step, fetched)
        if reading.timed:
            times, fetched = list(fetched[len(run.fetches) :]) + list(waited), fetched[: len(run.fetches)]
            graph = self._versions.rewritten.program.source.graph
            self._following.waited_for_data(self._stats.note(times, time.time() - began, graph))
        return of_program(step, fetched)

    def alone(self, step, feeds, run_options, metadata):
        """Runs a step that does not communicate, once."""
        values = self.run(step, feeds, run_options, metadata)
        self._has_read = self._has_read or bool(step.reading.sources)
        if step.changes.writes:
            self.compare_copies(step, lambda message: [message])
        return values

    def together(self, step, feeds, run_options, metadata, shares=None):
        """Runs a step of several workers; one that has not had any data when its input ends has been given none."""
        reads = bool(step.reading.sources)
        try:
            values = self.run(step, feeds, run_options, metadata, shares)
        except tf_compat.tf.errors.OutOfRangeError as error:
            if self._has_read or not reads or self._cluster.worker_num == 1:
                raise
            raise no_data(error, self._cluster) from error
        self._has_read = self._has_read or reads
        return values

    def keep_saved(self, step, feeds, saves):
        """Runs a Step that saves, but for the writing: a SaveGraph keeps what would be written."""
        names, values = fed_to(step, feeds, self._local.fed(step.changes.saved), self._versions.plan)
        fed = {canonical_tensor(name): value for name, value in zip(names, values)}
        fetches = tuple(name for name in saves.fetches if name not in fed)  # averages are fed (local_sgd)
        targets, got = step.targets + saves.waits, {}
        if fetches or targets:
            try:
                run = self._versions.inner.run
                got.update(zip(fetches, run(names, values, fetches, targets, None, None, step.view)))
            except tf_compat.tf.errors.OpError as error:
                self._raise(error, names, values)
        saves.keep([got[name] if name in got else fed[name] for name in saves.fetches], fed)

    def compare_copies(self, step, exchange):
        """After some training steps: are all copies of the variables the same?"""
        versions, plan = self._versions, self._versions.plan
        if plan.compares_copies and self._checks.is_due(step):
            copies = len(plan.mesh.instances)
            variables = plan.compared & self._values.given(step.traffic.communicates, copies > 1)
            nodes, on_gpu = versions.rewritten.own_graph.nodes, plan.mesh.device_type == "GPU"
            own = replicas.digests(versions.read, nodes, variables, copies, plan.shard_of, on_gpu)
            replicas.check(own, exchange, self._checks.num_trained)

    def options(self, step, run_options):
        """The RunOptions of a step: those of the call, else those that suit a step that is repeated."""
        repeated = step.run.repeats > 1 and run_options is None
        return self._versions.inner.options_of_many(step.run) if repeated else run_options

    def close(self):
        self._ahead.end()

    def _compute(self, step, names, values, fetches, run_options, metadata):
        try:
            return self._versions.inner.run(names, values, fetches, step.targets, run_options, metadata, step.view)
        except tf_compat.tf.errors.OpError as error:
            self._raise(error, names, values)

    def _raise(self, error, names, values):
        """Raises an error of the session's graph, in words of the user's where there are some."""
        fed, versions = dict(zip(names, values)), self._versions
        rewritten = versions.rewritten
        raised = file_errors.in_run(error, rewritten.own_graph, fed)
        known = versions.graph, rewritten.program, self._config, self._cluster, fed
        raised = out_of_memory.explained(raised, *known)
        if raised is error:
            raise
        raise raised from None
