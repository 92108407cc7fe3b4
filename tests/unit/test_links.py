"""Sizes of gradient groups: what a link between workers is worth, and what the configuration says."""

import hypothesis
import hypothesis.strategies as st
import pytest

from epl.errors import ConfigError
from epl.plan.links import NETWORK, SHARED_MEMORY, Link, link_of, num_groups, smallest_group
from tests.helpers import planning
from tests.helpers.planning import capture, plan_of

MIB = 1 << 20
_LINKS = st.builds(Link, st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))


def test_link_follows_the_machines():
    assert link_of(["a:1"]) == link_of(["a:1", "a:2"]) == SHARED_MEMORY
    assert link_of(["a:1", "b:1"]) == NETWORK
    # A group's latency is a fifth of its time: 13 us beside 260000 bytes at 5 GB/s, 52 us.
    assert smallest_group(SHARED_MEMORY) == 260000


@pytest.mark.parametrize(
    "total,max_splits,fuse_bytes,expected",
    [
        (0, 5, 0, 1),
        (200000, 5, 0, 1),
        (600000, 5, 0, 2),
        (100 * MIB, 5, 0, 5),
        (100 * MIB, 5, 50 * MIB, 2),
        (100 * MIB + 1, 5, 50 * MIB, 3),
        (100 * MIB, 5, MIB, 5),
        (100 * MIB, 200, MIB, 100),
        (100 * MIB, 5, 1000 * MIB, 1),
    ],
)
def test_number_of_groups(total, max_splits, fuse_bytes, expected):
    assert num_groups(total, SHARED_MEMORY, max_splits, fuse_bytes) == expected


@hypothesis.given(st.integers(0, 1 << 40), _LINKS, st.integers(1, 100))
def test_groups_pay_off(total, link, max_splits):
    groups = num_groups(total, link, max_splits)
    assert 1 <= groups <= max_splits
    if groups > 1:
        time = total / groups / link.bytes_per_s
        assert time >= 3.9 * link.latency_s or smallest_group(link) == 1
    slower = Link(2 * link.latency_s, link.bytes_per_s)
    assert num_groups(total, slower, max_splits) <= groups


@hypothesis.given(st.integers(1, 1 << 40), st.integers(1, 1 << 30), st.integers(1, 100))
def test_groups_have_the_size_asked_for(total, fuse_bytes, max_splits):
    groups = num_groups(total, NETWORK, max_splits, fuse_bytes)
    assert groups == max_splits or total / groups <= fuse_bytes


def test_configured_size():
    with capture() as graph:
        planning.sgd(planning.layers(6))  # 12 gradients of a few bytes
    few = plan_of(graph, communication__fuse_size_mb=1)[1].aggregation.groups
    assert len(few) == 1
    total = sum(group.num_bytes for group in few)
    many = plan_of(graph, communication__fuse_size_mb=total / 3.0 / MIB)[1].aggregation.groups
    assert len(many) == 3 and sum(group.num_bytes for group in many) == total
    limited = plan_of(graph, communication__fuse_size_mb=1e-6, communication__max_splits=2)[1].aggregation.groups
    assert len(limited) == 2
    with pytest.raises(ConfigError, match="communication.fuse_size_mb"):
        plan_of(graph, communication__fuse_size_mb=-1)
