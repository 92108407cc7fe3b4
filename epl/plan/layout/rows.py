"""Which rows of a batch each of several devices computes, and so whose rows a device takes.

Devices stand in order, and have neighbouring parts of the batch, each as large as its weight among all of them. Parts
are intervals of the batch as a whole, from 0 to 1: (begin, end) as Fractions, the end not included.

    four devices      0        1/4       1/2       3/4        1
    two                    0        |        1
    weights 2 and 1              0             |      1
"""

from fractions import Fraction


def weights_of(mesh, stage):
    """The weights of a stage's devices in one model replica, in the order of its batch."""
    return mesh.weights or (1,) * (mesh.num_shards // mesh.span(stage))


def rows_of(mesh, instance, stage):
    """The rows of its model replica's batch that an Instance's copy of a stage computes."""
    return shares(weights_of(mesh, stage))[instance.shard // mesh.span(stage)]


def computing_for(mesh, instance, stage, other):
    """The Instances whose copies of another stage compute rows of what an Instance's copy of a stage computes."""
    there = [i for i in mesh.computing(other) if i.data == instance.data]
    found = overlapping(rows_of(mesh, instance, stage), [rows_of(mesh, i, other) for i in there])
    return tuple(there[number] for number in found)


def mean_factors(mesh, instances, over_workers=True):
    """What to multiply the means of some Instances' rows by, so that the plain mean of the products is the mean of all
    rows: an instance with more rows than others counts for more.

    Args:
      mesh: a Mesh with weights.
      instances: one for each device of a stage.
      over_workers: the mean is taken over the copies of all workers; else over these instances alone.
    """
    own = [mesh.weights[i.shard] for i in instances]
    among = mesh.weights if over_workers else own
    return [weight * len(among) / sum(among) for weight in own]


def shares(weights):
    """The interval of each device, by their weights (positive whole numbers)."""
    total, ends = sum(weights), [0]
    for weight in weights:
        ends.append(ends[-1] + weight)
    return [(Fraction(begin, total), Fraction(end, total)) for begin, end in zip(ends, ends[1:])]


def overlapping(own, others):
    """The numbers of those of some intervals that have rows of an interval."""
    return [number for number, (begin, end) in enumerate(others) if begin < own[1] and own[0] < end]


def overlap(own, other):
    """How much of the batch two intervals have in common."""
    return max(0, min(own[1], other[1]) - max(own[0], other[0]))


def within(own, other):
    """The part of another interval that is in an interval, as an interval of that other one; None for no part."""
    begin, end = max(own[0], other[0]), min(own[1], other[1])
    if begin >= end:
        return None
    size = other[1] - other[0]
    return (begin - other[0]) / size, (end - other[0]) / size
