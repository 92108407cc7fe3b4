"""The hooks of epl.profiler in one process with two devices."""

import pytest

from epl.profiler.flops import FlopsProfilerHook
from epl.profiler.timeline import Bar, chrome_trace, clock_shifts
from tests.helpers import profile_checks


def test_hooks(two_devices, tmp_path):
    profile_checks.check([two_devices("tests.helpers.programs.profiles:run", str(tmp_path))], devices=2)


def test_clocks_of_other_hosts_are_set_by_the_collectives():
    reduce = Bar("reduce", "EplAllReduce", "CPU:0", "communication", 1000, 50)
    ahead = reduce._replace(start_us=91010, duration_us=45)
    workers = {
        0: {"host": "a", "bars": [reduce]},
        1: {"host": "b", "bars": [ahead, Bar("y", "MatMul", "CPU:0", "forward", 90900, 10)]},
        2: {"host": "a", "bars": [ahead]},
    }
    shifts = clock_shifts(workers)
    assert shifts == {0: 0, 1: 1050 - 91055, 2: 0}
    trace = chrome_trace({worker: workers[worker]["bars"] for worker in (0, 1)}, shifts)
    starts = {event["name"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert starts["y"] == 0  # the first of all, 105 microseconds before worker 0's


def test_overlapping_operations_take_further_rows():
    bars = [
        Bar(name, "Op", "CPU:0", "forward", start, 10) for name, start in (("a", 0), ("b", 5), ("c", 10), ("d", 16))
    ]
    events = chrome_trace({0: bars})["traceEvents"]
    rows = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert rows == {"a": 0, "b": 1, "c": 0, "d": 1}


@pytest.mark.parametrize("value", [-1, 1.5, True, "10"])
def test_every_n_steps_is_checked(value):
    with pytest.raises(ValueError, match="whole number of at least 0"):
        FlopsProfilerHook(every_n_steps=value)
