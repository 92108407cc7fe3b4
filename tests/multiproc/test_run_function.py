"""epl.run: a function in worker processes, from a program that has not loaded TensorFlow."""

import contextlib
import io
import os
import threading

import pytest

import epl
from epl.errors import LaunchError, WorkerError
from epl.launch.function import RemoteTraceback

pytestmark = pytest.mark.either_line
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(autouse=True)
def workers_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    monkeypatch.delenv("TF_CONFIG", raising=False)


def shown(function, *args, **kwargs):
    """(value of epl.run, what was shown)."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        value = epl.run(function, *args, **kwargs)
    return value, text.getvalue()


def index_of_worker():
    """What a light worker of these tests is; it has come to epl.init() as far as the launcher knows."""
    import json as json_here
    import os as os_here

    with open(os_here.environ["EPL_LAUNCH_NOTE"], "w") as stream:
        stream.write('{"state": "joined"}\n')
    return json_here.loads(os_here.environ["TF_CONFIG"])["task"]["index"]


def test_it_trains_and_the_value_of_worker_0_comes_back(tmp_path):
    rate = 0.1  # a cell's own

    def train(steps, rows=4):
        import tensorflow.compat.v1 as tf

        import epl as epl_here

        tf.disable_v2_behavior()
        epl_here.init()
        epl_here.set_default_strategy(epl_here.replicate(1))
        index = epl_here.Env.get().cluster.worker_index
        x = tf.ones([rows, 1]) * (index + 1.0)
        w = tf.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        step = tf.train.GradientDescentOptimizer(rate).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(steps):
                sess.run(step)
            print("worker %d is through" % index)
            return index, float(sess.run(w)[0, 0])

    (index, got), text = shown(train, num_workers=2, args=(2,), kwargs={"rows": 3})
    want = 0.0  # gradients of the mean over x = 1 and x = 2
    for _ in range(2):
        want -= rate * ((want - 1.0) + 2.0 * (2.0 * want - 1.0))
    assert index == 0 and got == pytest.approx(want, rel=1e-5)
    assert "[worker 0] worker 0 is through" in text and "worker 1 is through" not in text
    assert os.listdir(str(tmp_path)) == []


def test_again_and_lambdas(tmp_path):
    find = index_of_worker
    assert [shown(lambda: (find(), n), num_workers=2)[0] for n in range(2)] == [(0, 0), (0, 1)]
    assert os.listdir(str(tmp_path)) == []


def test_an_error_comes_with_the_place_in_the_worker():
    find = index_of_worker

    def fails():
        if find() == 0:
            raise KeyError("no such key")

    with pytest.raises(KeyError, match="no such key") as raised:
        shown(fails, num_workers=2)
    cause = raised.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in worker 0" in str(cause) and 'raise KeyError("no such key")' in str(cause)


def test_the_worker_that_began_it_counts():
    find = index_of_worker

    def fails():
        from epl.errors import WorkerError as FromOther

        raise ValueError("mine") if find() == 1 else FromOther("worker 1 failed", worker=1)

    with pytest.raises(ValueError, match="mine"):
        shown(fails, num_workers=2)


def test_an_error_that_cannot_be_sent_is_told():
    find = index_of_worker

    def fails():
        find()

        class Strange(Exception):
            def __init__(self, one, two):
                super().__init__("%s and %s" % (one, two))

        raise Strange(1, 2)

    with pytest.raises(WorkerError, match="worker 0 failed: .*Strange: 1 and 2"):
        shown(fails)


def test_a_worker_that_is_killed():
    def dies():
        import os as os_here

        os_here.kill(os_here.getpid(), 9)

    with pytest.raises(WorkerError, match=r"(?s)did not end well:.*worker 0 failed after .* killed by SIGKILL"):
        shown(dies)


def test_without_init():
    with pytest.raises(WorkerError, match="no worker came to epl.init()"):
        shown(lambda: 3)


def test_a_value_that_cannot_be_sent():
    find = index_of_worker

    def gives():
        import threading as threading_here

        find()
        return threading_here.Lock()

    with pytest.raises(TypeError, match="what the function returns, a lock, cannot be sent to the process"):
        shown(gives)


def test_what_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="epl.run cannot send the function to other processes: .*lock"):
        epl.run(lambda: lock)
    with pytest.raises(LaunchError, match=r"got a int. Give the function itself: epl.run\(train\)"):
        epl.run(3)


def test_options_of_the_launcher_are_wrong():
    with pytest.raises(LaunchError, match="unknown option --progres"):
        shown(lambda: 3, options=["--progres"])
