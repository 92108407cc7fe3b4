"""What a session has of its program's graph as it stands: the rewritten graph, and the steps that calls are."""

from epl.capture.record import version_of
from epl.communicators import library
from epl.session.chosen import choose_plan
from epl.session.device_speed import device_speeds
from epl.session.inner import InnerSession, View, looks_on, own_copy, worker_proto
from epl.session.measured_weights import weigh_devices
from epl.session.rewritten import Rewritten
from epl.session.show_plan import show_plan
from epl.session.whole_batches import for_whole_batches


class Versions(object):
    """Of one session. The graph is rewritten anew when the program has added to it.

    Args:
      graph: the user's tf.Graph.
      session_config: ConfigProto or None.
      config, cluster: of the process.
      job: the Job.
      values: the session's Values.
      lock: of the session.

    Attributes:
      graph: as given.
      rewritten: the Rewritten that is run; None before the first call of `step`, and after the end.
      inner: the InnerSession; None as that is.
    """

    def __init__(self, graph, session_config, config, cluster, job, values, lock):
        self.graph, self.rewritten, self.inner = graph, None, None
        self._session_config, self._config, self._cluster = session_config, config, cluster
        self._job, self._values, self._lock = job, values, lock
        self._whole = None  # what `_for_whole_batches` gives
        self._steps = {}
        self._shown = False

    @property
    def plan(self):
        return self.rewritten.plan

    def step(self, fetches, targets, feeds, whole=False):
        """The Step of a call: the same one for each that is alike.

        Args:
          fetches, feeds: tuples of tensor names.
          targets: tuple of operation names.
          whole: whether it is computed in one piece, as what is fed does not divide.
        """
        if self.rewritten is None or self.rewritten.version != version_of(self.graph):
            self._job.background.finish()
            self._rewrite()
        key = (fetches, targets, feeds, whole)
        step = self._steps.get(key)
        if step is None:
            with self._lock:  # threads of queues make steps while the program does
                rewritten, view = self._for_whole_batches() if whole else (self.rewritten, None)
                step = rewritten.step(fetches, targets, feeds, view)
                if not whole and looks_on(step, rewritten.plan):
                    rewritten, view = self._for_whole_batches()
                    step = rewritten.step(fetches, targets, feeds, view)
                if step.traffic.groups or any(map(rewritten.is_divided, fetches)):
                    self.inner.load(rewritten.own_graph, view)  # with the nodes of its messages, or of wholes
                self._steps[key] = step
        return step

    def remote_read(self, rows, reader):
        """The Step by which this worker helps another one of its pipeline, which only reads (Rewritten.remote_read)."""
        with self._lock:
            before = self.rewritten.program
            step = self.rewritten.remote_read(rows, reader, self._cluster.worker_index)
            if self.rewritten.program is not before:
                self.inner.load(self.rewritten.own_graph)
        return step

    def run_targets(self, targets):
        """Runs operations of the rewritten graph, by a tuple of their names."""
        self.inner.run((), [], (), targets)

    def read(self, names):
        """The values of tensors of the rewritten graph, by a tuple of their names."""
        return [own_copy(value) for value in self.inner.run((), [], names, ())]

    def _speeds(self, mesh):
        """Of this worker's devices."""
        options = self._session_config, self._config.execution, self._cluster.visible_device_list
        return device_speeds(mesh, worker_proto(mesh, *options))

    def close(self):
        self.inner.close()
        self.inner = self.rewritten = self._whole = None
        self._steps.clear()

    def _for_whole_batches(self):
        """(What epl.session.whole_batches gives, its View in the session); made when it is needed first."""
        if self._whole is None:
            known = self.graph, self.rewritten, self._config, self._cluster, self._job
            made, view = for_whole_batches(*known), View()
            self.inner.load(made.own_graph, view)
            self._whole = made, view
        return self._whole

    def _rewrite(self):
        # No lock is held: workers may have to measure their link, for which they wait for each other.
        job = self._job
        choose_plan(self.graph, self._config, self._cluster, job)
        weigh_devices(self.graph, self._config, self._cluster, job, self._speeds)
        about = self.graph, self._config, self._cluster, job.seed, job.measure_link
        rewritten = Rewritten(*about, at=job.following.preparing)
        with self._lock:
            if self.rewritten is not None and self.rewritten.version >= rewritten.version:
                return  # another thread was faster
            plan = rewritten.plan
            if plan.mesh.everywhere.size > 1 or plan.mesh.num_workers > 1 or rewritten.micro_batches.count > 1:
                library.load()
            if self.inner is None:
                options = self._config.execution
                self.inner = InnerSession(plan.mesh, self._session_config, options, self._cluster.visible_device_list)
            with job.following.preparing("building the graph"):
                self.inner.load(rewritten.own_graph)
                job.share_queues(rewritten.own_graph)
            if self.rewritten is not None:
                self._values.copied_from_now_on(plan.analysis.cloned - self.plan.analysis.cloned)
            self.rewritten = rewritten
            self._whole = None
            self._steps = {}
            if not self._shown and rewritten.program.apply_calls:
                self._shown = True
                show_plan(rewritten.program, self._cluster)
