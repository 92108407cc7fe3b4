"""Sums over all rows of a variable, such as those of norms, to which the owner of each shard adds its part."""

from dataclasses import dataclass
from typing import Tuple

from epl.graph import tags, types
from epl.plan.facts.names import PREFIX
from epl.plan.zero.zero import stays_in_workers
from epl.program.collective import ALL_REDUCE, NORMS, READY, UNORDERED, collective


@dataclass(frozen=True)
class OwnedSum:
    """One collective.

    Attributes:
      name: of it.
      joined: the node that has the sum.
      parts: (node that makes a part, its owner) pairs.
      dtype: DataType number.
      shape: of the sum.
    """

    name: str
    joined: str
    parts: Tuple[Tuple[str, int], ...]
    dtype: int
    shape: Tuple[int, ...]

    def parts_of(self, rank):
        """The nodes of an owner."""
        return [name for name, owner in self.parts if owner == rank]


def owned_sums(plan):
    """An OwnedSum for each RowSum."""
    found = []
    for each in plan.zero.row_sums if plan.zero is not None else ():
        name = "%s_zero/%s" % (PREFIX, each.joined)
        parts = tuple((part, plan.zero.owners.get(part, 0)) for part in each.parts)
        found.append(OwnedSum(name, each.joined, parts, each.dtype, each.shape))
    return found


def sum_collectives(plan):
    """A Collective of each OwnedSum."""
    found = []
    for number, each in enumerate(owned_sums(plan)):
        size = types.DTYPE_BYTES.get(each.dtype, 4)
        for dim in each.shape:
            size *= dim
        parts = tuple(name for name, _ in each.parts)
        turn = UNORDERED if stays_in_workers(plan.zero, plan.mesh) else READY
        found.append(
            collective(
                each.name,
                ALL_REDUCE,
                NORMS,
                parts,
                plan.zero.shard_group,
                number % plan.mesh.num_communicators,
                size,
                each.dtype,
                tags.APPLY,
                consumers=((each.joined, 0),),
                stage=plan.stage(each.joined),
                takes_part=plan.has_stage(each.joined),
                turn=turn,
            )
        )
    return found
