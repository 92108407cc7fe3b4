"""What EPL refuses, and what it says."""

import re

import pytest

from tests.helpers import processes
from tests.helpers.remote import RemoteError

MISUSE = "tests.helpers.programs.misuse:"


def refused(call, *args):
    with pytest.raises(RemoteError) as caught:
        call(*args)
    return caught.value


def test_nested_scopes_name_both_places(two_devices):
    error = refused(two_devices, MISUSE + "nested_scopes")
    assert "EplError" in error.bases
    lines = re.findall(r"misuse\.py\D{0,10}(\d+)", error.message)
    assert len(set(lines)) == 2, error.message
    assert abs(int(lines[0]) - int(lines[1])) == 1


def test_more_devices_than_there_are(two_devices):
    error = refused(two_devices, MISUSE + "replicate_over", 3)
    assert "PlanError" in error.bases and "ValueError" in error.bases
    assert re.search(r"\b3\b", error.message) and re.search(r"\b2\b", error.message)


def test_device_count_that_does_not_divide(four_devices):
    error = refused(four_devices, MISUSE + "replicate_over", 3)
    assert "PlanError" in error.bases
    assert re.search(r"\b3\b", error.message) and re.search(r"\b4\b", error.message)


def test_batch_that_does_not_divide(two_devices):
    error = refused(two_devices, MISUSE + "feed_rows", 7, {"local_sgd.k_steps": 2})
    assert re.search(r"\b7\b", error.message) and re.search(r"\b2\b", error.message)
    assert re.search(r"\b(x|labels)\b", error.message)


def test_eager_mode_is_refused(template, tmp_path):
    program = (
        "import tensorflow.compat.v1 as tf\ntf.enable_eager_execution()\nimport epl\nepl.init()\n"
        "with epl.replicate(1):\n  tf.constant(1.0) + 1.0\nprint('went through')\n"
    )
    child = template.python(["-c", program], processes.worker_environments(1, 2)[0], tmp_path / "log")
    ended = child.wait(60)
    assert ended.code == 1, ended
    assert "went through" not in ended.output
    last = ended.output.strip().splitlines()[-1]
    assert "eager" in last and re.search(r"disable_eager_execution|disable_v2_behavior|tf\.Graph", last), ended


BEFORE = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nimport epl\n"
TRAINED = """
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(tf.layers.dense(tf.ones([4, 1]), 1)))
session = session if "session" in globals() else tf.Session()
session.run(tf.global_variables_initializer()); session.run(train)
"""
AGAIN = "def model():" + TRAINED.replace("\n", "\n  ") + "\nfor _ in range(2): epl.init(); %s model()\n"
WRONG_ORDER = {
    "strategy": ("epl.set_default_strategy(epl.replicate(1))", r"epl\.set_default_strategy at train.py:4 comes before"),
    "scope": ("with epl.split(2): pass", r"epl\.split at train.py:4 comes before"),
    "block": ("with epl.recompute(): pass", r"epl\.recompute\(\) at train.py:4 comes before"),
    "forgotten": ("epl.Config()" + TRAINED, r"a session is opened before epl\.init\(\) in a worker of epl-launch"),
    "session": (
        "session = tf.Session(); epl.init()" + TRAINED,
        r"this session was opened before epl\.init\(\), so what",
    ),
    "again": (
        AGAIN % "epl.set_default_strategy(epl.replicate(1));",
        r"has parts of a model \(epl\.replicate at train\.py:\d+\) from before.*tf\.reset_default_graph\(\)",
    ),
    "again, no strategy": (AGAIN % "", r"has a model's training from before.*tf\.reset_default_graph\(\)"),
}


def as_worker(program, tmp_path, template=None, note=None):
    """What a program that is run as a worker came to; `note`: what the launcher has heard of it. Without `template` an
    interpreter of its own imports epl."""
    environ = processes.worker_environments(1, 1)[0]
    if note is not None:
        (tmp_path / "note").write_text(note)
        environ["EPL_LAUNCH_NOTE"] = str(tmp_path / "note")
    (tmp_path / "train.py").write_text(BEFORE + program + "\nprint('went through')\n")
    python = processes.python if template is None else template.python
    return python([str(tmp_path / "train.py")], environ, tmp_path / "log").wait(60)


@pytest.mark.parametrize("mistake", sorted(WRONG_ORDER))
def test_wrong_order_of_calls(template, tmp_path, mistake):
    program, words = WRONG_ORDER[mistake]
    launched = mistake == "forgotten"
    ended = as_worker(program, tmp_path, None if launched else template, "" if launched else None)
    last = [line for line in ended.output.splitlines() if line.startswith("epl.errors.CaptureError: ")]
    assert ended.code == 1 and len(last) == 1 and re.search(words, last[0]) and "epl.init()" in last[0], ended
    assert "went through" not in ended.output


def test_init_again_in_a_graph_of_its_own(template, tmp_path):
    begin = "epl.init()\nfor _ in range(2):\n  tf.reset_default_graph(); epl.init()\n"
    program = begin + ("epl.set_default_strategy(epl.replicate(1))\nsession = tf.Session()" + TRAINED).replace(
        "\n", "\n  "
    )
    ended = as_worker(program.replace("\nepl.set", "\n  epl.set"), tmp_path, template)
    assert ended.code == 0 and ended.output.strip().endswith("went through"), ended


def test_what_a_worker_starts_may_open_sessions(tmp_path):
    """It is no worker itself, though it imports epl and has the worker's variables."""
    ended = as_worker("epl.Config()" + TRAINED, tmp_path, note='{"state": "joined"}')
    assert ended.code == 0 and ended.output.strip().endswith("went through"), ended


@pytest.mark.parametrize("every, noticed", [(1, 5), (3, 6)])
def test_copies_that_drift_apart_are_noticed(two_devices, two_workers, every, noticed):
    outcomes = [two_devices(MISUSE + "drifting", every)] + two_workers(MISUSE + "drifting", every)
    for done, message in outcomes:
        assert done == noticed - 1, outcomes
        assert "variable 'hidden/kernel' is not the same everywhere after %d training steps" % noticed in message
    assert "worker 0, copy 0 and worker 0, copy 1 hold" in outcomes[0][1]
    assert all("worker 0, copy 0 and worker 1, copy 0 hold" in message for _, message in outcomes[1:])


def test_nobody_looks_unless_asked(two_devices):
    assert two_devices(MISUSE + "drifting", 0) == (8, "")
