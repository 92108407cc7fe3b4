"""Which rows of a batch each of several devices computes, and so whose rows a device takes.

Devices stand in order, and have neighbouring parts of the batch, each as large as its weight among all of them. Parts
are intervals of the batch as a whole, from 0 to 1: (begin, end) as Fractions, the end not included.

    four devices      0        1/4       1/2       3/4        1
    two                    0        |        1
    weights 2 and 1              0             |      1
"""

from fractions import Fraction


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
