"""Parts of the partition engine by themselves: notations, reshapes, minimum cuts."""

import functools
import itertools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.partition.conversion import conversion, shard_sizes, shard_starts
from epl.partition.factors import groups, reshape_terms
from epl.partition.min_cut import Network
from epl.partition.rule import Notation, expand, strategies
from epl.program.placement import WHOLE, partial, sharded

pytestmark = pytest.mark.once


@given(size=st.integers(0, 100), shards=st.integers(1, 9))
def test_parts_differ_by_one_and_follow_each_other(size, shards):
    sizes, starts = shard_sizes(size, shards), shard_starts(size, shards)
    assert sum(sizes) == size and max(sizes) - min(sizes) <= 1
    assert starts == [sum(sizes[:i]) for i in range(shards)]


def test_a_product_can_be_divided_along_each_of_its_letters():
    notation = Notation("ik,kj->ij", linear=((0,), (1,)))
    found = strategies(expand(notation, ((6, 4), (4, 8)), ((6, 8),)), 2)
    assert [(each.factor, each.inputs, each.outputs) for each in found] == [
        (None, (WHOLE, WHOLE), (WHOLE,)),
        ("i", (sharded(0), WHOLE), (sharded(0),)),
        ("k", (sharded(1), sharded(0)), (partial(),)),
        ("j", (WHOLE, sharded(1)), (sharded(1),)),
        (None, (partial(), WHOLE), (partial(),)),
        (None, (WHOLE, partial()), (partial(),)),
    ]


def test_what_is_repeated_is_not_divided_and_small_dimensions_are_not_either():
    rule = expand(Notation("...,...->..."), ((5, 1, 7), (3, 1)), ((5, 3, 7),))
    found = strategies(rule, 4)
    assert [(each.inputs, each.outputs) for each in found[1:]] == [
        ((sharded(0), WHOLE), (sharded(0),)),
        ((sharded(2), WHOLE), (sharded(2),)),
    ]


def test_a_notation_does_not_fit_other_ranks():
    assert expand(Notation("ik,kj->ij"), ((2, 2), None), ((2, 2),)) is None
    assert expand(Notation("ik,kj->ij"), ((2, 2, 2), (2, 2)), ((2, 2),)) is None


@pytest.mark.parametrize(
    "before,after,terms",
    [
        ((None, 128, 768), (None, 128, 12, 64), ("abc", "abc-")),
        ((None, 768), (None, 128, 768), ("-a", "--a")),
        ((None, 6, 16), (None, 16), ("--a", "-a")),
        ((2, 3, 4), (6, 4), ("a-b", "ab")),
        ((4, 1, 5), (4, 5), ("a-b", "ab")),
        ((4, 6), (3, 8), ("a-", "a-")),
        ((2, 3), (None,), ("--", "-")),
        ((None, 8), (7, 8), ("ab", "ab")),
        ((7, 1, 8), (None, 8), ("a-b", "ab")),
        ((None, 4, 8), (7, 8), ("--a", "-a")),
    ],
)
def test_terms_of_reshapes(before, after, terms):
    assert reshape_terms(before, after) == terms


def test_a_reshape_that_merges_is_divided_only_where_parts_begin_alike():
    left, right = reshape_terms((6, 4), (24,))
    rule = expand(Notation("%s,*->%s" % (left, right)), ((6, 4), (1,)), ((24,),))
    assert [len(strategies(rule, count)) for count in (2, 3, 4)] == [2, 2, 1]


@given(before=st.lists(st.integers(1, 4), max_size=5), cuts=st.lists(st.booleans(), min_size=5, max_size=5))
def test_groups_have_equally_many_elements(before, cuts):
    after = []
    for size, cut in zip(before, cuts):
        if cut and after:
            after[-1] *= size
        else:
            after.append(size)
    for ins, outs in groups(tuple(before), tuple(after)):
        assert _elements(before, ins) == _elements(after, outs) > 1


def _elements(shape, dims):
    return functools.reduce(operator.mul, [shape[dim] for dim in dims], 1)


@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_groups_are_of_all_dimensions_where_one_size_of_each_is_not_known(data, sizes):
    """Whatever that size turns out to be, each group has as many elements on both sides; so nothing is left over."""

    def merged():
        found = []
        for size, cut in zip(sizes, data.draw(st.lists(st.booleans(), min_size=6, max_size=6))):
            if cut and found:
                found[-1] *= size
            else:
                found.append(size)
        return found

    def hidden(shape):
        at = data.draw(st.integers(0, len(shape) - 1))
        return tuple(None if i == at else size for i, size in enumerate(shape))

    before, after = merged(), merged()
    one, other = hidden(before), hidden(after)
    found = groups(one, other)
    for ins, outs in found:
        assert _elements(before, ins) == _elements(after, outs)
    for place, shape in enumerate((one, other)):
        grouped = sorted(dim for group in found for dim in group[place])
        assert grouped == [i for i, size in enumerate(shape) if size != 1]


def _cost(cut, edges):
    return sum(capacity for tail, head, capacity in edges if (tail, head) in cut)


def _reached(edges, cut):
    found, left = {"s"}, True
    while left:
        left = {head for tail, head, _ in edges if tail in found and (tail, head) not in cut} - found
        found |= left
    return found


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("sabc"), st.sampled_from("abct")).filter(lambda e: e[0] != e[1]),
        st.integers(1, 9),
        max_size=7,
    )
)
def test_minimum_cuts_against_trying_all(capacities):
    edges = [(tail, head, capacity) for (tail, head), capacity in capacities.items()]
    network = Network("s", "t")
    for edge in edges:
        network.add(*edge)
    found = set(network.minimum_cut())
    assert "t" not in _reached(edges, found)
    every = [e[:2] for e in edges]
    subsets = itertools.chain.from_iterable(itertools.combinations(every, n) for n in range(len(every) + 1))
    best = min(_cost(set(cut), edges) for cut in subsets if "t" not in _reached(edges, set(cut)))
    assert _cost(found, edges) == best


@pytest.mark.parametrize(
    "have,want,kind",
    [
        (WHOLE, sharded(0), None),
        (WHOLE, partial(), None),
        (sharded(0), WHOLE, "all_gather"),
        (sharded(0), sharded(1), "all_to_all"),
        (partial(), WHOLE, "all_reduce"),
        (partial(), sharded(0), "reduce_scatter"),
        (partial("max"), sharded(0), "all_reduce"),
    ],
)
def test_conversions(have, want, kind):
    assert conversion(have, want) == kind
