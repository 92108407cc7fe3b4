"""All devices of a job as a grid with named axes, and who communicates along them: arithmetic over counts alone.

    data    model replicas
    stage   the stages of a pipeline
    shard   the devices that each compute a part of what one replica computes in a stage

The devices of one place on the axes data and shard compute a copy of the graph together, stage by stage: an instance.
Stages may have different numbers of devices. The axis shard is then as long as their least common multiple, and of
several neighbouring instances the first computes the batch of all of them. Which rows that are, and so who takes rows
of whom at a border of stages, is in epl.plan.layout.rows. Or instances are stacked: the device has a copy of the stage
for each of them.
Those of a worker that have the same part of the tensors that are divided (epl.split), in copies of the model side by
side, are a shard rank.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Optional, Sequence, Tuple

from epl.errors import PlanError

AXES = DATA, STAGE, SHARD = "data", "stage", "shard"


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
      workers: for each stage the worker of the pipeline group that has it, counted within the pipeline group.
    """

    index: int
    rank: int
    data: int
    shard: int
    devices: Tuple[int, ...]
    workers: Tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Who communicates along some axes, as one worker sees it.

    Attributes:
      workers: those that take part, in order.
      index: this worker's place among them; None where it is none of them.
      size: ranks of all of them.
      first_communicator: the first of the group's in each worker's pool.
      axes: of the mesh, along which they lie.
      shard_ranks: of the mesh, each of which has such a group (`Mesh.shard_ranks`).
    """

    workers: Sequence[int]
    index: Optional[int]
    size: int
    first_communicator: int
    axes: Tuple[str, ...]
    shard_ranks: int = 1

    @property
    def num_workers(self):
        return len(self.workers)

    @property
    def local(self):
        """How many ranks each worker has, where all have as many."""
        return self.size // len(self.workers)

    def communicator(self, number):
        """The pool's number of one of the group's communicators."""
        return self.first_communicator + number

    def divided(self, degree):
        """The group as a grid of two axes: (the Group of so many neighbouring ranks, the Group of those at the same
        place in each of these).

        Args:
          degree: ranks of the first; a divisor of `local`, or a multiple of it that divides `size`.
        """
        own = self.workers[self.index]
        alone = replace(self, workers=range(own, own + 1), index=0)
        if degree == self.size:
            return self, replace(alone, size=1)
        if self.local % degree == 0:
            return replace(alone, size=degree), replace(self, size=self.size // degree)
        count, place = degree // self.local, self.index % (degree // self.local)
        near = replace(self, workers=self.workers[self.index - place :][:count], index=place, size=degree)
        apart = self.workers[place::count]
        return near, replace(self, workers=apart, index=self.index // count, size=len(apart))


@dataclass(frozen=True)
class Mesh:
    """The grid, as one worker sees it: its size does not grow with the number of workers.

    The workers fall into pipeline groups of neighbours that hold whole copies of the model: one worker each, unless a
    copy lies in several. All pipeline groups are alike.

    Attributes:
      num_workers, worker_index: all workers, and this one.
      devices_per_worker: of each worker.
      device_type: "CPU" or "GPU".
      stages: the parts of a model replica.
      num_shards: size of the axis shard: devices of each stage, or the least common multiple of these numbers.
      instances: those of this worker's pipeline group.
      pipeline_workers: workers of a pipeline group.
      num_communicators: of each group along axes.
      split: the devices along the axis shard divide tensors, so that each holds something else; else the batch of a
        replica, and hold the same.
      first_device: TensorFlow's number of a worker's first device: 1 where the host's is kept free.
      weights: of the places on the axis shard: a device has so many of as many equal parts of its model replica's batch
        as they are together. Empty: all have one.
      whole: of the copies of the model in a worker the first one alone computes, all rows that the worker has; the
        others hold variables.
      degree: copies that hold the state of optimizers once among them (`zero.degree`); 0: all.
      stacked: scopes have different numbers of devices, and those of one with fewer have several instances of it each;
        `stages` says how many instances there are.
    """

    num_workers: int
    worker_index: int
    devices_per_worker: int
    device_type: str
    stages: Tuple[Stage, ...]
    num_shards: int
    instances: Tuple[Instance, ...]
    pipeline_workers: int = 1
    num_communicators: int = 1
    split: bool = False
    first_device: int = 0
    weights: Tuple[int, ...] = ()
    whole: bool = False
    degree: int = 0
    stacked: bool = False

    @property
    def shape(self):
        """dict of axis to its size."""
        copies = len(self.instances) * self.num_pipelines
        return {DATA: copies // self.num_shards, STAGE: len(self.stages), SHARD: self.num_shards}

    @property
    def num_replicas(self):
        """Model replicas of all workers."""
        return self.shape[DATA]

    @property
    def everywhere(self):
        """The Group of all instances, of this worker's stages; where a worker may have some of them alone, of all
        stages, see `holding`."""
        return self.group(DATA, SHARD)

    @property
    def copies(self):
        """The Group of the instances that hold the same, or come to: what makes it so is sent among them."""
        return self.group(DATA) if self.split else self.everywhere

    @property
    def state_groups(self):
        """(the Group of the copies that hold the state of optimizers once among them, the Group of those that hold the
        same of it, one of each of the former): neighbouring copies, of one worker or of several (`degree`)."""
        copies, count = self.copies, self.num_communicators
        shards, replicas = copies.divided(self.degree or copies.size)
        if 1 < shards.num_workers < copies.num_workers:
            shards, replicas = (
                replace(group, first_communicator=number * count) for group, number in ((shards, 2), (replicas, 1))
            )
        return shards, replicas

    def holding(self, stage):
        """The Group of the copies of a stage that hold the same."""
        if not self.is_spread:
            copies, span = self.copies, self.span(stage)
            return copies if span == 1 else replace(copies, size=copies.size // span)
        places, count = self.places(stage), self.num_communicators
        place, pipeline_workers = self.worker_index % self.pipeline_workers, self.worker_index // self.pipeline_workers
        workers = tuple(first + p for first in range(0, self.num_workers, self.pipeline_workers) for p in places)
        return Group(
            workers,
            pipeline_workers * len(places) + places.index(place) if place in places else None,
            len(self.computing(stage)) * self.num_pipelines,
            # Where these are all workers, they have the communicators of all.
            count * (1 + self._numbers[places]) if len(workers) < self.num_workers else 0,
            self.copies.axes,
        )

    @property
    def is_spread(self):
        """Whether the copies of a stage that are in one pipeline group may lie in several workers."""
        return self.pipeline_workers > 1 and not self.is_even

    def places(self, stage):
        """The workers of the pipeline group that have copies of a stage, in order, counted within the pipeline
        group."""
        return tuple(sorted({i.workers[stage] for i in self.computing(stage)}))

    @property
    def _numbers(self):
        """dict of the places of stages to a number; those that have a worker in common have different ones."""
        found = {}
        for places in sorted({self.places(stage.index) for stage in self.stages}):
            taken = {number for others, number in found.items() if set(others) & set(places)}
            found[places] = min(set(range(len(taken) + 1)) - taken)
        return found

    @property
    def has_first(self):
        """Whether this worker, or its pipeline group, has the first of the copies that hold the same."""
        return (self.copies.index if self.split else self.worker_index // self.pipeline_workers) == 0

    @property
    def num_pipelines(self):
        return self.num_workers // self.pipeline_workers

    @property
    def pipelines_of_copy(self):
        """How many neighbouring pipeline groups compute one copy of the model, of one batch; 1 where each has whole
        copies."""
        return max(1, self.num_shards // len(self.instances))

    @property
    def is_even(self):
        """Whether all stages have the same number of devices."""
        return len({stage.device_count for stage in self.stages}) == 1

    @property
    def clips_whole(self):
        """Whether gradients come together before the program clips them, whatever the configuration says: of stages
        with different numbers of devices they have nothing in common before."""
        return self.stacked or not self.is_even

    def span(self, stage):
        """How many neighbouring instances one device of a stage computes for."""
        return max(1, self.num_shards // self.stages[stage].device_count)

    def computing(self, stage):
        """The instances that have a copy of a stage."""
        span = self.span(stage)
        return self.instances if span == 1 else tuple(i for i in self.instances if i.shard % span == 0)

    @property
    def shard_ranks(self):
        """How many different parts of divided tensors this worker's instances have."""
        return min(self.num_shards, len(self.instances)) if self.split else 1

    @property
    def active(self):
        """The instances that compute what becomes of a batch."""
        return self.instances[: self.shard_ranks] if self.whole else self.instances

    def givers(self, shard_rank=None, stage=0):
        """The instances that bring what copies of a stage merge: those of a shard rank; without one, one for each copy
        of the model here, as all of its devices have the same."""
        if not self.split:
            return self.computing(stage)[: 1 if self.whole else None]
        return self.active[shard_rank or 0 :: self.shard_ranks]

    def num_merged(self, stage=0):
        """How many copies of a stage all workers have whose results are merged."""
        group = self.holding(stage)
        return group.num_workers if self.whole else group.size

    def served(self, shard_rank=None):
        """The instances for which another device of their copy brings what they compute too."""
        givers = self.givers(shard_rank)
        return tuple(i for i in self.active if i not in givers) if self.split else ()

    def takers(self, shard_rank=None):
        """The instances that take what has been merged."""
        return self.instances if shard_rank is None else self.instances[shard_rank :: self.shard_ranks]

    @property
    def tensor_group(self):
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
        """The Group of those that differ from this worker's ranks in their places on these axes alone.

        Workers are numbered along the axes as digits are: the stages first, then the shards, then the data.
        """
        wanted, workers, first, index, stride = set(axes), range(1), self.worker_index, 0, 1
        for along, extent in self._extents:
            if wanted & along:
                place = self.worker_index // stride % extent
                first, index = first - place * stride, index + place * len(workers)
                workers = _repeated(workers, stride, extent)
            stride *= extent
        workers = _from(workers, first)
        size = len(workers) if wanted == {STAGE} else self._ranks(wanted)  # there a worker is one for all of its stages
        number = self._number_of(wanted)
        lies_apart = self.pipeline_workers > 1 or 1 < len(workers) < self.num_workers
        slot = number * self.num_communicators if lies_apart else 0
        return Group(workers, index, size, slot, axes, 1 if SHARD in wanted else self.shard_ranks)

    @property
    def _extents(self):
        """(axes, number of workers along them) of each way in which workers lie side by side, the nearest first."""
        # Instances of stages with different numbers of devices may have their copy of one in any worker of the pipeline
        # group.
        in_pipeline_group = set(AXES) if self.is_spread else {STAGE}
        span = self.pipelines_of_copy
        return (in_pipeline_group, self.pipeline_workers), ({SHARD}, span), ({DATA}, self.num_pipelines // span)

    def _ranks(self, axes):
        """Devices along some axes, where each stage has as many as others have in the mean."""
        ranks = dict(
            self.shape, **{STAGE: Fraction(self.devices_per_worker * self.pipeline_workers, len(self.instances))}
        )
        size = Fraction(1)
        for axis in axes:
            size *= ranks[axis]
        return int(size)

    def _number_of(self, axes):
        """The place of the communicators of a group among those of all groups; 0 for all workers."""
        if axes == set(AXES) or self.is_spread and axes == {DATA, SHARD}:
            return 0
        found = [{DATA}, {SHARD}, {DATA, SHARD}, {DATA, STAGE}] if self.split else [{DATA, SHARD}]
        if axes in found:
            return 1 + found.index(axes)
        if axes != {STAGE}:
            raise PlanError("no group of this version communicates along %s" % " and ".join(sorted(axes)))
        # The last ones: messages have numbers behind these. Stages in several workers each need a number of their own.
        return 2 + max(self._numbers.values()) if self.is_spread else 1 + len(found)

    def joined(self, slot):
        """The Group whose communicators have to be made first, as not all workers are in it, for a pool's number; None
        for those of all workers."""
        if self.split:
            groups = [self.copies, self.tensor_group, self.everywhere, self.group(DATA, STAGE), self.pipeline]
        else:
            groups = [self.holding(stage.index) for stage in self.stages] + [self.pipeline]
            groups += self.state_groups if self.degree else ()
        count = self.num_communicators
        own = [group for group in groups if group.index is not None and group.first_communicator > 0]
        return next(
            (group for group in own if group.first_communicator <= slot < group.first_communicator + count), None
        )

    def worker_of(self, stage, instance=None):
        """Which of the workers of a pipeline group has an instance's copy of a stage, by number; default the first
        one's."""
        return (instance or self.instances[0]).workers[stage]

    def device(self, index):
        """TensorFlow's name of a local device."""
        return "/job:localhost/replica:0/task:0/device:%s:%d" % (self.device_type, self.first_device + index)

    @property
    def host_device(self):
        return "/job:localhost/replica:0/task:0/device:CPU:0"


def _repeated(workers, stride, extent):
    """Numbers, from 0, and again behind them with each of so many steps of a stride; a range where they are evenly
    spaced, which does not grow with their number."""
    if len(workers) == 1:
        return range(0, stride * extent, stride)
    if isinstance(workers, range) and (extent == 1 or workers.step * len(workers) == stride):
        return range(0, workers.step * len(workers) * extent, workers.step)
    return tuple(step * stride + worker for step in range(extent) for worker in workers)


def _from(workers, first):
    """Numbers counted from another one than 0."""
    if isinstance(workers, range):
        return range(first, first + workers.stop, workers.step)
    return tuple(first + worker for worker in workers)


def one_instance(mesh, alone):
    """The same with the first instance in each worker only, whole, and computing whole batches.

    Args:
      mesh: a Mesh.
      alone: there are no other workers either.
    """
    rank = 0 if alone else mesh.worker_index
    workers = (0,) * len(mesh.stages)
    devices = mesh.instances[0].devices
    if mesh.pipeline_workers > 1:
        devices = tuple(index % mesh.devices_per_worker for index in range(len(devices)))
    return replace(
        mesh,
        num_workers=1 if alone else mesh.num_workers,
        worker_index=rank,
        num_shards=1,
        split=False,
        weights=(),
        stages=tuple(replace(stage, device_count=1) for stage in mesh.stages),
        instances=(replace(mesh.instances[0], rank=rank, data=rank, shard=0, devices=devices, workers=workers),),
        pipeline_workers=1,
    )


def in_one_piece(mesh):
    """The same with one copy of the model in each worker that computes whole batches, while the others hold variables,
    and make the updates that they make otherwise."""
    return replace(mesh, whole=True, weights=())
