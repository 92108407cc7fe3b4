"""The memory plan of all devices of a job: which workers share one, and that it is theirs."""

import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.env import Env
from epl.plan.worker_roles import workers_by_role
from epl.session.estimated_job import estimate_job, job_charts, job_table
from epl.session.estimated_program import estimate_program, roots_of
from epl.session.front_ends import preview
from tests.helpers.planning import ROWS, capture, cluster, compiled


def model(stages=1, split=False):
    """Dense layers, of different sizes in stages, or split over two devices."""
    x = tf.placeholder(tf.float32, [None, 48], name="x")
    for stage in range(stages):
        with epl.split(2) if split else epl.replicate(1):
            x = tf.layers.dense(tf.layers.dense(x, 96 + 32 * stage, tf.tanh), 48)
    loss = tf.reduce_mean(tf.square(x))
    tf.train.AdamOptimizer(0.01).minimize(loss)
    return tf.train.Saver()


LAYOUTS = {
    # workers, devices of each, model, configuration, workers that share a plan
    "copies": (3, 2, {}, {}, [[0, 1, 2]]),
    "stages": (4, 1, {"stages": 2}, {"pipeline.num_micro_batch": 2}, [[0, 2], [1, 3]]),
    "state divided": (3, 1, {}, {"zero.level": "v1"}, [[0], [1], [2]]),
    "state divided in workers": (2, 2, {}, {"zero.level": "v1", "zero.degree": 2}, [[0, 1]]),
    "stages with divided state": (4, 1, {"stages": 2}, {"zero.level": "v1"}, [[0], [1], [2], [3]]),
    "tensors divided": (4, 1, {"split": True}, {}, [[0, 2], [1, 3]]),
}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_workers_that_share_a_plan_need_the_same(layout):
    workers, devices, parts, config, wanted = LAYOUTS[layout]
    with capture() as graph:
        model(**parts)
        captured = make_program(graph)
    keys = {key.replace(".", "__"): value for key, value in config.items()}
    programs = [compiled(captured, workers, devices, index, **keys) for index in range(workers)]
    for program in programs:  # each of them tells the same
        assert workers_by_role(program.plan) == wanted
    found = estimate_job(captured, programs[1], epl.Config(config), cluster(workers, devices, 1), ROWS)
    assert [list(each.workers) for each in found] == wanted
    for each in found:
        for worker in each.workers:
            own = estimate_program(programs[worker], ROWS)[0]
            assert {name: m.lasting for name, m in own.items()} == {name: m.lasting for name, m in each.devices.items()}
            # Constants of a worker's own, its rank say, change how the graph optimizer orders what is by chance.
            peaks = {name: m.peak_bytes for name, m in each.devices.items()}
            assert {name: m.peak_bytes for name, m in own.items()} == pytest.approx(peaks, rel=0.05)


def test_only_what_the_training_needs_is_sent():
    """A worker also sends first values and what goes into checkpoints, in other steps."""
    with capture() as graph:
        model(2)
        captured = make_program(graph)
    sends = [
        [name for name in roots_of(program) if program.graph.nodes[name].op == "EplBroadcastSend"]
        for program in (compiled(captured, 4, 1, index) for index in range(2))
    ]
    assert [len(each) for each in sends] == [1, 1]
    assert "gradients" not in sends[0][0] and "gradients" in sends[1][0]


def test_a_line_for_each_device_up_to_a_number():
    with capture() as graph:
        model(2)
        captured = make_program(graph)
    place = cluster(6, 1)
    program = compiled(captured, 6, 1)
    found = estimate_job(captured, program, epl.Config(), place, ROWS)
    rows = re.findall(r"^  (worker \d CPU:0) +([\d.]+)", job_table(found, 6), re.M)
    assert [name for name, _ in rows] == ["worker %d CPU:0" % worker for worker in range(6)]
    assert len(re.findall("the peak is at operation", job_table(found, 6))) == 2
    short = job_table(found, 6, 4)
    assert "... and 2 further devices, the fullest of them with " in short and "Not gone through" not in short
    some = estimate_job(captured, program, epl.Config(), place, ROWS, most=1)
    assert "Not gone through: 3 further workers" in job_table(some, 6, 4)
    assert list(job_charts(found, 6)) == ["workers 0, 2, 4, CPU:0", "workers 1, 3, 5, CPU:0"]


def test_the_command_has_the_devices_of_all_workers(capsys, monkeypatch):
    with capture() as graph:
        model(2)
    options = preview.parser().parse_args(["--memory=", "--num_workers", "2", "train.py"])
    with monkeypatch.context() as patched:
        for key, value in preview._environment(options).items():
            patched.setenv(key, value)
        Env.get().reset(epl.Config())
        assert preview.show(graph, options) == 0
    Env.get().reset(epl.Config())
    printed = capsys.readouterr().out
    assert "worker 0 GPU:0" in printed and "worker 1 GPU:0" in printed
