"""Random models in random layouts with random options that change no numbers, against one device.

`python -m tests.draws` tries many.
"""

import pytest

from tests.draws import ATOL, drawn, on_one_device, outcome, trained
from tests.helpers.checks import assert_same_training
from tests.helpers.remote import RemoteError

SEEDS = [1001, 1002] + [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1000, 1003, 5006, 5007, 5021)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models(jobs, by_hand, seed):
    want = on_one_device(by_hand, seed)
    for got in trained(jobs, seed):
        assert_same_training(got, want, atol=ATOL)


GOOD = {"losses": [2.0, 1.0], "states": [{"w": 1.0}, {"w": 0.5}]}


def fails(error):
    def call(*given, **more):
        raise error

    return call


@pytest.mark.parametrize(
    "job, kind",
    [
        (lambda *given, **more: [GOOD, GOOD], "right"),
        (lambda *given, **more: [GOOD, dict(GOOD, losses=[2.0, 1.1])], "wrong"),
        (fails(RemoteError("PlanError", ["ValueError"], "cannot", "")), "refused"),
        (fails(RemoteError("KeyError", ["LookupError"], "x", "")), "error"),
        (fails(AssertionError(" in tests.helpers:train: None\nits output")), "hang"),
        (fails(AssertionError(" in tests.helpers:train: -9\nits output")), "error"),
    ],
)
@pytest.mark.once
def test_what_comes_of_a_draw_is_told_apart(job, kind):
    class Jobs(dict):
        def __missing__(self, key):
            return (lambda *given, **more: [GOOD]) if key == "plain" else job

    assert outcome(Jobs(), 1)[0] == kind
    assert drawn(1) == drawn(1) != drawn(2)
