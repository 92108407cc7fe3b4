"""What stands behind one session of the user: keeps its rewritten graph, runs it, keeps the copies of variables
alike."""

import logging
import threading

import numpy as np

from epl import tf_compat
from epl.communicators import library
from epl.errors import NoDataError
from epl.plan.names import copy_name, sync_name, tag_of
from epl.plan.table import plan_table
from epl.session.agreement import SessionOver, Wish, agree, current_agreement
from epl.session.devices import passed_over
from epl.session.inner import InnerSession, divide, own_copy
from epl.session.job import FromPeer
from epl.session.rewritten import Rewritten

_LOG = logging.getLogger("epl")
# What a gate is fed with.
_NOTHING = np.float32(0)


class Driver(object):
    """Runs the calls of one session.

    Args:
      graph: the user's tf.Graph.
      session_config: ConfigProto or None.
      config, cluster: of the process.
      job: the Job.
    """

    def __init__(self, graph, session_config, config, cluster, job):
        self._graph = graph
        self._session_config = session_config
        self._config = config
        self._cluster = cluster
        self._job = job
        self._lock = threading.RLock()
        self._rewritten = None
        self._inner = None
        self._steps = {}
        self._number = None
        self._over = False  # all workers know that this session is through
        self._fresh = set()  # variables with values that other workers may not have
        self._uncopied = set()  # variables with first values that their other copies in this worker do not have
        self._valued = set()  # variables that have had a first value at all
        self._shown = False
        self._has_read = False  # True once a step has had data

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
        names = tuple(feeds)
        step = self._step(fetches, targets, names)
        if step.communicates:
            values = self._run_together(step, fetches, targets, names, feeds, run_options, metadata)
        else:
            if step.trains and self._uncopied:
                self._copy(sorted(self._uncopied))
            values = self._run_step(step, feeds, run_options, metadata)
            self._has_read = self._has_read or step.reads
        if step.initialises:
            with self._lock:
                self._fresh |= step.initialises
                self._uncopied |= step.initialises
                self._valued |= step.initialises
        if step.changes and not step.communicates:
            with self._lock:
                self._fresh |= step.changes  # other workers may not have run it; the chief's value counts
        return values

    def num_copies(self, fetches, targets, feeds):
        """How many copies of the model in this worker take part in a call, given by names."""
        step = self._step(fetches, targets, feeds)
        return len(self._rewritten.plan.layout.instances) if step.trains else 1

    def synchronise(self):
        """Gives all workers the chief's values of variables that have new ones; all workers take part.

        Programs that read variables before the first step that communicates need it; nothing is done where no step of
        this session can communicate.
        """
        if self._cluster.worker_num == 1:
            return
        step = self._step((), (), ())
        if self._rewritten.plan.layout.worker_num > 1:
            self._run_together(step, (), (), (), {})

    def finish(self):
        """Tells the other workers that this session is through, and hears whether they agree; all take part.

        A worker that wanted another step gets an OutOfRangeError for it, as if the data had ended.
        """
        if self._number is None or self._over:
            return
        job = self._job
        with job.lock:
            job.ready()
            try:
                wish = Wish(self._number, (), (), (), True)
                agree(job.exchange, wish, self._step((), (), ()), None, current_agreement())
            except SessionOver:
                self._over = True
            except Exception as error:  # as in _run_together
                raised = job.broken_by(error)
                raise getattr(raised, "error", raised) from None

    @property
    def graph(self):
        """This worker's rewritten Graph; None before the first run."""
        return self._rewritten.graph if self._rewritten is not None else None

    def close(self):
        with self._lock:
            if self._inner is not None:
                self._inner.close()
                self._inner = None
                self._rewritten = None
                self._steps.clear()

    def _step(self, fetches, targets, feeds):
        version = tf_compat.graph_version(self._graph)
        if self._rewritten is None or self._rewritten.version != version:
            self._rewrite()
        key = (fetches, targets, feeds)
        step = self._steps.get(key)
        if step is None:
            step = self._rewritten.step(fetches, targets, feeds)
            self._steps[key] = step
        return step

    def _rewrite(self):
        with self._lock:
            if self._rewritten is not None and self._rewritten.version == tf_compat.graph_version(self._graph):
                return
            rewritten = Rewritten(self._graph, self._config, self._cluster, self._job.seed)
            plan = rewritten.plan
            if plan.layout.num_instances > 1 or rewritten.micro_batches.count > 1:
                library.ops()
            if self._inner is None:
                self._inner = InnerSession(plan.layout, self._session_config, self._cluster.visible_device_list)
            self._inner.load(rewritten.graph)
            if self._rewritten is not None:
                # Variables of which there are copies only now: the copies have no values yet.
                new = plan.analysis.cloned - self._rewritten.plan.analysis.cloned
                self._fresh |= self._valued & new
                self._uncopied |= self._valued & new
            self._rewritten = rewritten
            self._steps = {}
            self._show(rewritten)

    def _show(self, rewritten):
        """Prints the plan once, when there is something to train."""
        if self._shown or not rewritten.model.apply_calls:
            return
        self._shown = True
        if self._cluster.worker_index == 0:
            _LOG.info("%s", plan_table(rewritten.plan, rewritten.model))
            if rewritten.automatic is not None:
                _LOG.info("%s", rewritten.automatic.table())
            named = passed_over(rewritten.model.graph)
            if named:
                _LOG.warning(
                    "the program distributes its operations itself (%s). EPL computes all of a copy of the model on "
                    "that copy's own device: build the model once, without a loop over devices and without "
                    "tf.train.replica_device_setter.",
                    ", ".join(named),
                )

    def _run_step(self, step, feeds, run_options, metadata):
        names, values = [], []
        for fed, parts in zip(feeds, step.feeds):
            for name, part, of in parts:
                names.append(name)
                values.append(divide(fed, feeds[fed], part, of))
        names.extend(step.open_gates)
        values.extend(_NOTHING for _ in step.open_gates)
        fetched = self._inner.run(tuple(names), values, step.fetches, step.targets, run_options, metadata)
        # A fetched value may lie in the memory of a reference variable, which the next step overwrites.
        return [own_copy(value) for value in fetched] if step.may_alias else fetched

    def _run_together(self, step, fetches, targets, names, feeds, run_options=None, metadata=None):
        """Runs a step that communicates; one at a time in this process."""
        job = self._job
        with job.lock:
            if self._number is None:
                self._number = job.new_session()
            wish = Wish(self._number, fetches, targets, tuple(sorted(self._fresh)))
            try:
                job.ready()

                def union(all_fetches, all_targets):
                    extra = tuple(t for t in all_fetches if t not in fetches)
                    more = tuple(t for t in all_targets if t not in targets)
                    return self._step(fetches + extra, targets + more, names)

                agreed, fresh = agree(job.exchange, wish, step, union, current_agreement())
                if fresh:
                    self._synchronise(list(fresh))
                job.pool.expect(agreed.orders)
                values = []
                if agreed.fetches or agreed.targets:
                    values = self._run_fed(agreed, feeds, run_options, metadata)
            except SessionOver as over:
                self._over = True
                raise FromPeer(tf_compat.tf.errors.OutOfRangeError(None, None, str(over))) from None
            except Exception as error:  # whatever it is, the others must not wait for this worker
                raised = job.broken_by(error)
                if raised is error:
                    raise
                raise raised from None
            job.step += 1
            return values[: len(fetches)]

    def _run_fed(self, step, feeds, run_options, metadata):
        """Runs a step of several workers; one that has not had any data when its input ends has been given none."""
        try:
            values = self._run_step(step, feeds, run_options, metadata)
        except tf_compat.tf.errors.OutOfRangeError as error:
            if self._has_read or not step.reads or self._cluster.worker_num == 1:
                raise
            raise NoDataError(
                "worker %d has no data: its input ended before the first step (%s). Every worker needs at least one "
                "batch for each of its copies of the model: look at how files or records are divided over the %d "
                "workers (io.slicing, io.shard_dataset, or the program itself) and at the size of the batch."
                % (self._cluster.worker_index, str(error.message).splitlines()[0], self._cluster.worker_num)
            ) from error
        self._has_read = self._has_read or step.reads
        return values

    def _synchronise(self, variables):
        """Gives all copies of the variables the value of the chief's first copy."""
        plan = self._rewritten.plan
        known = [v for v in variables if v in plan.variables]
        self._job.pool.expect([[tag_of(sync_name(v)) for v in known]])
        self._inner.run((), [], (), tuple(sync_name(v) for v in known))
        self._copy(variables)
        with self._lock:
            self._fresh -= set(variables)
            self._valued |= set(known)

    def _copy(self, variables):
        """Gives all copies of the variables in this worker the value of its first copy."""
        plan = self._rewritten.plan
        if len(plan.layout.instances) > 1:
            copied = tuple(copy_name(v) for v in variables if v in plan.analysis.cloned)
            if copied:
                self._inner.run((), [], (), copied)
        with self._lock:
            self._uncopied -= set(variables)
