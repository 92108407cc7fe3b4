"""The order of measured actions, whatever single operations of them ran early or late."""

from types import SimpleNamespace

import pytest

from epl.plan.pipeline.schedules import BACKWARD, FORWARD
from epl.profiler.schedule import actions, measured

PARTS = {
    "forward": (FORWARD, 0),
    "report": (FORWARD, 0),
    "shape": (BACKWARD, 0),
    "gradient": (BACKWARD, 0),
    "sum": (BACKWARD, 0),
}


def execution(name, start, duration):
    return SimpleNamespace(name=name, start_us=start, duration_us=duration)


def peak(found):
    mesh = SimpleNamespace(instances=[SimpleNamespace(devices=("/cpu:0",))], worker_of=lambda stage: 0)
    return measured(mesh, actions(sorted(found, key=lambda each: each.start_us), PARTS)).peak_live


def copies(micro_batch, *times):
    prefix = "epl_micro_batch_%d/" % micro_batch if micro_batch else ""
    return [execution(prefix + name, start, duration) for name, start, duration in times]


@pytest.mark.parametrize("early", [0, 10, 35])
@pytest.mark.parametrize("late", [20, 40])
def test_one_forward_one_backward(early, late):
    """What a backward asks for before its forward runs, and what nothing waits for, change nothing."""
    found = []
    for m in range(4):
        begin = 100 + 40 * m
        found += copies(m, ("forward", begin, 10), ("report", begin + late - 5, 4), ("gradient", begin + 20, 20))
        found += copies(m, ("shape", begin - early, 1), ("sum", begin + 100, 1))
    assert peak(found) == (1,)


def test_all_forwards_first():
    found = []
    for m in range(4):
        found += copies(m, ("forward", 100 + 10 * m, 10), ("shape", 150 + m, 1), ("gradient", 200 + 10 * m, 10))
    assert peak(found) == (4,)


def test_what_is_no_part_is_left_out():
    assert actions([execution("update", 10, 5), execution("forward", 20, 5)], PARTS) == [[FORWARD, 0, 0, 20, 20, 25]]
