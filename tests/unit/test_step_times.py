"""Where the time of a step goes: profiles that are made up, divided by hand."""

import json
import types

import pytest
import tensorflow.compat.v1 as tf

from epl.session import step_times
from epl.session.executions import executions, kernels

BASE = 1700000000000000  # microseconds since the epoch, as in traces
CPU = "/job:localhost/replica:0/task:0/device:CPU:%d"


def ran(op, begin, end, device=CPU % 0):
    return (device, op, begin, end)


def metadata(*runs):
    """The RunMetadata of operations that ran, in microseconds after BASE."""
    made = tf.RunMetadata()
    devices = {}
    for number, (device, op, begin, end) in enumerate(runs):
        if device not in devices:
            devices[device] = made.step_stats.dev_stats.add(device=device)
        name = "node_%d" % number
        devices[device].node_stats.add(
            node_name=name,
            timeline_label="%s = %s(x)" % (name, op),
            all_start_micros=BASE + begin,
            all_end_rel_micros=end - begin,
        )
    return made


def shares(runs, device="CPU:0", pipeline=False, end=100, waits=()):
    found = metadata(*runs)
    waits = {kind: [(BASE + a, BASE + b) for a, b in pairs] for kind, pairs in waits}
    parts = step_times.intervals_of(executions(found), kernels(found), device, pipeline, waits)
    times = step_times.divided(parts, BASE, BASE + end)
    assert sum(times.values()) == pytest.approx(end)
    return {kind: time for kind, time in times.items() if time}


def test_what_is_under_way_at_a_time_counts_once():
    runs = [ran("MatMul", 10, 40), ran("EplAllReduce", 30, 60), ran("IteratorGetNext", 0, 20), ran("Relu", 20, 40)]
    assert shares(runs) == {"compute": 30, "data": 10, "communication": 20, "rest": 40}


def test_what_lies_outside_the_step_does_not_count():
    assert shares([ran("MatMul", -50, 20), ran("EplAllReduce", 90, 500), ran("MatMul", 200, 300)]) == {
        "compute": 20,
        "communication": 10,
        "rest": 70,
    }


def test_what_one_device_exchanges_for_all_of_a_worker():
    runs = [ran("MatMul", 0, 20, CPU % 1), ran("MatMul", 0, 30), ran("EplAllReduce", 30, 80)]
    assert shares(runs, "CPU:1") == {"compute": 20, "communication": 50, "rest": 30}


def test_a_step_of_nothing_is_all_rest():
    assert shares([]) == {"rest": 100} and shares([], pipeline=True) == {"rest": 100}


def test_waiting_for_other_stages_is_the_bubble():
    """Device 1 waits for device 0, and has nothing to do after its last operation while that one goes on."""
    runs = [ran("MatMul", 10, 40), ran("_Recv", 5, 40, CPU % 1), ran("MatMul", 40, 70, CPU % 1), ran("MatMul", 70, 90)]
    assert shares(runs, "CPU:1", pipeline=True) == {"compute": 30, "bubble": 55, "rest": 15}
    assert shares(runs, "CPU:0", pipeline=True) == {"compute": 50, "bubble": 30, "rest": 20}
    assert shares(runs, "CPU:1") == {"compute": 30, "communication": 35, "rest": 35}


def test_waits_outside_the_operations():
    waits = [("communication", [(0, 30)]), ("data", [(25, 50)])]
    assert shares([ran("MatMul", 60, 90)], waits=waits) == {
        "compute": 30,
        "data": 25,
        "communication": 25,
        "rest": 20,
    }


def test_of_a_gpu_its_kernels_count_and_the_data_that_the_host_reads():
    stream, gpu = "/device:GPU:0/stream:all", CPU.replace("CPU:%d", "GPU:0")
    runs = [ran("MatMul", 10, 12, gpu), ran("IteratorGetNext", 0, 30), ran("MatMul", 40, 80, stream)]
    runs += [ran("ncclDevKernel_AllReduce", 70, 90, stream), ran("MEMCPYHtoD", 30, 35, stream)]
    assert shares(runs, "GPU:0") == {"compute": 40, "data": 30, "communication": 15, "rest": 15}


def traced(runs, waited_s):
    call = types.SimpleNamespace(traced=types.SimpleNamespace(metadata=lambda: metadata(*runs)), waited_s=waited_s)
    call.began = BASE / 1e6
    return call


def test_the_mean_of_the_traced_steps_is_written(tmp_path, monkeypatch):
    path = tmp_path / "times"
    times = step_times.step_times_of({"EPL_REPORT_TIMES": str(path)})
    mesh = types.SimpleNamespace(first_device=0, devices_per_worker=1, device_type="CPU", stages=(0,))
    monkeypatch.setattr(step_times.time, "time", lambda: BASE / 1e6 + 100e-6)
    for number in range(step_times._COUNT):
        assert not path.exists()
        times.ends(traced([ran("MatMul", 10 * number, 100)], 1.0), mesh, 1.0, ())
    told = json.loads(path.read_text())
    (device, found), *others = told["devices"]
    assert (told["steps"], device, others) == (step_times._COUNT - 1, "CPU:0", [])
    assert found["compute"] == pytest.approx(80e-6, abs=1e-6) and found["rest"] == pytest.approx(20e-6, abs=1e-6)
    assert step_times.step_times_of({}) is None
