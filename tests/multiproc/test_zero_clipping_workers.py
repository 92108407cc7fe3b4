"""What is clipped after it is aggregated, by all gradients or by one, when each device updates some variables only."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_state, pairs
from tests.helpers.tricks_checks import check

NAMES = ["clip_global", "clip_own", "clip_norm", "clip_value"]
AFTER = {"communication.clip_after_allreduce": True}


@pytest.mark.parametrize(
    "layout, config",
    [
        ((2, 1), {"zero.level": "v1"}),
        ((2, 1), {"zero.level": "v3", "pipeline.num_micro_batch": 2}),
        pytest.param((2, 2), {"zero.level": "v2", "optimizer.num_apply_group": 2}, marks=pytest.mark.once),
        pytest.param((1, 2), {"zero.level": "v1"}, marks=pytest.mark.exhaustive),
    ],
    ids=lambda each: each["zero.level"] if isinstance(each, dict) else "%dx%d" % each,
)
def test_after_aggregation(plain, jobs, layout, config):
    check(plain, jobs[layout], NAMES, dict(AFTER, **config))


FETCHES = "tests.helpers.programs.zero:fetches_of_clipping"


def assert_same_fetches(got, want):
    assert len(want[0]) > 1
    for step, wanted in pairs(got[0], want[0]):
        for value, expected in pairs(step, wanted):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
    assert_same_state(got[1], want[1])


@pytest.mark.once
def test_a_program_fetches_what_owners_clip(plain, two_workers):
    want = plain(FETCHES)
    found = two_workers(FETCHES, dict(AFTER, **{"zero.level": "v1"}))
    assert len(found) == 2
    for got in found:
        assert_same_fetches(got, want)
