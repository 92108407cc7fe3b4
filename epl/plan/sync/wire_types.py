"""Gradients in fewer bits on their way between workers (communication.wire_dtype), with what that leaves over kept."""

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Tuple

from epl.config import composes
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.merge_points import in_shard_rank, part_shape
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import elements_of, num_elements
from epl.plan.sync.gradients import merged_gradients
from epl.program.collective import ALL_GATHER, ALL_TO_ALL, GRADIENTS, NEXT, READY, SUMS, collective
from epl.program.program import Coded

FLOAT32, INT8 = "float32", "int8"
_WIRE_DTYPES = {"float16": 19, "bfloat16": 14, INT8: 6}
_BLOCK = 256  # numbers that share a scale of four bytes; kWireBlock of csrc/comm/wire_codec.h


@dataclass(frozen=True)
class Wire:
    """How gradients travel.

    Attributes:
      dtype: "float16", "bfloat16" or "int8".
      workers: number of workers, each of which adds up a share of every gradient.
      groups: name of a DenseGroup to its Coded gradients, in its order; others travel as they are.
      to_owners: names of those of which each gradient is added up by the worker that alone makes its update.
    """

    dtype: str
    workers: int
    groups: Dict[str, Tuple[Coded, ...]]
    to_owners: FrozenSet[str] = frozenset()

    def names(self, group):
        """Of the two exchanges of a DenseGroup: of shares, and of their sums."""
        return group.name + "/to_sum", group.name + "/sums"

    def share_bytes(self, group):
        """Of the share of a group that each worker adds up."""
        return sum(_bytes_of(self.dtype, each.share(self.workers)) for each in self.groups[group.name])

    def whole_bytes(self, gradients):
        """Of some Coded gradients as a whole."""
        return sum(_bytes_of(self.dtype, each.num_elements) for each in gradients)

    @property
    def without_sums(self):
        """Variables for what is left over of sums that are not sent on."""
        return {each.residual_of_sum for name in self.to_owners for each in self.groups[name]}


def _bytes_of(dtype, count):
    """Bytes of so many numbers."""
    return count + 4 * -(-count // _BLOCK) if dtype == INT8 else 2 * count


def coded_gradients(program, communication, mesh):
    """The Coded gradients of a Program with one copy of the model; their variables are to be added.

    Args:
      program: the Program; one whose tensors devices divide (epl.split) is partitioned already.
      communication: the configuration's `communication` part.
      mesh: the Mesh.

    Raises:
      UnsupportedError: the program assigns to variables what it makes of gradients itself.
    """
    if any(call.between is not None for call in program.apply_calls):
        raise composes.refused(composes.BY_HAND, composes.WIRE)
    merged, found = (
        merged_gradients(
            program, None, communication, warn=False, shard_ranks=mesh.shard_ranks, early=mesh.clips_whole
        ),
        [],
    )
    for call, gradients in merged.gradients:
        for gradient, name in gradients:
            variable, tensor = program.variables[name], canonical_tensor(gradient.values)
            if (
                gradient.indices is not None
                or types.base(variable.dtype) != types.FLOAT32
                or not num_elements(variable)
            ):
                continue
            stem = "%s_wire/call_%d/%s" % (PREFIX, call.index, name)
            for shard_rank in merged.shard_ranks.get(tensor, (None,)):
                taker = merged.consumers[tensor][0][0]
                shape = part_shape(program.partitioned, mesh, variable.shape, taker, shard_rank)
                residual, residual_of_sum = (
                    in_shard_rank("%s/%s" % (stem, what), shard_rank) for what in ("left", "residual_of_sum")
                )
                found.append(Coded(tensor, name, shape, elements_of(shape), residual, residual_of_sum, shard_rank))
    return tuple(found)


def plan_wire(model, mesh, aggregation, dtype, owned=()):
    """The Wire of a model that trains; None where gradients travel as they are.

    Args:
      owned: names of the DenseGroups of which owners get the gradients of their own updates alone.
    """
    if not model.coded:
        return None
    coded = {(each.gradient, each.shard_rank): each for each in model.coded}
    groups = {
        group.name: tuple(coded[tensor, group.shard_rank] for tensor in group.tensors)
        for group in aggregation.groups
        if all((tensor, group.shard_rank) in coded for tensor in group.tensors)
    }
    return Wire(dtype, mesh.copies.num_workers, groups, frozenset(owned).intersection(groups))


def wire_collectives(plan):
    """Two Collectives of each DenseGroup that travels in fewer bits. Its sums are sent when the next gradients are on
    their way, which they would keep waiting otherwise; but where owners have added them up they stay there."""
    found = []
    for number, group in enumerate(plan.aggregation.groups if plan.wire is not None else ()):
        if group.name in plan.wire.groups:
            to_sum, sums = plan.wire.names(group)
            size, taken = plan.wire.share_bytes(group), group.tensors
            whole, stage = plan.group_of(taken[0]), plan.stage(taken[0])
            group_of_workers = replace(whole, size=whole.num_workers)  # each adds up its copies' gradients before
            exchanged = [(to_sum, ALL_TO_ALL, GRADIENTS, taken, size * plan.wire.workers, group.num_bytes, READY)]
            if group.name in plan.wire.to_owners:
                whole_bytes = plan.wire.whole_bytes(plan.wire.groups[group.name])
                exchanged = [(to_sum, ALL_TO_ALL, GRADIENTS, taken, whole_bytes, group.num_bytes, READY)]
            else:
                exchanged.append((sums, ALL_GATHER, SUMS, (to_sum,), size, group.num_bytes // plan.wire.workers, NEXT))
            for name, operation, purpose, tensors, num_bytes, whole_bytes, turn in exchanged:
                found.append(
                    collective(
                        name,
                        operation,
                        purpose,
                        tensors,
                        group_of_workers,
                        number % plan.mesh.num_communicators,
                        num_bytes,
                        group.dtype,
                        tags.BACKWARD,
                        tensor_bytes=whole_bytes,
                        wire_dtype=_WIRE_DTYPES[plan.wire.dtype],
                        shard_rank=group.shard_rank,
                        stage=stage,
                        takes_part=plan.has_stage(node_of(taken[0])),
                        turn=turn,
                        after=taken,
                    )
                )
    return found
