"""Cuts of a forward pass, against trying all of them."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.plan.memory.segments import Chain, ForwardSegment, Span

pytestmark = pytest.mark.either_line


def chain_of(sizes, seconds=None):
    """Operations in a row; each uses the output of the one before, and the backward pass all outputs."""
    last = len(sizes) - 1
    spans = [Span(i, min(i + 1, last), size, True) for i, size in enumerate(sizes)]
    return spans, seconds or [1.0] * len(sizes)


def by_trying(spans, seconds, gradients):
    """(peak, seconds) of every way to cut and to choose, by counting bytes segment by segment."""
    count = len(seconds)
    for cuts in itertools.product([False, True], repeat=count - 1):
        ends = [i for i, cut in enumerate(cuts) if cut] + [count - 1]
        begins = [0] + [end + 1 for end in ends[:-1]]
        for again in itertools.product([False, True], repeat=len(ends) - 1):
            yield _count(spans, seconds, gradients, list(zip(begins, ends, again + (False,))))


def _count(spans, seconds, gradients, segments):
    kept, peak, time = 0, 0, 0.0
    for begin, end, again in segments:
        made = [s for s in spans if begin <= s.first <= end]
        crossing = [s for s in made if s.last > end]
        inside = [s for s in made if s.backward and s.last <= end]
        now = sum(s.num_bytes for s in crossing + inside)
        peak = max(peak, kept + now + sum(gradients[end + 1 :]))
        for place in range(begin, end):  # the backward pass has come to there
            needed = sum(s.num_bytes for s in made if s.backward and s.first <= place)
            peak = max(peak, kept + needed + sum(gradients[place + 1 :]))
        kept += sum(s.num_bytes for s in crossing) if again else now
        time += sum(seconds[begin : end + 1]) if again else 0.0
    return peak, time


def test_equal_layers_are_cut_near_the_root_of_their_number():
    chain = Chain(*chain_of([100] * 49))
    assert chain.everything_kept().peak_bytes == 4900
    found = chain.smallest_peak()
    assert found.peak_bytes <= 1100 and found.seconds <= 48
    assert [s.begin for s in found.segments] == [0] + [s.end for s in found.segments[:-1]]
    assert found.segments[-1].end == 49 and not found.segments[-1].again


def test_nothing_is_gained_by_cutting_two_operations():
    chain = Chain(*chain_of([10, 10]))
    assert chain.smallest_peak().segments == (ForwardSegment(0, 2, False),) or chain.smallest_peak().peak_bytes == 20


def test_no_way_within_too_little():
    assert Chain(*chain_of([10] * 9)).fastest(15) is None


spans_and_times = st.integers(2, 9).flatmap(
    lambda count: st.tuples(
        st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, 4), st.integers(1, 30), st.booleans()),
            min_size=1,
            max_size=14,
        ),
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
        st.lists(st.integers(0, 9), min_size=count, max_size=count),
    )
)


def _spans(rows, count):
    return [Span(first, min(first + length, count - 1), size, used) for first, length, size, used in rows]


@settings(max_examples=150)
@given(spans_and_times, st.floats(0.0, 1.2))
def test_as_good_as_trying_every_way(case, part):
    rows, seconds, gradients = case
    spans = _spans(rows, len(seconds))
    chain, ways = Chain(spans, seconds, gradients=gradients), list(by_trying(spans, seconds, gradients))
    smallest = min(peak for peak, _ in ways)
    assert chain.smallest_peak().peak_bytes == smallest
    limit = int(smallest + part * (chain.everything_kept().peak_bytes - smallest))
    found = chain.fastest(limit)
    assert found.peak_bytes <= limit
    assert found.seconds == min(time for peak, time in ways if peak <= limit)
    allowed = sum(seconds) * part / 2
    within = chain.smallest_peak_within(allowed)
    best = min(peak for peak, time in ways if time <= allowed)
    assert within.seconds <= allowed and within.peak_bytes <= max(best + 1, 1.005 * best)


def _least_time(sizes, seconds, limit):
    """Of every way to cut a chain and to choose what is computed again, the least time within a limit."""
    last, best = len(sizes) - 1, [float("inf")]

    def go_on(begin, kept, time):
        for end in range(begin, last + 1):
            whole = kept + sum(sizes[begin : end + 1])
            if whole > limit or time >= best[0]:
                return
            if end == last:
                best[0] = time
            else:
                go_on(end + 1, whole, time)
                go_on(end + 1, kept + sizes[end], time + sum(seconds[begin : end + 1]))

    go_on(0, 0, 0.0)
    return best[0]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1 << 10, 1 << 28), st.floats(0.1, 10.0)), min_size=2, max_size=12),
    st.sampled_from([0.0, 0.3, 0.5, 0.7]),
)
def test_a_limit_costs_no_more_time_than_it_has_to(layers, part):
    """Tensors of any size: close to a limit, small errors in bytes would cost a segment."""
    sizes, seconds = [size for size, _ in layers], [time for _, time in layers]
    chain = Chain(*chain_of(sizes, seconds))
    limit = max(chain.smallest_peak().peak_bytes, int(part * chain.everything_kept().peak_bytes))
    found = chain.fastest(limit)
    assert found.peak_bytes <= limit
    assert found.seconds <= 1.0001 * _least_time(sizes, seconds, limit) + 1e-9


@pytest.mark.parametrize("part", [0.05, 0.2, 0.4, 0.7])
def test_the_smallest_peak_within_a_time_is_found_in_few_turns(monkeypatch, part):
    """Each turn cuts the whole chain anew, which takes long for a large model."""
    turns, fastest = [], Chain.fastest
    monkeypatch.setattr(Chain, "fastest", lambda self, limit: turns.append(limit) or fastest(self, limit))
    for seed in range(3):
        drawn = random.Random(seed)
        sizes, seconds = ([draw(1, 100) for _ in range(40)] for draw in (drawn.randint, drawn.uniform))
        before = len(turns)
        found = Chain(*chain_of([size << 20 for size in sizes], seconds)).smallest_peak_within(part * sum(seconds))
        assert found.seconds <= part * sum(seconds) and len(turns) - before <= 10
    assert len(turns) >= 3


@pytest.mark.parametrize("candidates", [20, 60])
def test_fewer_candidates_serve_a_long_chain(candidates):
    spans, seconds = chain_of([100, 1, 1, 1] * 100)
    found = Chain(spans, seconds, max_candidates=candidates).smallest_peak()
    assert found.peak_bytes <= 3000 and found.segments[-1].end == 400
