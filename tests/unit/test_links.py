"""Sizes of gradient groups: what a link between workers is worth, and what the configuration says."""

import hypothesis
import hypothesis.strategies as st
import pytest

from epl.cluster.machine import NOMINAL, Link
from epl.config import Config
from epl.errors import ConfigError
from epl.plan.cost.group_sizes import num_groups, smallest_group
from epl.plan.decide import with_link
from epl.plan.report.plan_table import plan_table
from epl.session import inner
from epl.session.rewritten import Rewritten
from tests.helpers import planning
from tests.helpers.planning import capture, plan_of

MIB = 1 << 20
_LINKS = st.builds(Link, st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))


def test_link_follows_the_machines():
    assert NOMINAL.link_between(["a:1"]) == NOMINAL.link_between(["a:1", "a:2"]) == NOMINAL.host
    assert NOMINAL.link_between(["a:1", "b:1"]) == NOMINAL.network
    # A group's latency is a fifth of its time: 13 us beside 260000 bytes at 5 GB/s, 52 us.
    assert smallest_group(NOMINAL.host) == 260000


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
    assert num_groups(total, NOMINAL.host, max_splits, fuse_bytes) == expected


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
    groups = num_groups(total, NOMINAL.network, max_splits, fuse_bytes)
    assert groups == max_splits or total / groups <= fuse_bytes


def test_groups_follow_a_measured_link():
    with capture() as graph:
        planning.sgd(planning.layers(6))
    model, assumed = planning.plan_of(graph, 2, 1)
    assert assumed.link == NOMINAL.host and "assumed within a machine" in plan_table(assumed)
    assert assumed.summary()["link"]["source"] == "assumed within a machine"
    total = sum(group.num_bytes for group in assumed.aggregation.groups)
    tensors = [tensor for group in assumed.aggregation.groups for tensor in group.tensors]
    for groups in (1, 2, 4):
        link = Link(latency_s=1e-3, bytes_per_s=total / groups / 4e-3)
        planned = with_link(assumed, model, Config(), link)
        assert len(planned.aggregation.groups) == groups and planned.link == link
        assert [tensor for group in planned.aggregation.groups for tensor in group.tensors] == tensors
        assert "1000 us" in plan_table(planned) and "(measured)" in plan_table(planned)


def test_link_is_measured_where_groups_follow_from_it():
    """Once the plan stands, and by nobody who does not need it: all workers would have to come."""
    asked = []

    def measure():
        asked.append(True)
        return Link(latency_s=1e-9, bytes_per_s=1e9)

    def rewritten(graph, workers, **values):
        del asked[:]
        return Rewritten(graph, Config(values), planning.cluster(workers, 1), 0, measure), len(asked)

    with capture() as inference:
        planning.layers(2)
    with capture() as graph:
        planning.sgd(planning.layers(6))
        made, times = rewritten(graph, 2)
        assert times == 1 and made.plan.link == measure() and len(made.plan.aggregation.groups) == 5
        nodes = [name for name in made.graph.nodes if made.graph.nodes[name].op == "EplAllReduce"]
        assert sorted(nodes) == sorted(group.name for group in made.plan.aggregation.groups)
        for workers, values in ((1, {}), (2, {"communication.fuse_size_mb": 1})):
            made, times = rewritten(graph, workers, **values)
            assert times == 0 and made.plan.link is None and "link between workers" not in plan_table(made.plan)
    made, times = rewritten(inference, 2)
    assert times == 0 and made.plan.link is None


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


@pytest.mark.parametrize("workers,cores,quiet", [(2, 1, True), (2, 2, False), (1, 1, False)])
def test_threads_sleep_where_a_worker_of_several_has_one_core(monkeypatch, workers, cores, quiet):
    monkeypatch.setattr(inner, "_cores", lambda: cores)
    made = []
    monkeypatch.setattr(inner.tf, "Session", lambda graph, config: made.append(config))
    with capture() as graph:
        planning.sgd(planning.layers(2))
    inner.InnerSession(plan_of(graph, workers=workers, devices=1)[1].mesh, None, Config({}, {}).execution)
    assert made[0].experimental.disable_thread_spinning == quiet and made[0].use_per_session_threads == quiet
