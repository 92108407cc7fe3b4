"""ZeRO (Rajbhandari et al., 2020): each device keeps the optimizer's state of some variables, and updates only these.

What one gradient changes is a unit: a trained variable and its slots. A unit's slots, and all operations that take
them, belong to one copy of the model, the owner of the variable; after an update it gives all others the variable.
Units go to owners by size, the largest first, each to the copy with the least state so far. Owners are ranks among the
copies.
"""

import collections
from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Optional, Tuple

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.types import FLOAT32
from epl.plan.facts.merge_points import in_shard_rank, part_shape
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import cut_evenly, elements_of
from epl.plan.layout.mesh import Group
from epl.plan.precision.found_inf import found_inf_collective
from epl.plan.sync.gradients import dense_collective
from epl.plan.zero.parameters import ParameterSegment
from epl.program.collective import ALL_GATHER, FIRST, LAST, PARAMETERS, REDUCE_SCATTER, UNORDERED, collective
from epl.program.program import RowsOf, RowSum
from epl.rules import effects

STATE = "v0"  # the level at which gradients may be whole on a device
_CHIEF = 0  # who writes files


@dataclass(frozen=True)
class Update:
    """What one call of apply_gradients does to a variable, and its owner alone.

    Attributes:
      call: the call's number.
      variable: name.
      owner: rank in the Group of the model's copies.
      writes: the operations that change the variable itself, or have run where a loss scale may leave these out.
      members: these, and all else that the gradient leads to in this call.
      slots: the variables of the optimizer.
      dtype: DataType number.
      shape: of the variable.
      num_bytes: of the variable.
      rows_of: the RowsOf where the variable only holds these rows of one that is updated; else None.
    """

    call: int
    variable: str
    owner: int
    writes: Tuple[str, ...]
    members: FrozenSet[str]
    slots: Tuple[str, ...]
    dtype: int
    shape: Tuple[int, ...]
    num_bytes: int
    rows_of: Optional[RowsOf] = None


@dataclass(frozen=True)
class Zero:
    """How optimizers' state, and their work, is divided over the copies of the model.

    Attributes:
      level: as configured, from "v0" to "v3".
      updates: those that are divided, in the order in which their gradients become ready.
      owners: node of the user's graph to the one copy of the model that computes it, by its rank.
      state_bytes: of the slots of each copy, and of its parameters where these are divided; of a pipeline over several
        workers, those of the stages that this worker has.
      shard_group: the Group of the copies that hold all of the state once among them, each a part of it.
      replicate_group: the Group of those that hold the same part of it, one in each shard group: they share gradients
        as data parallelism does.
      segments: the epl.plan.zero.parameters.Segments in which copies get each other's parameters.
      row_sums: the RowSums that owners of rows add up.
    """

    level: str
    updates: Tuple[Update, ...]
    owners: Dict[str, int]
    state_bytes: Tuple[int, ...]
    shard_group: Group = field(compare=False)  # as each worker sees it; all else is the same for all workers
    replicate_group: Group = field(compare=False)
    segments: Tuple[ParameterSegment, ...] = ()
    row_sums: Tuple[RowSum, ...] = ()

    @property
    def parameters(self):
        """Names of the parameters that are divided as their state is."""
        return frozenset(variable for segment in self.segments for variable in segment.variables)

    def of_worker(self, worker):
        """The ranks of the copies in a worker, by its place in the shard group."""
        return range(worker * self.shard_group.local, (worker + 1) * self.shard_group.local)

    @property
    def num_owned(self):
        """How many copies a worker has of what has an owner: one in each shard rank of each of its shard groups."""
        return self.replicate_group.local * self.shard_group.shard_ranks

    def instance_of(self, name, number=0):
        """The index in its worker of the instance that computes a copy of a node, given by its number, at the owner; of
        what has no owner the first one of the shard group."""
        which, shard_rank = divmod(number, self.shard_group.shard_ranks)
        return self.instance_at(which, self.owners.get(name, 0), shard_rank)

    def instance_at(self, which, rank, shard_rank):
        """The index in its worker of the instance of a rank of one of the worker's shard groups, in a shard rank."""
        local, shard_ranks = self.shard_group.local, self.shard_group.shard_ranks
        return (which * local + rank % local) * shard_ranks + shard_rank

    def group_of(self, instance):
        """Which of a worker's shard groups an instance is in, given by its index."""
        return instance // (self.shard_group.local * self.shard_group.shard_ranks)

    def number_for(self, instance):
        """The number of the copy of what has an owner that an instance, given by its index, takes."""
        return self.group_of(instance) * self.shard_group.shard_ranks + instance % self.shard_group.shard_ranks


