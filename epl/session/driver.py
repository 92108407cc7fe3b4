"""What stands behind one session of the user: keeps its rewritten graph, runs it, keeps the copies of variables
alike."""

import threading
import time

from epl import tf_compat
from epl.capture.record import version_of
from epl.communicators import library
from epl.plan.facts.names import copy_name, sync_name
from epl.session import first_gradients, out_of_memory, replicas
from epl.session.added import begin, restore
from epl.session.agreement import (
    DONE,
    HELPS,
    HELPS_ON,
    OVER,
    READS,
    TOGETHER,
    SessionOver,
    Vote,
    agree,
    current_agreement,
)
from epl.session.ahead import Ahead
from epl.session.endings import file_errors
from epl.session.endings.data_end import check_repeated, data_has_ended, last_of, metadata_of, no_data
from epl.session.endings.no_value import check_values
from epl.session.endings.peer_errors import FromPeer, for_programs
from epl.session.every_nth import EveryNth
from epl.session.inner import InnerSession, View, divides, fed_to, looks_on, of_program, one_copy_serves
from epl.session.input_stats import InputStats
from epl.session.local_runs import LocalRuns
from epl.session.rewritten import Rewritten
from epl.session.shown import show_plan
from epl.session.values import Values
from epl.session.whole_batches import for_whole_batches


