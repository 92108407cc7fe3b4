"""epl-top: of a job without any option, the worker and the operation that the others wait for are named."""

import json
import os
import re
import signal

import pytest

from tests.helpers.held_up_job import IN_STEP, NAMES, HeldUp, row
from tests.helpers.launching import Launch

pytestmark = pytest.mark.either_line


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    started = HeldUp(tmp_path_factory.mktemp("held"))
    try:
        started.until(lambda: re.search(r"(?m)^1 +\d+ +[1-9]\d+ ", started.once()), "training")
        yield started
    finally:
        started.close()


@pytest.mark.parametrize(
    "fault", ["sleeps", "endless_loop", "endless_call", "holds_the_interpreter", "starved", "other_fetches", "slow"]
)
def test_who_is_late_is_named(job, fault):
    job.begin(fault)
    text = job.once()
    job.end()
    assert re.search(NAMES[fault], text), text
    assert "late: worker 0" not in text
    if fault != "slow":
        before = "the exchange before a step, for which all workers have to"
        assert "in " + ("all_reduce 'epl_aggregate/" if fault in IN_STEP else before) in row(text, 0), text


def test_a_stopped_worker_is_named(job):
    pid = job.stop()
    try:
        assert job.until(lambda: re.search(NAMES["stopped"], job.once()), "named")
    finally:
        os.kill(pid, signal.SIGCONT)
    job.end()


def test_all_stacks_and_a_timeline(job, tmp_path):
    text = job.top("--once", "--stacks", str(job.process.pid))[1]
    assert re.search(r"worker 0:\nthread that trains:\n", text) and "held_up.py" in text, text
    path = str(tmp_path / "timeline.json")
    status, said = job.top("--flight", path, str(job.process.pid))
    assert (status, said) == (0, "wrote %s, for https://ui.perfetto.dev or chrome://tracing\n" % path)
    traced = open(path).read()
    assert "agreement on a step" in traced and re.search(r'"name": "step \d+"', traced)


def test_no_such_job(job):
    status, said = job.top("--once", "1")
    assert status == 2
    assert said.startswith("epl-top: error: no job is called 1. By the launcher's process id there are:\n  ")


FAILS = """\
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.ones([8, 4]), 1)))
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(20):
        if step == 10 and epl.Env.get().cluster.worker_index == 1:
            raise ValueError("no such luck")
        sess.run(train)
"""


def test_the_last_events_are_kept_after_a_bad_end(tmp_path):
    (tmp_path / "train.py").write_text(FAILS)
    job = Launch(tmp_path, ["--num_workers", "2", "--device", "cpu", "--log_dir", "logs", "train.py"], verbose=False)
    status, out, err = job.wait()
    assert status == 1 and "ValueError: no such luck" in err
    assert "[epl-launch] the last events of all workers: logs/timeline.json (for https://ui.perfetto.dev)" in out
    assert sorted(os.listdir(str(tmp_path / "logs"))) == ["timeline.json", "worker-0.log", "worker-1.log"]
    events = json.loads((tmp_path / "logs" / "timeline.json").read_text())["traceEvents"]
    for worker in range(2):
        names = [event["name"] for event in events if event["pid"] == worker]
        assert [name for name in names if name.startswith("step ")] == ["step %d" % n for n in range(1, 11)]
        assert names.index("planning") < names.index("rewriting the graph") < names.index("building the graph")
        assert sum("all_reduce epl_aggregate" in name for name in names) == 10
        assert sum("no such luck" in name for name in names) == 1
