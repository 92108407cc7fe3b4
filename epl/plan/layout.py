"""Which copy of the model runs on which devices: arithmetic over counts, nothing else."""

from dataclasses import dataclass, replace
from typing import Tuple

from epl.errors import PlanError, UnsupportedError


@dataclass(frozen=True)
class Stage:
    """A TaskGraph's place in a model replica.

    Attributes:
      index: position, from 0.
      name: for people.
      device_count: devices that it computes on in one model replica.
    """

    index: int
    name: str
    device_count: int


@dataclass(frozen=True)
class Instance:
    """One copy of the graph in one worker: a model replica, or one share of it when device_count is above 1.

    Attributes:
      index: number within the worker.
      rank: number over all workers.
      replica: model replica that it belongs to, over all workers.
      share: which part of the replica's batch it computes, from 0.
      devices: local device index of each stage.
    """

    index: int
    rank: int
    replica: int
    share: int
    devices: Tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How model replicas lie on the devices of all workers; holds this worker's instances only.

    Attributes:
      worker_num, worker_index, devices_per_worker: the cluster.
      device_type: "CPU" or "GPU".
      stages: the parts of a model replica.
      shares: instances that divide one replica's batch among them (the scopes' device_count).
      instances: those of this worker.
    """

    worker_num: int
    worker_index: int
    devices_per_worker: int
    device_type: str
    stages: Tuple[Stage, ...]
    shares: int
    instances: Tuple[Instance, ...]

    @property
    def num_instances(self):
        """Over all workers."""
        return self.worker_num * len(self.instances)

    @property
    def num_replicas(self):
        """Model replicas over all workers."""
        return self.num_instances // self.shares

    def device(self, index):
        """TensorFlow's name of a local device."""
        return "/job:localhost/replica:0/task:0/device:%s:%d" % (self.device_type, index)

    @property
    def host_device(self):
        return "/job:localhost/replica:0/task:0/device:CPU:0"


def one_copy(layout, alone):
    """The same with the first copy of the model in a worker only, computing whole batches.

    Args:
      layout: a Layout.
      alone: there are no other workers either.
    """
    rank = 0 if alone else layout.worker_index
    first = replace(layout.instances[0], rank=rank, replica=rank, share=0)
    workers = dict(worker_num=1, worker_index=0) if alone else {}
    return replace(layout, shares=1, instances=(first,), **workers)


def make_layout(taskgraphs, cluster, colocate=False, worker_index=None, num_chunks=1):
    """Lays the TaskGraphs out over the cluster's devices.

    Args:
      taskgraphs: list of epl.graph.model.TaskGraph; empty = the whole model is one replicate(1).
      cluster: has worker_num, worker_index, gpu_num_per_worker, device_type.
      colocate: all TaskGraphs share the same devices (cluster.colocate_split_and_replicate).
      worker_index: whose part to lay out; default the cluster's own.
      num_chunks: stages on each device of a pipeline: stage s lies on its device s modulo their number.

    Raises:
      PlanError: the device counts do not divide; the message has the arithmetic.
      UnsupportedError: a layout that this version cannot run.
    """
    stages = tuple(Stage(i, t.name or "taskgraph_%d" % t.index, t.device_count) for i, t in enumerate(taskgraphs))
    stages = stages or (Stage(0, "model", 1),)
    counts = sorted(set(stage.device_count for stage in stages))
    if len(counts) > 1:
        raise UnsupportedError(
            "the scopes of this model have different device counts (%s); this version needs the same device_count in "
            "all "
            "of them" % ", ".join("%s: %d" % (s.name, s.device_count) for s in stages)
        )
    shares = counts[0]
    if len(stages) % num_chunks:
        raise PlanError(
            "pipeline.num_chunks=%d does not divide the %d scopes of this model (%d = %d x %d + %d): each device of a "
            "pipeline holds the same number of stages. Use a multiple of %d scopes, or another pipeline.num_chunks."
            % (
                num_chunks,
                len(stages),
                len(stages),
                len(stages) // num_chunks,
                num_chunks,
                len(stages) % num_chunks,
                num_chunks,
            )
        )
    depth = 1 if colocate else len(stages) // num_chunks
    per_replica = depth * shares
    per_worker = cluster.gpu_num_per_worker
    total = cluster.worker_num * per_worker
    if total % per_replica:
        what = (
            " + ".join("%s: %d" % (s.name, s.device_count) for s in stages) if depth > 1 else "device_count %d" % shares
        )
        raise PlanError(
            "one copy of the model needs %d devices (%s), but there are %d workers x %d devices = %d devices, and %d "
            "does not "
            "divide %d (%d = %d x %d + %d). Use a number of devices that is a multiple of %d, or another device_count."
            % (
                per_replica,
                what,
                cluster.worker_num,
                per_worker,
                total,
                per_replica,
                total,
                total,
                total // per_replica,
                per_replica,
                total % per_replica,
                per_replica,
            )
        )
    if per_worker % depth:
        raise UnsupportedError(
            "the %d stages of this model would lie on devices of more than one worker (%d devices a worker); this "
            "version needs "
            "all stages of a copy within a worker: start fewer workers with a multiple of %d devices each, or use "
            "one scope" % (depth, per_worker, depth)
        )
    worker = cluster.worker_index if worker_index is None else worker_index
    local = per_worker // depth
    instances = []
    for index in range(local):
        rank = worker * local + index
        devices = tuple(index * depth + s.index % depth for s in stages)
        instances.append(Instance(index, rank, rank // shares, rank % shares, devices))
    return Layout(cluster.worker_num, worker, per_worker, cluster.device_type, stages, shares, tuple(instances))
