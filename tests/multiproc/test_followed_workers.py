"""What a worker's board shows of the training: steps, the end that the program wants, its loss, rows, waiting."""

import math

import pytest

from tests.helpers.programs.followed import ROWS, STEPS

PROGRAM = "tests.helpers.programs.followed:"


@pytest.mark.parametrize("io_stats", [False, True])
def test_sessions(two_workers, io_stats):
    for shown, loss, steps in two_workers(PROGRAM + "session", io_stats):
        assert steps == shown["steps"] == 2 * STEPS
        assert shown["total"] == shown["steps"] + shown["offset"] == 2 * STEPS
        assert shown["loss"] == loss and shown["rows"] == ROWS
        assert 0 < shown["waited_others_s"] <= shown["in_steps_s"]
        assert math.isnan(shown["waited_data_s"]) != io_stats


def test_feeds(two_devices):
    shown = two_devices(PROGRAM + "fed")
    assert (shown["steps"], shown["rows"]) == (STEPS, ROWS)
    assert math.isnan(shown["loss"]) and math.isnan(shown["total"])


@pytest.mark.parametrize("kind, wanted", [("keras", 2 * STEPS), ("estimator", STEPS)])
def test_front_ends(two_workers, kind, wanted):
    for shown in two_workers(PROGRAM + kind):
        assert shown["steps"] == shown["total"] == wanted
        assert shown["loss"] > 0


def test_one_device_has_a_loss_too(jobs):
    """With one copy of the model nothing of a loss has to be planned."""
    ((shown, loss, _),) = jobs[1, 1](PROGRAM + "session", False)
    assert shown["loss"] == loss
