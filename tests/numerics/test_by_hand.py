"""Optimizers that programs write themselves, and what they keep of the data, are those of one device."""

import pytest

from tests.helpers.checks import assert_same_state, assert_same_training, pairs
from tests.helpers.remote import RemoteError

TRAIN = "tests.helpers.programs.by_hand:train"
SUM = {"communication.gradients_reduce_method": "sum"}


def check(got, want):
    assert sorted(got) == sorted(want)
    for name in want:
        assert_same_training(got[name], want[name])


def test_slices_as_they_come(plain, two_devices):
    check(two_devices(TRAIN, ["sparse"]), plain(TRAIN, ["sparse"]))


def test_slices_that_are_read_by_their_rows_take_no_micro_batches(two_devices):
    with pytest.raises(RemoteError, match="operations of their own, or leave pipeline.num_micro_batch at 1"):
        two_devices(TRAIN, ["sparse"], {"pipeline.num_micro_batch": 2})


@pytest.mark.parametrize("options", [{}, {"resource": True, "tape": True}], ids=["gradients", "tape"])
def test_two_devices(plain, two_devices, options):
    check(two_devices(TRAIN, **options), plain(TRAIN, **options))


def test_two_workers(plain, two_workers):
    names = ["accumulated", "adam"]
    want = plain(TRAIN, names)
    for got in two_workers(TRAIN, names):
        check(got, want)


def test_a_sum_of_sums_is_not_summed_again(plain, two_devices):
    want = plain(TRAIN, ["accumulated", "steady"], factor=2.0)
    check(two_devices(TRAIN, ["accumulated", "steady"], config=SUM), want)


@pytest.mark.parametrize("stages", [1, 2])
def test_micro_batches(plain, two_devices, stages):
    config = {"pipeline.num_micro_batch": 2}
    check(two_devices(TRAIN, config=config, stages=stages), plain(TRAIN))


def test_clip_after_all_reduce(plain, two_devices):
    check(two_devices(TRAIN, config={"communication.clip_after_allreduce": True}), plain(TRAIN))


@pytest.mark.parametrize("layout", ["two_devices", "two_by_two"])
def test_averages_extremes_and_counts(request, plain, layout):
    want, got = (
        plain("tests.helpers.programs.kept:train"),
        request.getfixturevalue(layout)("tests.helpers.programs.kept:train"),
    )
    for states in got if layout == "two_by_two" else [got]:
        for one, other in pairs(states, want):
            assert_same_state(one, other)
