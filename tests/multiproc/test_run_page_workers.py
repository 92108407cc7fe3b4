"""`epl-launch --report`: the page of a job that trains, and of one that fails."""

import pytest

from tests.helpers import processes

pytestmark = pytest.mark.either_line

PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
x = tf.placeholder(tf.float32, [None, 4])
loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - 1.0))
step = tf.train.get_or_create_global_step()
train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
with tf.train.MonitoredTrainingSession() as session:
    for number in range(60):
        session.run([loss, train_op, step], {x: [[1.0] * 4] * 8})
        if len(sys.argv) > 1 and number == 30 and epl.Env.get().cluster.worker_index == 1:
            raise KeyError("row 31")
"""


def launch(template, folder, *arguments):
    (folder / "train.py").write_text(PROGRAM)
    command = ["-m", "epl.launch", "--num_workers", "2", "--report", str(folder / "run.html"), "train.py"]
    log = str(folder / "log")
    ended = template.python(command + list(arguments), processes.clean_environment(), log, str(folder)).wait(300)
    return ended, (folder / "run.html").read_text(encoding="utf-8")


def test_a_job_that_trains(template, tmp_path):
    ended, page = launch(template, tmp_path)
    assert ended.code == 0 and "the page of the run: %s" % (tmp_path / "run.html") in ended.output, ended
    for said in (
        "Where time went",
        "Where a step&#x27;s time goes",
        "worker 1 CPU:0",
        "The last steps",
        "Until the first step",
        "2 model replicas on 2 workers",
        "step 60",
    ):
        assert said in page, said
    assert "What is exchanged" in page and "all workers ended well" in page and "Why it failed" not in page


def test_a_job_that_fails(template, tmp_path):
    ended, page = launch(template, tmp_path, "fail")
    assert ended.code != 0
    assert "Why it failed" in page and "row 31" in page and "worker 1" in page
