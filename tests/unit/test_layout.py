"""Layouts: which copy of the model runs on which devices."""

from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import strategies as st

from epl.errors import PlanError, UnsupportedError
from epl.plan.layout import make_layout
from epl.program.program import TaskGraph
from tests.helpers.planning import cluster


def scopes(*device_counts):
    return [TaskGraph(i, "replicate", count) for i, count in enumerate(device_counts)]


def of_all_workers(taskgraphs, workers, devices, colocate=False, together=True):
    return [
        make_layout(taskgraphs, cluster(workers, devices), colocate, worker, prefer_intra_node=together)
        for worker in range(workers)
    ]


def even(depth, workers, devices, together):
    """Whether copies of `depth` devices lie evenly on the workers."""
    count = devices if together else workers
    return count % depth == 0 or depth % count == 0


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    workers=st.integers(1, 12),
    devices=st.integers(1, 8),
    device_count=st.integers(1, 6),
    num_scopes=st.integers(0, 4),
    colocate=st.booleans(),
    together=st.booleans(),
)
def test_layouts(workers, devices, device_count, num_scopes, colocate, together):
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
    if not even(depth, workers, devices, together):
        with pytest.raises(UnsupportedError, match="in the middle of a worker"):
            of_all_workers(taskgraphs, workers, devices, colocate, together)
        return
    layouts = of_all_workers(taskgraphs, workers, devices, colocate, together)
    used = set()
    for worker, layout in enumerate(layouts):
        assert layout.worker_index == worker and layout.num_workers == workers
        assert worker in layout.peers and len(layout.peers) == layout.num_crews
        assert all(layouts[peer].position == layout.position for peer in layout.peers)
        assert all(layouts[other].crew == layout.crew for other in layout.crew)
        assert all(layouts[other].instances == layout.instances for other in layout.crew)
        assert all(len(instance.devices) == max(1, num_scopes) for instance in layout.instances)
        assert [instance.index for instance in layout.instances] == list(range(len(layout.instances)))
        assert layout.num_replicas * layout.shares == layout.num_instances
        assert layout.shares == shares
        for instance in layout.instances:
            for stage, device in zip(layout.stages, instance.devices):
                if layout.position_of(stage.index) == layout.position:
                    used.add((worker, device, instance.rank, stage.index if not colocate else 0))
    # Every device once, by one stage of one instance.
    assert sorted(place[:2] for place in used) == [(w, d) for w in range(workers) for d in range(devices)]
    every = [instance for layout in layouts if layout.position == 0 for instance in layout.instances]
    assert [instance.rank for instance in every] == list(range(layouts[0].num_instances))
    parts = [(instance.replica, instance.share) for instance in every]
    assert parts == [(r, s) for r in range(layouts[0].num_replicas) for s in range(shares)]


def places(workers, devices, num_scopes, together, worker=0):
    """For each copy of a worker's crew where its stages are: "worker:device"."""
    layout = of_all_workers(scopes(*[1] * num_scopes), workers, devices, together=together)[worker]
    return [
        ["%d:%d" % (layout.crew[layout.position_of(s)], device) for s, device in enumerate(instance.devices)]
        for instance in layout.instances
    ]


def test_a_copy_in_few_workers_or_in_many():
    assert places(2, 2, 2, True) == [["0:0", "0:1"]]
    assert places(2, 2, 2, False) == [["0:0", "1:0"], ["0:1", "1:1"]]
    assert places(2, 2, 4, True) == [["0:0", "0:1", "1:0", "1:1"]]
    assert places(2, 2, 4, False) == [["0:0", "1:0", "0:1", "1:1"]]
    assert places(4, 1, 2, True, worker=3) == [["2:0", "3:0"]]


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
