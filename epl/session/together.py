"""Runs steps that communicate: workers agree on what runs next, help who only reads, and come to the end together."""

from epl import tf_compat
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
from epl.session.endings.data_end import data_has_ended, metadata_of
from epl.session.endings.peer_errors import FromPeer


class Together(object):
    """Of one session.

    Args:
      versions: its Versions.
      runner: its Runner.
      copies: its Copies.
      values: its Values.
      local: its LocalSteps.
      average: its PendingAverage.
      job: the Job.
      worker: the number of this worker.
    """

    def __init__(self, versions, runner, copies, values, local, average, job, worker):
        self._versions, self._runner, self._copies, self._values = versions, runner, copies, values
        self._local, self._average, self._job, self._worker = local, average, job, worker
        self._number = None
        self._over = False  # all workers know that this session is through

    def run(self, step, fetches, targets, names, feeds, run_options=None, metadata=None, steps=None, keep=None):
        """Runs a step that communicates; one at a time in this process.

        Args:
          step: the Step.
          fetches, targets, names: of which it was made: tensors, operations, fed tensors.
          feeds: dict of these to their values.
          run_options: serialized RunOptions or None.
          metadata: TF_Buffer for the RunMetadata or None.
          steps: of local_sgd, before it; by default those until now.
          keep: function that runs the Step that was agreed on instead, and whose value is the one that is returned.

        Returns:
          The values of the fetches.
        """
        self._average.finish()
        kind, messages, rewritten = TOGETHER, (), self._versions.rewritten
        if step.traffic.only_reads:
            kind, messages = READS, rewritten.rows(step.alone().traffic.messages)
        steps, rows = self._local.steps if steps is None else steps, step.feeding.rows(feeds)
        vote = Vote(self._number, fetches, targets, (), kind, {}, messages, step.is_whole, steps, rows=rows)
        vote = vote._replace(fed=step.feeding.counted(feeds))

        def union(all_fetches, all_targets, whole):
            extra = tuple(t for t in all_fetches if t not in fetches)
            more = tuple(t for t in all_targets if t not in targets)
            return self._versions.step(fetches + extra, targets + more, names, whole)

        def run_once(agreed, options, metadata):
            self._job.pool.expect(agreed.traffic.orders)
            if not agreed.run.fetches and not agreed.targets:
                return []
            if keep is not None:
                return [keep(agreed)]
            shares = agreed.feeding.shared(current_agreement().fed, self._worker)
            values = self._runner.together(agreed, feeds, options, metadata, shares)
            self._job.count_updates(bool(agreed.changes.writes))
            self._runner.compare_copies(agreed, self._job.exchange)
            return values

        def run(agreed):
            self._copies.make(agreed)
            self._job.pool.join(agreed.traffic.groups)
            options = self._runner.options(agreed, run_options)
            for each in metadata_of(agreed.run.repeats, metadata):
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

    def help(self, fetches, feeds):
        """Helps the chief with a step that only reads; see Driver.help."""
        step = self._versions.step(fetches, (), feeds)
        if step.traffic.communicates:
            self._agreed(Vote(None, (), (), (), HELPS), step, None, None)

    def help_until_done(self):
        """Helps the chief with whatever it reads, until it calls `done`."""
        self._agreed(Vote(None, (), (), (), HELPS_ON), self._versions.step((), (), ()), None, None)

    def done(self):
        """The chief has read what others help with until then."""
        self._agreed(Vote(None, (), (), (), DONE), self._versions.step((), (), ()), None, None)

    @property
    def is_over(self):
        """Whether all workers know that this session is through."""
        return self._over

    def finish(self, average):
        """Tells the other workers that this session is through; all take part.

        Args:
          average: function that averages the copies of the model, called where all have come to this after the same
            steps of their own.
        """
        if self._number is None or self._over:
            return
        job = self._job
        with job.lock:
            job.ready()
            try:
                vote, step = (
                    Vote(self._number, (), (), (), OVER, steps=self._local.steps),
                    self._versions.step((), (), ()),
                )
                agree(job.exchange, vote, step, None, current_agreement(), self._versions.rewritten.described)
            except SessionOver as over:
                if over.together and self._local.behind:
                    average()
                self._over = True
            except Exception as error:  # as in `run`
                raised = job.broken_by(error)
                raise getattr(raised, "error", raised) from None

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
                    vote, rewritten = self._up_to_date(vote), self._versions.rewritten
                    agreed = agree(
                        job.exchange, vote, step, union, current_agreement(), rewritten.described, rewritten.holder
                    )
                    if agreed.step is not None or agreed.reader is not None:
                        self._copies.settle(agreed.fresh, vote.constants, vote.sharded)
                    if agreed.step is not None:
                        values = run(agreed.step)
                    elif agreed.reader == self._worker:
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
        values, vote = self._values, vote._replace(session=self._number, hints=self._versions.rewritten.hints)
        if not (values.to_send or vote.fresh or vote.constants or vote.sharded):
            return vote  # as in most steps
        new = {"fresh": tuple(sorted(values.fresh)), "sharded": tuple(sorted(values.sharded))}
        return vote._replace(constants=dict(values.constants), **new)

    def _help(self, reader, rows):
        """Runs this worker's part of what another worker reads; only those with stages of the same copy have any."""
        if reader not in self._versions.rewritten.part.workers:
            return
        step = self._versions.remote_read(rows, reader)
        if step.targets:
            self._job.pool.join(step.traffic.groups)
            self._job.pool.expect(step.traffic.orders)
            self._runner.run(step, {})