class Driver(LocalRuns):
    """Runs the calls of one session.

    Args:
      graph: the user's tf.Graph.
      session_config: ConfigProto or None.
      config, cluster: of the process.
      job: the Job.
    """

    def __init__(self, graph, session_config, config, cluster, job):
        super().__init__()
        self._graph = graph
        self._session_config = session_config
        self._config = config
        self._cluster = cluster
        self._job = job
        self._lock = threading.RLock()
        self._rewritten = None
        self._inner = None
        self._whole = None  # what `_for_whole_batches` gives
        self._steps = {}
        self._number = None
        self._over = False  # all workers know that this session is through
        self._values = Values(self._lock)
        self._shown = False
        self._has_read = False  # True once a step has had data
        self._checks = replicas.Checks(config.communication.check_replicas_every)
        self._stats = InputStats()
        self._ahead = Ahead(job.check_others)
        self._every_nth = EveryNth(config.execution.fetch_every)
        self._gradients = first_gradients.FirstGradients()

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
        step, following = self._step(fetches, targets, tuple(feeds)), self._job.following
        following.takes(step, feeds, self._rewritten)
        began = following.begins(step)
        try:
            values = self._run_call(step, fetches, targets, feeds, run_options, metadata)
            check_values(self._graph, fetches, values)
        except BaseException:
            following.ends(began)
            raise
        following.ends(began, step, fetches, values, self._rewritten, self._graph)
        return values

    def _run_call(self, step, fetches, targets, feeds, run_options, metadata):
        if step.is_plain and not step.whole:  # where a step is short, each question that is asked of it counts
            fetched = self._compute(step, (), [], step.fetches, run_options, metadata)
            self._has_read = self._has_read or step.reads
            return of_program(step, fetched)
        rest = (targets, feeds, run_options, metadata)
        if self._every_nth.every <= 1 or not step.optimizes:
            return self._run(step, fetches, *rest)

        def call(wanted):
            return self._run(self._step(wanted, targets, tuple(feeds)), wanted, *rest)

        return self._every_nth.run(call, fetches, step.may_wait(fetches))

    def _run(self, step, fetches, targets, feeds, run_options, metadata):
        names = tuple(feeds)
        if names and not divides(step, feeds):
            step = self._step(fetches, targets, names, one_copy_serves(self._rewritten, step, feeds))
        if step.repeats > 1:
            check_repeated(feeds, step.repeats)
        if step.is_local:
            return self._run_local(step, feeds, run_options, metadata)
        if step.communicates:
            values = self._run_together(step, fetches, targets, names, feeds, run_options, metadata)
        else:
            if step.updates or step.initialises:
                self._job.background.finish()
            if step.updates or step.trains or step.added:
                self._make_copies(step)
            if step.repeats > 1:
                each, options = metadata_of(step.repeats, metadata), self._options(step, run_options)
                values = last_of(each, lambda metadata: self._run_alone(step, feeds, options, metadata))
            else:
                values = self._run_alone(step, feeds, run_options, metadata)
        if self._rewritten.plan.local_sgd is not None:
            self._local.given(step.initialises | step.updated, self._rewritten.plan.averaged)
        if step.initialises:
            sharded = frozenset(filter(self._rewritten.plan.spans_workers, step.initialises))
            self._values.first(step.initialises, step.constants, sharded)
            self._values.to_begin(step.begins_anew)
            restore(self._inner.run, self._rewritten.plan, self._values, step, feeds)
        if step.changes and not step.communicates:
            self._values.changed(step.changes)  # other workers may not have run it; the chief's value counts
        return values

    def num_copies(self, fetches, targets, feeds):
        """How many copies of the model in this worker take part in a call, given by names."""
        step = self._step(fetches, targets, feeds)
        return len(self._rewritten.plan.mesh.instances) if step.trains else 1

    @for_programs
    def synchronise(self):
        """Gives all workers the chief's values of variables that have new ones; all workers take part.

        Programs that read variables before the first step that communicates need it; nothing is done where no step of
        this session can communicate.
        """
        if self._cluster.worker_num == 1:
            return
        step = self._step((), (), ())
        if self._rewritten.plan.mesh.num_workers > 1:
            self._run_together(step, (), (), (), {})

    @for_programs
    def finish(self):
        """Tells the other workers that this session is through, and hears whether they agree; all take part.

        A worker that wanted another step gets an OutOfRangeError for it, as if the data had ended. Where all end after
        the same local steps, their variables are averaged.
        """
        if not self._over:
            self._finish_pending()
        if self._cluster.worker_num == 1 and self._local.behind:
            self._average()
        if self._number is None or self._over:
            return
        job = self._job
        with job.lock:
            job.ready()
            try:
                vote = Vote(self._number, (), (), (), OVER, steps=self._local.steps)
                agree(job.exchange, vote, self._step((), (), ()), None, current_agreement(), self._rewritten.described)
            except SessionOver as over:
                if over.together and self._local.behind:
                    self._average()
                self._over = True
            except Exception as error:  # as in _run_together
                raised = job.broken_by(error)
                raise getattr(raised, "error", raised) from None

    @property
    def user_graph(self):
        """The program's tf.Graph."""
        return self._graph

    @property
    def rewritten(self):
        """The Rewritten that is run; None before the first run."""
        return self._rewritten

    @property
    def graph(self):
        """This worker's rewritten Graph; None before the first run."""
        return self._rewritten.own_graph if self._rewritten is not None else None

    def close(self):
        self._job.background.finish()
        with self._lock:
            if self._inner is not None:
                self._inner.close()
                self._ahead.end()
                self._inner = None
                self._rewritten = self._whole = None
                self._steps.clear()

    def _step(self, fetches, targets, feeds, whole=False):
        if self._rewritten is None or self._rewritten.version != version_of(self._graph):
            self._job.background.finish()
            self._rewrite()
        key = (fetches, targets, feeds, whole)
        step = self._steps.get(key)
        if step is None:
            with self._lock:  # threads of queues make steps while the program does
                rewritten, view = self._for_whole_batches() if whole else (self._rewritten, None)
                step = rewritten.step(fetches, targets, feeds)
                if not whole and looks_on(step, rewritten.plan):
                    whole, (rewritten, view) = True, self._for_whole_batches()
                    step = rewritten.step(fetches, targets, feeds)
                step.whole, step.view = whole, view
                if step.groups or any(map(rewritten.is_divided, fetches)):
                    self._inner.load(rewritten.own_graph, view)  # with the nodes of its messages, or of wholes
                self._steps[key] = step
        return step

    def _for_whole_batches(self):
        """(What epl.session.whole_batches gives, its View in the session); made when it is needed first."""
        if self._whole is None:
            known = self._graph, self._rewritten, self._config, self._cluster, self._job
            made, view = for_whole_batches(*known), View()
            self._inner.load(made.own_graph, view)
            self._whole = made, view
        return self._whole

    def _rewrite(self):
        # No lock is held: workers may have to measure their link, for which they wait for each other.
        job = self._job
        about = self._graph, self._config, self._cluster, job.seed, job.measure_link
        rewritten = Rewritten(*about, at=job.following.preparing)
        with self._lock:
            if self._rewritten is not None and self._rewritten.version >= rewritten.version:
                return  # another thread was faster
            plan = rewritten.plan
            if plan.mesh.everywhere.size > 1 or plan.mesh.num_workers > 1 or rewritten.micro_batches.count > 1:
                library.load()
            if self._inner is None:
                options = self._config.execution
                self._inner = InnerSession(plan.mesh, self._session_config, options, self._cluster.visible_device_list)
            with job.following.preparing("building the graph"):
                self._inner.load(rewritten.own_graph)
            if self._rewritten is not None:
                self._values.copied_from_now_on(plan.analysis.cloned - self._rewritten.plan.analysis.cloned)
            self._rewritten = rewritten
            self._whole = None
            self._steps = {}
            if not self._shown and rewritten.program.apply_calls:
                self._shown = True
                show_plan(rewritten.program, self._cluster)

    def _run_step(self, step, feeds, run_options, metadata):
        names, values = (), []
        if feeds or step.saved or step.open_gates:
            names, values = fed_to(step, feeds, self._local.fed(step.saved), self._rewritten.plan)
        if step.whole:
            self._values.changed_here(step.touched)
        fetches = step.fetches + step.times if step.times else step.fetches
        if step.checked:
            fetches += self._gradients.tensors(step)
        began = time.time() if step.timed else None  # the clock of the operations that take the time too
        waited = ()
        if step.loads or step.restarts:
            try:
                waited = self._ahead.take(step, self._run_targets)
            except tf_compat.tf.errors.OpError as error:
                self._raise(error, names, values)
        fetched = self._compute(step, names, values, fetches, run_options, metadata)
        if step.checked:
            fetched = self._gradients.compared(step, fetched)
        if step.timed:
            times, fetched = list(fetched[len(step.fetches) :]) + list(waited), fetched[: len(step.fetches)]
            graph = self._rewritten.program.source.graph
            self._job.following.waited_for_data(self._stats.note(times, time.time() - began, graph))
        return of_program(step, fetched)

    def _compute(self, step, names, values, fetches, run_options, metadata):
        try:
            return self._inner.run(names, values, fetches, step.targets, run_options, metadata, step.view)
        except tf_compat.tf.errors.OpError as error:
            self._raise(error, names, values)

    def _raise(self, error, names, values):
        """Raises an error of the session's graph, in words of the user's where there are some."""
        fed, rewritten = dict(zip(names, values)), self._rewritten
        raised = file_errors.in_run(error, rewritten.own_graph, fed)
        raised = out_of_memory.explained(raised, self._graph, rewritten.program, self._config, self._cluster, fed)
        if raised is error:
            raise
        raise raised from None

    def _run_targets(self, targets):
        self._inner.run((), [], (), targets)

    def _run_together(self, step, fetches, targets, names, feeds, run_options=None, metadata=None, steps=None):
        """Runs a step that communicates; one at a time in this process. `steps`: of local_sgd, before it; by default
        those until now."""
        self._finish_pending()
        kind, messages = TOGETHER, ()
        if step.only_reads:
            kind, messages = READS, self._rewritten.rows(step.alone().messages)
        steps = self._local.steps if steps is None else steps
        vote = Vote(self._number, fetches, targets, (), kind, {}, messages, step.whole, steps, rows=step.rows(feeds))

        def union(all_fetches, all_targets, whole):
            extra = tuple(t for t in all_fetches if t not in fetches)
            more = tuple(t for t in all_targets if t not in targets)
            return self._step(fetches + extra, targets + more, names, whole)

        def run_once(agreed, options, metadata):
            self._job.pool.expect(agreed.orders)
            if not agreed.fetches and not agreed.targets:
                return []
            values = self._run_fed(agreed, feeds, options, metadata)
            self._job.count_updates(agreed.updates)
            self._compare_copies(agreed, self._job.exchange)
            return values

        def run(agreed):
            self._make_copies(agreed)
            self._job.pool.join(agreed.groups)
            options = self._options(agreed, run_options)
            for each in metadata_of(agreed.repeats, metadata):
                values[:] = [run_once(agreed, options, each)]
            return values[0]

        values = []  # of the latest of several steps
        try:
            return self._agreed(vote, step, union, run)[: len(fetches)]
        except Exception as error:
            # The data of some worker ended after the first of them. All go on to the next call, which finds it ended.
            if not values or not data_has_ended(error):
                raise
            return values[0][: len(fetches)]

    def _options(self, step, run_options):
        """The RunOptions of a step: those of the call, else those that suit a step that is repeated."""
        return self._inner.options_of_many(step) if step.repeats > 1 and run_options is None else run_options

    def _run_alone(self, step, feeds, run_options, metadata):
        """Runs a step that does not communicate, once."""
        values = self._run_step(step, feeds, run_options, metadata)
        self._has_read = self._has_read or step.reads
        if step.updates:
            self._compare_copies(step, lambda message: [message])
        return values

    def _agreed(self, vote, step, union, run):
        """Agrees with the other workers on what this one wants, and runs it; first it helps others who only read.

        Args:
          vote: a Vote; its session and fresh variables are filled in.
          step: the Step for it.
          union: function from all workers' fetches and targets, and whether their batches are taken whole, to the Step
            that runs them.
          run: function that runs a Step and returns the values of its fetches.
        """
        job = self._job
        job.background.finish()
        with job.lock, job.telling_others():
            if self._number is None:
                self._number = job.new_session()
            try:
                job.ready()
                values = None
                while values is None:
                    vote, rewritten = self._up_to_date(vote), self._rewritten
                    agreed = agree(
                        job.exchange, vote, step, union, current_agreement(), rewritten.described, rewritten.holder
                    )
                    if agreed.step is not None or agreed.reader is not None:
                        self._settle(vote, agreed.fresh)
                    if agreed.step is not None:
                        values = run(agreed.step)
                    elif agreed.reader == self._cluster.worker_index:
                        values = run(step.alone())
                    else:
                        if agreed.reader is not None:
                            self._help(agreed.reader, agreed.reads.messages)
                        if vote.kind == HELPS or agreed.done and vote.kind in (HELPS_ON, DONE):
                            values = []
            except SessionOver as over:
                self._over = True
                raise FromPeer(tf_compat.tf.errors.OutOfRangeError(None, None, str(over))) from None
            job.took_step()
            return values

    def _up_to_date(self, vote):
        """The Vote with the session's number and the variables that have new first values now."""
        values, vote = self._values, vote._replace(session=self._number, hints=self._rewritten.hints)
        if not (values.to_send or vote.fresh or vote.constants or vote.sharded):
            return vote  # as in most steps
        new = {"fresh": tuple(sorted(values.fresh)), "sharded": tuple(sorted(values.sharded))}
        return vote._replace(constants=dict(values.constants), **new)

    def _settle(self, vote, fresh):
        """Gives variables with new first values the same on all workers."""
        if fresh or vote.constants or vote.sharded:
            self._values.agreed(fresh, vote.constants, vote.sharded)
        if fresh:
            self._synchronise(list(fresh))

    @property
    @for_programs
    def divided(self):
        """Whether workers have parts of the graph, so that no worker has all variables."""
        self._step((), (), ())
        return self._rewritten.program.part is not None

    @property
    @for_programs
    def shards_span_workers(self):
        """Whether workers have parts of tensors, so that all of them take part in what reads these."""
        self._step((), (), ())
        return self._rewritten.plan.shards_span_workers

    @for_programs
    def help(self, fetches, feeds):
        """Helps the chief with a step that only reads, such as writing a checkpoint; all other workers call it.

        Nothing is done where the chief needs nobody for it.

        Args:
          fetches, feeds: names of tensors, as the chief's call has them.
        """
        if self.divided:
            step = self._step(fetches, (), feeds)
            if step.communicates:
                self._agreed(Vote(None, (), (), (), HELPS), step, None, None)

    @for_programs
    def help_until_done(self):
        """Helps the chief with whatever it reads, until it calls `done`; all other workers call it."""
        if self.divided:
            self._agreed(Vote(None, (), (), (), HELPS_ON), self._step((), (), ()), None, None)

    @for_programs
    def done(self):
        """The chief has read what others help with until then; whoever does not help goes on as before."""
        if self.divided:
            self._agreed(Vote(None, (), (), (), DONE), self._step((), (), ()), None, None)

    def _help(self, reader, rows):
        """Runs this worker's part of what another worker reads; only those with stages of the same copy have any."""
        if reader not in self._rewritten.part.workers:
            return
        with self._lock:
            before = self._rewritten.program
            step = self._rewritten.remote_read(rows, reader, self._cluster.worker_index)
            if self._rewritten.program is not before:
                self._inner.load(self._rewritten.own_graph)
        if step.targets:
            self._job.pool.join(step.groups)
            self._job.pool.expect(step.orders)
            self._run_step(step, {}, None, None)

    def _run_fed(self, step, feeds, run_options, metadata):
        """Runs a step of several workers; one that has not had any data when its input ends has been given none."""
        try:
            values = self._run_step(step, feeds, run_options, metadata)
        except tf_compat.tf.errors.OutOfRangeError as error:
            if self._has_read or not step.reads or self._cluster.worker_num == 1:
                raise
            raise no_data(error, self._cluster) from error
        self._has_read = self._has_read or step.reads
        return values

    def _compare_copies(self, step, exchange):
        """After some training steps: are all copies of the variables the same?"""
        plan = self._rewritten.plan
        if plan.compares_copies and self._checks.is_due(step):
            variables = plan.compared & self._values.given(step.communicates, len(plan.mesh.instances) > 1)
            nodes, copies = self._rewritten.own_graph.nodes, len(plan.mesh.instances)
            own = replicas.digests(self._read, nodes, variables, copies, plan.shard_of, plan.mesh.device_type == "GPU")
            replicas.check(own, exchange, self._checks.num_trained)

    def _synchronise(self, variables):
        """Gives all copies of the variables the value of the chief's first copy."""
        known = list(filter(self._rewritten.plan.is_sent, variables))
        orders = self._rewritten.sync_orders(known)
        self._job.pool.join(self._rewritten.communicators(orders))
        self._job.pool.expect(orders)
        self._inner.run((), [], (), tuple(map(sync_name, known)))
        self._copy(variables)
        self._values.sent(variables, known)

    def _make_copies(self, step):
        """Gives the copies of variables values before the first step that needs them.

        Another thread's step waits until that is done: no copy is made of what a step is changing.
        """
        with self._lock:
            if step.added:
                begin(self._inner.run, self._rewritten.plan, self._values, step)
            if step.trains and self._values.uncopied:
                self._copy(sorted(self._values.uncopied))

    def _copy(self, variables):
        """Gives all copies of the variables in this worker the value of its first copy."""
        plan = self._rewritten.plan
        copied = tuple(copy_name(v) for v in variables if v in plan.analysis.cloned and plan.is_sent(v))
        if copied and len(plan.mesh.instances) > 1:
            self._inner.run((), [], (), copied)
        self._values.copied(variables)
