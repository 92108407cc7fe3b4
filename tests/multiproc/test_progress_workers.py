"""What a user sees of a job while it runs: on a terminal, and in a file."""

import os
import pty
import re

import pytest

from tests.helpers import processes
from tests.helpers.launching import Launch

pytestmark = pytest.mark.either_line

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICK_START = os.path.join(ROOT, "examples", "quickstart", "local_model.py")
TRAIN = """\
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
x = tf.constant(np.ones([8, 4], np.float32))
loss = tf.losses.mean_squared_error(tf.ones([8, 1]), tf.layers.dense(x, 1))
step = tf.train.get_or_create_global_step()
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=2000)]) as sess:
    while not sess.should_stop():
        sess.run([train, loss])
print("worker %d is through" % epl.Env.get().cluster.worker_index)
"""


def test_the_quick_start_says_little(template, tmp_path):
    """At most 15 lines, of which each is meant for the reader; the logs have everything."""
    arguments = ["-m", "epl.launch", "--num_workers", "2", "--gpu_per_worker", "1", "--device", "cpu"]
    arguments += ["--log_dir", str(tmp_path / "logs"), QUICK_START]
    environ = processes.clean_environment()
    environ.pop("TF_CPP_MIN_LOG_LEVEL", None)  # with it the console shows all that TensorFlow says
    ended = template.python(arguments, environ, str(tmp_path / "output"), str(tmp_path)).wait(200)
    assert ended.code == 0, ended
    # Where the start takes long, as beside other tests, a line every ten seconds says what it is at.
    lines = [line for line in ended.output.splitlines() if not re.match(r"\[epl-launch\] .*, \d+ s$", line)]
    own = [line for line in lines if line.startswith("[worker 0] ")]
    assert len(lines) <= 15, ended.output
    assert sum("Iteration" in line for line in own) == 10 and own[-1] == "[worker 0] Train Finished."
    assert re.match(r"\[worker 0\] epl: Plan: 2 model replicas on 2 workers", own[0])
    rest = [line for line in lines if line not in own]
    assert [line.split()[0] for line in rest] == ["[epl-launch]", "[epl-launch]"]
    assert re.match(r"\[epl-launch\] step 10 in 0:\d\d, [\d,.]+ samples/s, loss ", rest[1])
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert log.count("Iteration") == 10 and "Train Finished." in log


def test_a_line_on_a_terminal(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    ours, theirs = pty.openpty()
    arguments = ["--num_workers", "2", "--device", "cpu", "--log_dir", "logs", "train.py"]
    job = Launch(tmp_path, arguments, {"TERM": "xterm"}, verbose=False, stdout=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # nobody has the terminal any more
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    status, _, err = job.wait()
    assert (status, err) == (0, "")
    drawn = text.decode().replace("\r\n", "\n").split("\r\x1b[K")
    assert drawn[0].startswith("[epl-launch] 2 workers") and "\nstarting Python and TensorFlow, 0 s" in drawn[0]
    training = [line for line in drawn if re.match(r"step [\d,]+ of 2,000  loss [\d.e-]+", line)]
    assert training, drawn
    shown = [line for piece in drawn for line in piece.split("\n") if line.startswith("[") and "factory" not in line]
    assert "[worker 0] worker 0 is through" in shown and not any("worker 1" in line for line in shown)
    assert shown[-1].startswith("[epl-launch] step 2,000 of 2,000 in 0:")
    assert "worker 1 is through" in (tmp_path / "logs" / "worker-1.log").read_text()
    assert sorted(os.listdir(str(tmp_path / "logs"))) == ["worker-0.log", "worker-1.log"]
