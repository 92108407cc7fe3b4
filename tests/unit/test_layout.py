"""Layouts: which copy of the model runs on which devices."""

from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import strategies as st

from epl.errors import PlanError, UnsupportedError
from epl.graph.model import TaskGraph
from epl.plan.layout import make_layout
from tests.helpers.planning import cluster


def scopes(*device_counts):
    return [TaskGraph(i, "replicate", count) for i, count in enumerate(device_counts)]


def of_all_workers(taskgraphs, workers, devices, colocate=False):
    return [make_layout(taskgraphs, cluster(workers, devices), colocate, worker) for worker in range(workers)]


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 12),
    devices=st.integers(1, 8),
    device_count=st.integers(1, 6),
    num_scopes=st.integers(0, 4),
    colocate=st.booleans(),
)
def test_layouts(workers, devices, device_count, num_scopes, colocate):
    taskgraphs = scopes(*[device_count] * num_scopes)
    shares = device_count if num_scopes else 1
    depth = 1 if colocate or not num_scopes else num_scopes
    total = workers * devices
    if total % (depth * shares):
        with pytest.raises(PlanError) as caught:
            make_layout(taskgraphs, cluster(workers, devices), colocate)
        needs, left = depth * shares, total % (depth * shares)
        assert "%d = %d x %d + %d" % (total, total // needs, needs, left) in str(caught.value)
        assert "%d workers x %d devices = %d devices" % (workers, devices, total) in str(caught.value)
        return
    if devices % depth:
        with pytest.raises(UnsupportedError, match="more than one worker"):
            make_layout(taskgraphs, cluster(workers, devices), colocate)
        return
    layouts = of_all_workers(taskgraphs, workers, devices, colocate)
    for layout in layouts:
        used = [device for instance in layout.instances for device in sorted(set(instance.devices))]
        assert used == list(range(devices))  # every device once, whichever instance it serves
        assert all(len(instance.devices) == max(1, num_scopes) for instance in layout.instances)
        assert [instance.index for instance in layout.instances] == list(range(len(layout.instances)))
        assert layout.num_replicas * layout.shares == layout.num_instances
        assert layout.shares == shares
    every = [instance for layout in layouts for instance in layout.instances]
    assert [instance.rank for instance in every] == list(range(layouts[0].num_instances))
    parts = [(instance.replica, instance.share) for instance in every]
    assert parts == [(r, s) for r in range(layouts[0].num_replicas) for s in range(shares)]


def test_scopes_of_different_device_counts():
    with pytest.raises(UnsupportedError, match="taskgraph_0: 1, taskgraph_1: 2"):
        make_layout(scopes(1, 2), cluster(1, 3))


def test_a_layout_of_512_workers():
    layouts = [make_layout([], cluster(512, 8, worker)) for worker in (0, 511)]
    assert [layout.num_replicas for layout in layouts] == [4096, 4096]
    assert [instance.rank for instance in layouts[1].instances] == list(range(4088, 4096))
    assert layouts[0].device(3) == "/job:localhost/replica:0/task:0/device:CPU:3"
    assert make_layout([], cluster(2, 2, device_type="GPU")).device(1).endswith("GPU:1")


def test_layouts_need_no_tensorflow():
    """A layout can be made of anything that has the numbers."""
    numbers = SimpleNamespace(worker_num=2, worker_index=1, gpu_num_per_worker=2, device_type="GPU")
    assert [i.rank for i in make_layout([], numbers).instances] == [2, 3]
