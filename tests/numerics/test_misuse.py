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
    error = refused(two_devices, MISUSE + "feed_rows", 7, {"zero.level": "v1"})
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
