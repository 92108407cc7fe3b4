"""LocalSGD on two devices of a worker: copies by themselves, and their averages, as plain TensorFlow simulates them."""

import pytest

from tests.helpers.checks import assert_same_state, assert_same_training
from tests.helpers.programs.local_sgd import LATE, STEPS, assert_states, simulated_late

PROGRAMS = "tests.helpers.programs.local_sgd:"


def periods(k_steps, begin_step=0):
    """The steps after which copies are averaged."""
    return sorted(set(range(1, begin_step + 1)) | set(range(begin_step + k_steps, STEPS + 1, k_steps)))


@pytest.mark.parametrize(
    "optimizer, k_steps, begin_step, average_slots",
    [("adam", 3, 0, True), ("momentum", 4, 3, False), ("normed", 5, 0, True)],
)
def test_two_devices(plain, two_devices, optimizer, k_steps, begin_step, average_slots):
    config = {
        "local_sgd.k_steps": k_steps,
        "local_sgd.begin_step": begin_step,
        "local_sgd.average_slots": average_slots,
    }
    want, initial = plain(PROGRAMS + "simulate", 2, optimizer, periods(k_steps, begin_step), average_slots)
    got, first = two_devices(PROGRAMS + "train", config, optimizer)
    assert_same_state(first, initial)
    assert_same_training(got, want[0])


def test_late_averages_of_two_devices(two_devices):
    got, first = two_devices(PROGRAMS + "train", dict(LATE, **{"local_sgd.begin_step": 4}), "momentum")
    assert_states(got["states"], simulated_late(first, 2, 4, 0, STEPS), 0)


@pytest.mark.parametrize(
    "kind, text",
    [
        ("stages", "local_sgd.k_steps cannot be used with a model of several stages"),
        ("counter", "local_sgd cannot average the variable 'seen', which is not of floating-point numbers"),
    ],
)
def test_what_does_not_compose_is_refused_by_name(jobs, kind, text):
    message = jobs[1, 4](PROGRAMS + "refused", {"local_sgd.k_steps": 2}, kind)[0]
    assert message is not None and message.startswith(text), message
