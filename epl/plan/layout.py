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
    """One copy of the graph in one crew: a model replica, or one share of it when device_count is above 1.

    Attributes:
      index: number within the crew.
      rank: number over all crews.
      replica: model replica that it belongs to, over all crews.
      share: which part of the replica's batch it computes, from 0.
      devices: for each stage its device's index in the worker that has it.
    """

    index: int
    rank: int
    replica: int
    share: int
    devices: Tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How model replicas lie on the devices of all workers; holds one crew's instances only.

    A crew is the workers that compute whole copies of the model together: one worker, unless the stages of a copy lie
    in several. All workers of a crew hold the same instances, and of each of them the same stages.

    Attributes:
      num_crews, crew_index: all crews, and this worker's.
      devices_per_worker: of each worker.
      device_type: "CPU" or "GPU".
      stages: the parts of a model replica.
      shares: instances that divide one replica's batch among them (the scopes' device_count).
      instances: those of this crew.
      crew: the workers of this crew, by position.
      position: this worker's place in its crew.
      stage_positions: for each stage the position of the worker that has it.
    """

    num_crews: int
    crew_index: int
    devices_per_worker: int
    device_type: str
    stages: Tuple[Stage, ...]
    shares: int
    instances: Tuple[Instance, ...]
    crew: Tuple[int, ...] = (0,)
    position: int = 0
    stage_positions: Tuple[int, ...] = ()

    @property
    def num_workers(self):
        """Over all crews."""
        return self.num_crews * len(self.crew)

    @property
    def worker_index(self):
        """This worker's among all."""
        return self.crew[self.position]

    @property
    def peers(self):
        """The workers at this position of all crews: those with the same stages."""
        first = self.crew[self.position] - self.crew_index * len(self.crew)
        return tuple(first + crew * len(self.crew) for crew in range(self.num_crews))

    @property
    def num_instances(self):
        """Over all crews."""
        return self.num_crews * len(self.instances)

    @property
    def num_replicas(self):
        """Model replicas over all crews."""
        return self.num_instances // self.shares

    def position_of(self, stage):
        """The position in the crew of the worker that has a stage, by number."""
        return self.stage_positions[stage] if self.stage_positions else 0

    def device(self, index):
        """TensorFlow's name of a local device."""
        return "/job:localhost/replica:0/task:0/device:%s:%d" % (self.device_type, index)

    @property
    def host_device(self):
        return "/job:localhost/replica:0/task:0/device:CPU:0"


def one_copy(layout, alone):
    """The same with the first copy of the model in each worker only, whole, and computing whole batches.

    Args:
      layout: a Layout.
      alone: there are no other workers either.
    """
    rank = 0 if alone else layout.worker_index
    devices = layout.instances[0].devices
    if len(layout.crew) > 1:
        devices = tuple(index % layout.devices_per_worker for index in range(len(devices)))
    first = replace(layout.instances[0], rank=rank, replica=rank, share=0, devices=devices)
    return replace(
        layout,
        num_crews=1 if alone else layout.num_workers,
        crew_index=rank,
        shares=1,
        instances=(first,),
        crew=(rank,),
        position=0,
        stage_positions=(),
    )


def make_layout(taskgraphs, cluster, colocate=False, worker_index=None, num_chunks=1, prefer_intra_node=True):
    """Lays the TaskGraphs out over the cluster's devices.

    Args:
      taskgraphs: list of epl.program.program.TaskGraph; empty = the whole model is one replicate(1).
      cluster: has worker_num, worker_index, gpu_num_per_worker, device_type.
      colocate: all TaskGraphs share the same devices (cluster.colocate_split_and_replicate).
      worker_index: whose part to lay out; default the cluster's own.
      num_chunks: stages on each device of a pipeline: stage s lies on its device s modulo their number.
      prefer_intra_node: the stages of a copy lie in as few workers as possible; else in as many.

    Raises:
      PlanError: the device counts do not divide; the message has the arithmetic.
      UnsupportedError: a layout that this version cannot run.
    """
    stages = tuple(Stage(i, t.name or "taskgraph_%d" % t.index, t.device_count) for i, t in enumerate(taskgraphs))
    stages = stages or (Stage(0, "model", 1),)
    _check_stages(stages, num_chunks)
    shares = stages[0].device_count
    depth = 1 if colocate else len(stages) // num_chunks
    per_worker = cluster.gpu_num_per_worker
    _check_devices(stages, depth, cluster)
    places = (_close if prefer_intra_node else _spread)(depth, cluster.worker_num, per_worker)
    if places is None:
        raise UnsupportedError(
            "the %d stages of a copy of the model do not lie evenly on %d workers with %d devices each: a copy would "
            "end in the middle of a worker. Start workers whose number of devices is a divisor or a multiple of %d, or "
            "use another number of scopes." % (depth, cluster.worker_num, per_worker, depth)
        )
    size = 1 + max(position for position, _ in places[0])
    worker = cluster.worker_index if worker_index is None else worker_index
    crew = worker // size
    stage_positions = tuple(places[0][s.index % depth][0] for s in stages)
    instances = []
    for index, column in enumerate(places):
        rank = crew * len(places) + index
        devices = tuple(column[s.index % depth][1] for s in stages)
        instances.append(Instance(index, rank, rank // shares, rank % shares, devices))
    return Layout(
        num_crews=cluster.worker_num // size,
        crew_index=crew,
        devices_per_worker=per_worker,
        device_type=cluster.device_type,
        stages=stages,
        shares=shares,
        instances=tuple(instances),
        crew=tuple(range(crew * size, (crew + 1) * size)),
        position=worker % size,
        stage_positions=stage_positions if size > 1 else (),
    )


def _check_stages(stages, num_chunks):
    """Raises what makes stages unfit for each other."""
    counts = sorted(set(stage.device_count for stage in stages))
    if len(counts) > 1:
        raise UnsupportedError(
            "the scopes of this model have different device counts (%s); this version needs the same device_count in "
            "all of them" % ", ".join("%s: %d" % (s.name, s.device_count) for s in stages)
        )
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


def _check_devices(stages, depth, cluster):
    """Raises PlanError when copies of `depth` stages, side by side, do not fill the devices of the cluster."""
    shares, per_worker = stages[0].device_count, cluster.gpu_num_per_worker
    per_replica = depth * shares
    total = cluster.worker_num * per_worker
    if total % per_replica:
        what = (
            " + ".join("%s: %d" % (s.name, s.device_count) for s in stages) if depth > 1 else "device_count %d" % shares
        )
        raise PlanError(
            "one copy of the model needs %d devices (%s), but there are %d workers x %d devices = %d devices, and %d "
            "does not divide %d (%d = %d x %d + %d). Use a number of devices that is a multiple of %d, or another "
            "device_count."
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


def _close(depth, workers, per_worker):
    """For each copy of the model in a crew, the (position in the crew, device) of each of its `depth` devices; copies
    in as few workers as possible. None if they do not fit evenly."""
    del workers
    if per_worker % depth == 0:
        return [[(0, first + i) for i in range(depth)] for first in range(0, per_worker, depth)]
    if depth % per_worker == 0:
        return [[divmod(i, per_worker) for i in range(depth)]]
    return None


def _spread(depth, workers, per_worker):
    """The same with neighbouring devices of a copy in different workers."""
    if workers % depth == 0:
        return [[(i, device) for i in range(depth)] for device in range(per_worker)]
    if depth % workers == 0:
        rows = depth // workers
        return [[(i % workers, first + i // workers) for i in range(depth)] for first in range(0, per_worker, rows)]
    return None
