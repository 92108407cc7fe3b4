"""Sums over all rows of a variable, such as those of norms, to which the owner of each shard adds its part."""

from dataclasses import dataclass
from typing import Tuple

from epl.plan.facts.names import PREFIX, tag_of


@dataclass(frozen=True)
class OwnedSum:
    """One collective.

    Attributes:
      name: of it.
      joined: the node that has the sum.
      parts: (node that makes a part, its owner) pairs.
      dtype: DataType number.
      shape: of the sum.
      slot, tag: as of groups.
    """

    name: str
    joined: str
    parts: Tuple[Tuple[str, int], ...]
    dtype: int
    shape: Tuple[int, ...]
    slot: int
    tag: int

    def parts_of(self, rank):
        """The nodes of an owner."""
        return [name for name, owner in self.parts if owner == rank]


def owned_sums(plan):
    """An OwnedSum for each RowSum."""
    found = []
    for index, each in enumerate(plan.zero.row_sums if plan.zero is not None else ()):
        name = "%s_zero/%s" % (PREFIX, each.joined)
        parts = tuple((part, plan.zero.owners.get(part, 0)) for part in each.parts)
        slot = index % plan.mesh.num_communicators
        found.append(OwnedSum(name, each.joined, parts, each.dtype, each.shape, slot, tag_of(name)))
    return found