@dataclass(frozen=True)
class UpdateGroup:
    """Updates whose variables, or gradients, travel together.

    Attributes:
      name: of the collective.
      updates: of the same type; those of one owner are neighbours, the first owner's come first.
      tensors: for gradients, the tensor of each update.
      shapes: of what travels for each: the variable's, or that of a device's part of it.
      dtype: DataType number.
      shard_rank: of the devices that have such parts (epl.plan.layout.mesh); None: all have the whole variables.
    """

    name: str
    updates: Tuple[Update, ...]
    tensors: Tuple[str, ...]
    shapes: Tuple[Tuple[int, ...], ...]
    dtype: int
    shard_rank: Optional[int] = None

    def name_in(self, which):
        """Of the collective in one of a worker's groups of copies that each have all of the state."""
        return self.name if not which else "%s/again_%d" % (self.name, which)

    def of(self, ranks):
        """Places of the updates of some owners."""
        return [place for place, update in enumerate(self.updates) if update.owner in ranks]

    def size_of(self, ranks):
        """Elements that some owners have."""
        return sum(self.size(place) for place in self.of(ranks))

    def size(self, place):
        """Elements of what travels for an update, by its place."""
        return elements_of(self.shapes[place])


def in_groups(mesh, config):
    """The Mesh that knows how many copies of the model hold the state of optimizers once among them.

    Args:
      mesh: a Mesh.
      config: its `zero.degree` says how many; 0: all.

    Raises:
      UnsupportedError: groups of that size would be neither of whole workers nor equal parts of each.
    """
    copies, degree = mesh.copies, config.zero.degree
    if degree in (0, copies.size):
        return replace(mesh, degree=0)
    if degree == copies.local or (degree > 1 and copies.local % degree == 0):
        return replace(mesh, degree=degree)
    if degree % copies.local or copies.size % degree:
        raise UnsupportedError(
            "zero.degree=%d does not divide the %d copies of the model, of which a worker has %d, into groups of whole "
            "workers, or of some copies of one: a multiple of %d that divides %d is needed, or a number from 2 that "
            "divides %d. Set zero.degree to such a number, or leave it at 0, which means all."
            % (degree, copies.size, copies.local, copies.local, copies.size, copies.local)
        )
    lies = ((composes.OVER_WORKERS, mesh.pipeline_workers > 1), (composes.SPLIT, mesh.split))
    composes.check([composes.ZERO_GROUPS] + [each for each, is_so in lies if is_so], degree=degree, copies=copies.local)
    return replace(mesh, degree=degree)


def stays_in_workers(zero, mesh):
    """Whether each of several workers has all of the state of its stages, divided over its own copies, so that their
    updates concern no other worker."""
    shards, replicas = zero.shard_group, zero.replicate_group
    return shards.num_workers == 1 and (replicas.size > 1 or mesh.pipeline.num_workers > 1)


