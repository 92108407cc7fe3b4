"""Which rows of a batch each of several devices computes, against rows that are counted one by one."""

from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from epl.plan.layout.rows import overlapping, shares, within

pytestmark = pytest.mark.once

WEIGHTS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def rows_of(interval, count):
    """The rows of an interval, of so many."""
    begin, end = (bound * count for bound in interval)
    assert begin == int(begin) and end == int(end)
    return range(int(begin), int(end))


def test_examples():
    half, third = Fraction(1, 2), Fraction(1, 3)
    assert shares([1, 1]) == [(0, half), (half, 1)]
    assert shares([2, 1]) == [(0, 2 * third), (2 * third, 1)]
    assert overlapping((0, half), shares([2, 1])) == [0] and overlapping((half, 1), shares([2, 1])) == [0, 1]
    assert within((0, half), (0, 1)) == (0, half) and within((half, 1), (half, 1)) == (0, 1)
    assert within((half, 1), (0, 2 * third)) == (Fraction(3, 4), 1) and within((0, half), (half, 1)) is None


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(givers=WEIGHTS, takers=WEIGHTS)
def test_each_row_comes_from_the_one_that_has_it(givers, takers):
    """What a device takes of others is its own rows, each once and in order."""
    count = sum(givers) * sum(takers)
    have, want = shares(givers), shares(takers)
    for found, weights in ((have, givers), (want, takers)):
        assert [row for interval in found for row in rows_of(interval, count)] == list(range(count))
        assert [len(rows_of(interval, count)) * sum(weights) for interval in found] == [w * count for w in weights]
    for own in want:
        taken = []
        for giver in overlapping(own, have):
            there = rows_of(have[giver], count)
            taken.extend(there[row] for row in rows_of(within(own, have[giver]), len(there)))
        assert taken == list(rows_of(own, count))
        others = set(range(len(have))).difference(overlapping(own, have))
        assert all(within(own, have[other]) is None for other in others)
