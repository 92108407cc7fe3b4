"""Where a tensor or a variable is, along an axis of the mesh."""

from dataclasses import dataclass

SUM, MAX, MIN, PROD, MEAN = "sum", "max", "min", "prod", "mean"
# How values begin of which each rank has its own: each by itself, as the first rank's, or as one made of that by rank.
BY_ITSELF, AS_FIRST, TURNED = "", "as first", "turned"


@dataclass(frozen=True, order=True)
class Placement:
    """Along one axis.

    Attributes:
      kind: "whole": each rank has all of it; "sharded": each has its part of one dimension; "partial": what the ranks
        have must be added up, or combined otherwise, to be the tensor; "owned": one rank alone has it; "own": each has
        a value of its own, with its name.
      dim: of a sharded tensor.
      combine: of a partial tensor: "sum", "mean", "max", "min" or "prod".
      rank: of the owner.
      among: of how many neighbouring ranks one is the owner; where the axis has more, each so many have one.
      begins: how values of which each rank has its own begin: BY_ITSELF, AS_FIRST or TURNED.
      of: the tensor by which what lies "ragged" (below) is divided.
    """

    kind: str
    dim: int = -1
    combine: str = ""
    rank: int = -1
    among: int = 0
    begins: str = BY_ITSELF
    of: str = ""

    def __str__(self):
        detail = {"sharded": self.dim, "partial": self.combine, "owned": "%d of %d" % (self.rank, self.among)}
        found = detail.get(self.kind, self.begins)
        return self.kind if found == "" else "%s(%s)" % (self.kind, found)


WHOLE = Placement("whole")
# What operations want that look at the shape alone: whole, or partial, which has the shape of the whole.
WHOLE_SHAPE = Placement("whole shape")
OWN = Placement("own")
# Rows of a table, or their ids, each on the shard that has the table's row; in an order of their own.
ROUTED = Placement("routed", dim=0)

# A batch with any number of entries in each row, or its entries one after the other: see `ragged`.
RAGGED = "ragged"


def ragged(of, in_order=True):
    """Each shard has the entries of its rows of a batch.

    Args:
      of: the tensor that tells which they are, by its canonical name.
      in_order: whether what the shards have, one after the other, is the tensor; otherwise each has a list of its own
        that was made of its entries.
    """
    return Placement(RAGGED, dim=0 if in_order else -1, of=of)


def sharded(dim):
    """Each shard has its part of a dimension; parts differ by one where the size does not divide."""
    return Placement("sharded", dim=dim)


def partial(combine=SUM):
    """What the shards have must be combined to be the tensor."""
    return Placement("partial", combine=combine)


def owned(rank, among):
    """One of so many neighbouring ranks has it."""
    return Placement("owned", rank=rank, among=among)


def own(begins):
    """Each rank has a value of its own, which begins as said."""
    return Placement("own", begins=begins)


@dataclass(frozen=True)
class Placed:
    """Where a variable is: its Placement along each axis of the mesh.

    Attributes:
      data: over the copies of the model that come to hold the same.
      stage: over the workers that compute a copy of the model together.
      shard: over the devices that divide what one copy computes.
    """

    data: Placement = WHOLE
    stage: Placement = WHOLE
    shard: Placement = WHOLE

    def __str__(self):
        along = (("data", self.data), ("stage", self.stage), ("shard", self.shard))
        return ", ".join("%s over %s" % (placement, axis) for axis, placement in along if placement != WHOLE) or "whole"

    @property
    def is_divided(self):
        """Whether the devices of one copy of the model have a part each."""
        return self.shard.kind == "sharded"

    @property
    def is_sent(self):
        """Whether the others are given what the first copy of the model has of it."""
        return self.data != OWN


EVERYWHERE = Placed()