def workers_of(zero, model, mesh):
    """dict of node to the worker that alone computes it, by its place in `zero.shard_group`; empty where state is
    divided over the devices of each worker alone, so that all workers compute all."""
    if stays_in_workers(zero, mesh):
        return {}
    found = {name: rank // zero.shard_group.local for name, rank in zero.owners.items()}
    if found:
        found.update((name, _CHIEF) for name in model.graph.find(effects.FILE_WRITES.__contains__))
    return found


def owned_groups(zero, mesh, aggregation, partitioned):
    """dict of the name of a DenseGroup to its UpdateGroup, of which owners need the gradients of their updates alone.

    A group is needed whole where anything besides these updates takes one of its gradients, and where each worker, or
    group of workers, makes all updates: its devices take their gradients from the sum on the host.
    """
    if zero is None or zero.replicate_group.size > 1 or stays_in_workers(zero, mesh):
        return {}
    update_of = {name: update for update in zero.updates for name in update.members}
    found = {}
    for group in aggregation.groups:
        taken = [{update_of.get(name) for name, _ in aggregation.consumers[t]} for t in group.tensors]
        if all(len(updates) == 1 and None not in updates for updates in taken):
            pairs = [(updates.pop(), tensor) for updates, tensor in zip(taken, group.tensors)]
            pairs.sort(key=lambda pair: pair[0].owner)
            updates, tensors = zip(*pairs)
            points = [aggregation.consumers[tensor][0][0] for tensor in tensors]
            shapes = tuple(
                part_shape(partitioned, mesh, u.shape, point, group.shard_rank) for u, point in zip(updates, points)
            )
            found[group.name] = UpdateGroup(group.name, updates, tensors, shapes, group.dtype, group.shard_rank)
    return found


def scattered_groups(plan):
    """The `owned_groups` of a Plan of which each owner gets the gradients of its own updates alone.

    At level "v0" gradients that travel in fewer bits do so as without ZeRO, and stay whole.
    """
    zero = plan.zero
    if zero is None or plan.wire_fp16 and zero.level == STATE:
        return {}
    found, wire = owned_groups(zero, plan.mesh, plan.aggregation, plan.partitioned), plan.wire
    whole = set(wire.groups) - wire.to_owners if wire is not None else ()
    return {name: group for name, group in found.items() if name not in whole}


def gathered_groups(plan):
    """The UpdateGroups whose updated variables owners send to all other ranks. Variables that come in segments, as they
    are needed, are in none. All variables of a group are in stages of one worker."""
    if plan.zero is None:
        return []
    kinds = collections.OrderedDict()
    for update in plan.zero.updates:
        if update.writes and update.variable not in plan.zero.parameters:
            shard_ranks = tuple(plan.shard_ranks_of(update.variable))
            place = plan.owners.get(update.variable)
            kinds.setdefault((update.call, update.dtype, shard_ranks, place), []).append(update)
    found = []
    for (call, dtype, shard_ranks, _), updates in kinds.items():
        of_type = (dtype,) + types.SHORT_FLOATS * (dtype == FLOAT32)
        splits = max(1, sum(1 for group in plan.aggregation.groups if group.dtype in of_type))
        for run in cut_evenly([(update, update.num_bytes) for update in updates], splits):
            members = tuple(sorted((update for update, _ in run), key=lambda update: update.owner))
            for shard_rank in shard_ranks:
                name = in_shard_rank("%s_zero/call_%d/group_%d" % (PREFIX, call, len(found)), shard_rank)
                shapes = [part_shape(plan.partitioned, plan.mesh, u.shape, u.variable, shard_rank) for u in members]
                found.append(UpdateGroup(name, members, (), tuple(shapes), dtype, shard_rank))
    return found


@dataclass(frozen=True)
class OwnersFoundInf:
    """How owners come to know whether all gradients of a FoundInf are finite.

    Attributes:
      name: of the collective.
      packed: the node that packs what is known of each gradient.
      flags: (node that says it of one gradient, its owner) pairs.
    """

    name: str
    packed: str
    flags: Tuple[Tuple[str, int], ...]

    def flags_of(self, rank):
        """The nodes of an owner."""
        return [name for name, owner in self.flags if owner == rank]


def owners_found_infs(plan):
    """An OwnersFoundInf for each FoundInf on gradients that have owners; where stages lie in several workers, owners
    agree together with these (epl.plan.precision.found_inf)."""
    found = []
    if plan.mesh.pipeline.num_workers > 1:
        return found
    for found_inf in plan.found_infs if plan.zero is not None else ():
        owned = tuple((flag, plan.zero.owners[flag]) for flag in found_inf.flags if flag in plan.zero.owners)
        if owned:
            name = "%s_zero/%s" % (PREFIX, found_inf.packed)
            found.append(OwnersFoundInf(name, found_inf.packed, owned))
    return found


def owners_found_inf_collectives(plan):
    """A Collective of each OwnersFoundInf."""
    found = []
    for each in owners_found_infs(plan):
        flags = tuple(name for name, _ in each.flags)
        made = found_inf_collective(each, flags, plan.zero.shard_group)
        found.append(replace(made, turn=UNORDERED) if stays_in_workers(plan.zero, plan.mesh) else made)
    return found


def scattered_collectives(plan):
    """A Collective of each DenseGroup of which each owner gets the gradients of its own updates, as they are."""
    scattered = scattered_groups(plan).keys() - (plan.wire.groups if plan.wire is not None else ())
    groups = enumerate(plan.aggregation.groups)
    return [
        dense_collective(plan, group, number, REDUCE_SCATTER) for number, group in groups if group.name in scattered
    ]


def update_collectives(plan):
    """A Collective of each UpdateGroup whose variables owners give to all others after an update, in each group of
    copies of a worker."""
    found, zero = [], plan.zero
    for number, group in enumerate(gathered_groups(plan)):
        here, first = zero.of_worker(zero.shard_group.index), group.updates[0].variable
        for which in range(zero.replicate_group.local):
            name = group.name_in(which)
            found.append(
                collective(
                    name,
                    ALL_GATHER,
                    PARAMETERS,
                    tuple(update.variable for update in group.updates),
                    plan.zero.shard_group,
                    number % plan.mesh.num_communicators,
                    group.size_of(here) * types.DTYPE_BYTES.get(group.dtype, 4),
                    group.dtype,
                    tags.APPLY,
                    shard_rank=group.shard_rank,
                    stage=plan.stage(first),
                    takes_part=plan.has_stage(first),
                    # Updates have time until all gradients are on their way.
                    turn=UNORDERED if stays_in_workers(zero, plan.mesh) else LAST,
                    after=(),
                )
            )
    return found


def segment_collectives(plan):
    """The Collectives by which copies of the model get each other's parameters: of each ParameterSegment, in each shard
    rank and each micro-batch. Within a worker TensorFlow itself brings them."""
    found = []
    if plan.zero is None or plan.zero.shard_group.num_workers == 1:
        return found
    for segment in plan.zero.segments:
        repeated = plan.micro_batches is not None and segment.nodes[0] in plan.micro_batches.nodes
        for micro_batch in range(plan.micro_batches.count if repeated else 1):
            found.extend(_of_segment(plan, segment, micro_batch))
    return found


def _of_segment(plan, segment, micro_batch):
    here = plan.zero.of_worker(plan.zero.shard_group.index)
    first = segment.variables[0]
    own = [variable for variable in segment.variables if plan.placed(variable).data.rank in here]
    for shard_rank in plan.shard_ranks_of(first):
        name = segment.gather_of(shard_rank, micro_batch)
        elements = sum(
            elements_of(part_shape(plan.partitioned, plan.mesh, plan.variables[each].shape, each, shard_rank))
            for each in own
        )
        yield collective(
            name,
            ALL_GATHER,
            PARAMETERS,
            segment.variables,
            plan.zero.shard_group,
            segment.number % plan.mesh.num_communicators,
            elements * types.DTYPE_BYTES.get(segment.dtype, 4),
            segment.dtype,
            segment.phase,
            consumers=tuple(edge for users in segment.users for edge in users),
            shard_rank=shard_rank,
            stage=plan.stage(first),
            micro_batch=micro_batch,
            takes_part=plan.has_stage(first),
            turn=FIRST,  # as early as what it waits for allows
            after=(),
        )
