"""All devices of a job as a grid with named axes, and who communicates along them: arithmetic over counts alone.

    data    model replicas
    stage   the stages of a pipeline
    shard   the devices that each compute a part of what one replica computes in a stage

The devices of one place on the axes data and shard compute a copy of the graph together, stage by stage: an instance.
Stages may have different numbers of devices. The axis shard is as long as the widest of them needs; in a narrower one
the first of several neighbouring instances computes the batch of all of them.
Those of a worker that have the same part of the tensors that are divided (epl.split), in copies of the model side by
side, are a lane.
"""

from dataclasses import dataclass, replace
from typing import Tuple

from epl.errors import PlanError, UnsupportedError

DATA, STAGE, SHARD = "data", "stage", "shard"

# The kind of a TaskGraph of `epl.replicate` whose devices divide each operation by rows (epl.plan.fixed_batch).
ROWS = "rows"


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
    """One copy of the graph: a place on the axes data and shard.

    Attributes:
      index: number among those of this worker.
      rank: number in the group of all of them.
      data: its place on that axis: the model replica that it belongs to.
      shard: its place on that axis: which part of the replica's batch it computes.
      devices: for each stage its device's index in the worker that has it.
    """

    index: int
    rank: int
    data: int
    shard: int
    devices: Tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Who communicates along some axes, as one worker sees it.

    Attributes:
      workers: those that take part, in order.
      index: this worker's place among them.
      local: how many ranks each of them has.
      first_communicator: the first of the group's in each worker's pool.
    """

    workers: range
    index: int
    local: int
    first_communicator: int

    @property
    def num_workers(self):
        return len(self.workers)

    @property
    def size(self):
        """Ranks of all workers."""
        return self.local * len(self.workers)

    def communicator(self, number):
        """The pool's number of one of the group's communicators."""
        return self.first_communicator + number


@dataclass(frozen=True)
class Mesh:
    """The grid, as one worker sees it: its size does not grow with the number of workers.

    The workers fall into blocks of neighbours that hold whole copies of the model: one worker each, unless the stages
    of a copy lie in several. All blocks are alike.

    Attributes:
      num_workers, worker_index: all workers, and this one.
      devices_per_worker: of each worker.
      device_type: "CPU" or "GPU".
      stages: the parts of a model replica.
      num_shards: size of the axis shard: devices of the widest stage.
      instances: those of this worker's block.
      stage_workers: for each stage the worker of the block that has it, counted within the block.
      block: workers of a block.
      num_communicators: of each group along axes.
      split: the devices along the axis shard divide tensors, so that each holds something else; else the batch of a
        replica, and hold the same.
      first_device: TensorFlow's number of a worker's first device: 1 where the host's is kept free.
    """

    num_workers: int
    worker_index: int
    devices_per_worker: int
    device_type: str
    stages: Tuple[Stage, ...]
    num_shards: int
    instances: Tuple[Instance, ...]
    stage_workers: Tuple[int, ...]
    block: int = 1
    num_communicators: int = 1
    split: bool = False
    first_device: int = 0

    @property
    def shape(self):
        """dict of axis to its size."""
        return {DATA: self.everywhere.size // self.num_shards, STAGE: len(self.stages), SHARD: self.num_shards}

    @property
    def everyone(self):
        """The Group of all devices of all workers: along all axes."""
        return self.group(DATA, STAGE, SHARD)

    @property
    def everywhere(self):
        """The Group of all instances."""
        return self.group(DATA, SHARD)

    @property
    def copies(self):
        """The Group of the instances that hold the same, or come to: what makes it so is sent among them."""
        return self.group(DATA) if self.split else self.everywhere

    @property
    def is_even(self):
        """Whether all stages have the same number of devices."""
        return len({stage.device_count for stage in self.stages}) == 1

    def span(self, stage):
        """How many neighbouring instances one device of a stage computes for."""
        return max(1, self.num_shards // self.stages[stage].device_count)

    def computing(self, stage):
        """The instances that have a copy of a stage."""
        span = self.span(stage)
        return self.instances if span == 1 else tuple(i for i in self.instances if i.shard % span == 0)

    def computing_for(self, instance, stage, other):
        """The instances whose copies of another stage compute rows of what an instance's copy of a stage computes."""
        first = instance.index - instance.shard % self.span(other)
        return self.instances[first : first + self.span(stage) : self.span(other)]

    @property
    def lanes(self):
        """How many different parts of divided tensors this worker's instances have."""
        return min(self.num_shards, len(self.instances)) if self.split else 1

    def givers(self, lane=None, stage=0):
        """The instances that bring what copies of a stage merge: those of a lane; without one, one for each copy of
        the model here, as all of its devices have the same."""
        if not self.split:
            return self.computing(stage)
        return self.instances[lane or 0 :: self.lanes]

    def takers(self, lane=None):
        """The instances that take what has been merged."""
        return self.instances if lane is None else self.givers(lane)

    @property
    def parts(self):
        """The Group of those that have a part each of the tensors of one model replica."""
        return self.group(SHARD)

    @property
    def pipeline(self):
        """The Group of those that compute copies of the model together: along the axis stage."""
        return self.group(STAGE)

    def copy_of(self, instance):
        """The number, along all workers, of an Instance among those that hold the same."""
        return instance.data if self.split else instance.rank

    def group(self, *axes):
        """The Group of those that differ from this worker's ranks in their places on these axes alone."""
        step, count = self.block, self.num_communicators
        place = self.worker_index % step
        if set(axes) == {DATA, STAGE, SHARD}:
            return Group(range(self.num_workers), self.worker_index, self.devices_per_worker, 0)
        if set(axes) == {DATA, SHARD}:
            workers = range(place, self.num_workers, step)
            # Where these are all workers, they have the communicators of all.
            return Group(workers, self.worker_index // step, len(self.instances), count if step > 1 else 0)
        if set(axes) == {STAGE}:
            first = self.worker_index - place
            # The last communicators, as the stages need a number of their own.
            return Group(range(first, first + step), place, 1, 2 * count if step > 1 else 0)
        if self.split and set(axes) in ({SHARD}, {DATA}):
            # The devices of a copy of the model lie in so many neighbouring workers.
            span, worker = -(-self.num_shards // len(self.instances)), self.worker_index
            both = 1 < span < self.num_workers  # else one of the two groups is within workers, the other has them all
            if set(axes) == {SHARD}:
                first = worker - worker % span
                return Group(range(first, first + span), worker % span, self.lanes, 2 * count if both else 0)
            workers = range(worker % span, self.num_workers, span)
            return Group(workers, worker // span, len(self.instances) // self.lanes, count if both else 0)
        raise PlanError("no group of this version communicates along %s" % " and ".join(axes))

    def joined(self, slot):
        """The Group whose communicators have to be made first, as not all workers are in it, for a pool's number; None
        for those of all workers."""
        groups = (self.copies, self.parts) if self.split else (self.copies, self.pipeline)
        return next(
            (g for g in groups if 0 < g.first_communicator <= slot < g.first_communicator + self.num_communicators),
            None,
        )

    def worker_of(self, stage):
        """Which of the workers that compute a copy together has a stage, by number."""
        return self.stage_workers[stage]

    def device(self, index):
        """TensorFlow's name of a local device."""
        return "/job:localhost/replica:0/task:0/device:%s:%d" % (self.device_type, self.first_device + index)

    @property
    def host_device(self):
        return "/job:localhost/replica:0/task:0/device:CPU:0"


def one_instance(mesh, alone):
    """The same with the first instance in each worker only, whole, and computing whole batches.

    Args:
      mesh: a Mesh.
      alone: there are no other workers either.
    """
    rank = 0 if alone else mesh.worker_index
    devices = mesh.instances[0].devices
    if mesh.block > 1:
        devices = tuple(index % mesh.devices_per_worker for index in range(len(devices)))
    return replace(
        mesh,
        num_workers=1 if alone else mesh.num_workers,
        worker_index=rank,
        num_shards=1,
        split=False,
        instances=(replace(mesh.instances[0], rank=rank, data=rank, shard=0, devices=devices),),
        stage_workers=(0,) * len(mesh.stages),
        block=1,
    )


def make_mesh(
    taskgraphs,
    cluster,
    colocate=False,
    worker_index=None,
    num_chunks=1,
    prefer_intra_node=True,
    num_communicators=1,
):
    """Lays the TaskGraphs out over the cluster's devices.

    Args:
      taskgraphs: list of epl.program.program.TaskGraph; empty = the whole model is one replicate(1).
      cluster: has worker_num, worker_index, gpu_num_per_worker, device_type.
      colocate: all TaskGraphs share the same devices (cluster.colocate_split_and_replicate).
      worker_index: as which worker sees it; default the cluster's own.
      num_chunks: stages on each device of a pipeline: stage s lies on its device s modulo their number.
      prefer_intra_node: the stages of a copy lie in as few workers as possible; else in as many.
      num_communicators: of each group (communication.num_communicators).

    Raises:
      PlanError: the device counts do not divide; the message has the arithmetic.
      UnsupportedError: a layout that this version cannot run.
    """
    stages = tuple(Stage(i, t.name or "taskgraph_%d" % t.index, t.device_count) for i, t in enumerate(taskgraphs))
    stages = stages or (Stage(0, "model", 1),)
    _check_stages(stages, num_chunks)
    shards = max(stage.device_count for stage in stages)
    depth = 1 if colocate else len(stages) // num_chunks
    per_worker = cluster.gpu_num_per_worker
    split = is_split(taskgraphs)
    uneven = len({stage.device_count for stage in stages}) > 1
    if uneven:
        _check_uneven(stages, colocate, num_chunks, split)
    _check_devices(stages, depth, cluster, split)
    if split:
        _check_split(stages, depth, cluster, prefer_intra_node)
    if uneven:
        places = _side_by_side(stages, per_worker)
    else:
        places = (_close if prefer_intra_node else _spread)(depth, cluster.worker_num, per_worker)
    if places is None:
        needs = _devices_of_copy(stages, depth) // (1 if uneven else shards)
        raise UnsupportedError(
            "the %d stages of a copy of the model do not lie evenly on %d workers with %d devices each: a copy would "
            "end in the middle of a worker. Start workers whose number of devices is a %smultiple of %d, or "
            "use another number of scopes."
            % (depth, cluster.worker_num, per_worker, "" if uneven else "divisor or a ", needs)
        )
    block = 1 + max(worker for worker, _ in places[0])
    worker = cluster.worker_index if worker_index is None else worker_index
    instances = []
    for index, column in enumerate(places):
        rank = worker // block * len(places) + index
        devices = tuple(column[s.index % depth][1] for s in stages)
        instances.append(Instance(index, rank, rank // shards, rank % shards, devices))
    return Mesh(
        num_workers=cluster.worker_num,
        worker_index=worker,
        devices_per_worker=per_worker,
        device_type=cluster.device_type,
        stages=stages,
        num_shards=shards,
        instances=tuple(instances),
        stage_workers=tuple(places[0][s.index % depth][0] for s in stages),
        block=block,
        num_communicators=num_communicators,
        split=split,
    )


def is_split(taskgraphs):
    """Whether any of some TaskGraphs divides tensors over several devices."""
    return any(t.kind in ("split", ROWS) and t.device_count > 1 for t in taskgraphs)


def _check_stages(stages, num_chunks):
    """Raises PlanError where stages do not divide into chunks."""
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


def _check_uneven(stages, colocate, num_chunks, split):
    """Raises UnsupportedError where stages cannot have different numbers of devices."""
    counts = ", ".join("%s: %d" % (s.name, s.device_count) for s in stages)
    for key, is_set, off in (
        ("cluster.colocate_split_and_replicate", colocate, "False"),
        ("pipeline.num_chunks", num_chunks > 1, "1"),
    ):
        if is_set:
            raise UnsupportedError(
                "the scopes of this model have different device counts (%s), which does not go together with %s in "
                "this version. Set it to %s, or use the same device_count in all scopes." % (counts, key, off)
            )
    if split:
        raise UnsupportedError(
            "the scopes of this model have different device counts (%s), which does not go together with epl.split in "
            "this version. Use the same device_count in all scopes: epl.replicate(k) divides its batch over as many "
            "devices as epl.split(k) has." % counts
        )
    most = max(stage.device_count for stage in stages)
    for stage in stages:
        if most % stage.device_count:
            raise UnsupportedError(
                "the scopes of this model have different device counts (%s), and %d does not divide %d: the batch of a "
                "device of one stage would be cut in the middle for another. Use device counts that all divide the "
                "largest." % (counts, stage.device_count, most)
            )


def _check_split(stages, depth, cluster, prefer_intra_node):
    """Raises UnsupportedError where tensors cannot be divided over devices in the way that is asked for."""
    shards, per_worker = stages[0].device_count, cluster.gpu_num_per_worker
    spread = depth > 1 and not prefer_intra_node and cluster.worker_num > 1
    if per_worker % depth or spread:
        raise UnsupportedError(
            "a model with epl.split(%d) has %d scopes (%s), which are the stages of a pipeline: all stages that a part "
            "goes through must lie in one worker in this version, and these lie in several. Start workers whose number "
            "of devices is a multiple of %d%s, or set cluster.colocate_split_and_replicate to let the scopes share the "
            "same devices."
            % (
                shards,
                len(stages),
                ", ".join(s.name for s in stages),
                depth,
                ", leave cluster.device_place_prefer_intra_node at True" if spread else "",
            )
        )
    columns = per_worker // depth
    if shards % columns and columns % shards:
        raise UnsupportedError(
            "epl.split(%d) does not fit workers with %d devices each%s: %d is neither a divisor nor a multiple of %d, "
            "so that a copy of the model would end in the middle of a worker. Start workers whose number of devices is "
            "one of these, or use another device_count."
            % (
                shards,
                per_worker,
                ", %d for each of %d stages" % (columns, depth) if depth > 1 else "",
                shards,
                columns,
            )
        )


def _check_devices(stages, depth, cluster, split):
    """Raises PlanError when copies of `depth` stages, side by side, do not fill the devices of the cluster."""
    share = split and depth > 1 and len({stage.device_count for stage in stages}) == 1
    shards, per_worker = stages[0].device_count, cluster.gpu_num_per_worker
    per_replica = _devices_of_copy(stages, depth)
    total = cluster.worker_num * per_worker
    if total % per_replica:
        what = (
            " + ".join("%s: %d" % (s.name, s.device_count) for s in stages) if depth > 1 else "device_count %d" % shards
        )
        raise PlanError(
            "one copy of the model needs %d devices (%s), but there are %d workers x %d devices = %d devices, and %d "
            "does not divide %d (%d = %d x %d + %d). Use a number of devices that is a multiple of %d, or another "
            "device_count%s."
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
                ", or set cluster.colocate_split_and_replicate to let all scopes share the same devices" * share,
            )
        )


def _devices_of_copy(stages, depth):
    """Devices of a copy of the model, of `depth` stages side by side."""
    counts = [stage.device_count for stage in stages]
    return depth * counts[0] if len(set(counts)) == 1 else sum(counts)


def _side_by_side(stages, per_worker):
    """As `_close` for stages with different numbers of devices: those of a copy stage by stage, in one worker."""
    needs, most = sum(stage.device_count for stage in stages), max(stage.device_count for stage in stages)
    if per_worker % needs:
        return None
    firsts = [sum(stage.device_count for stage in stages[:index]) for index in range(len(stages))]
    return [
        [(0, copy + first + shard * stage.device_count // most) for first, stage in zip(firsts, stages)]
        for copy in range(0, per_worker, needs)
        for shard in range(most)
    ]


def _close(depth, workers, per_worker):
    """For each copy of the model in a block, the (worker of the block, device) of each of its `depth` devices; copies
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
