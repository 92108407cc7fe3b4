"""Losses and feeds that do not divide as a mean over the rows of a batch does come to what one device computes."""

import pytest

from tests.helpers.checks import assert_same, assert_same_state, differs
from tests.helpers.remote import RemoteError

LOSSES = "tests.helpers.programs.losses:"


@pytest.mark.parametrize("micro_batches, rows", [(1, 2), (1, 8), (2, 4), (2, 8)])
def test_fixed_placeholders_have_the_rows_of_open_ones(plain, two_devices, two_workers, micro_batches, rows):
    want = plain(LOSSES + "fixed_beside_open", rows)
    config = {"pipeline.num_micro_batch": micro_batches}
    assert_same(two_devices(LOSSES + "fixed_beside_open", rows, config), want)
    want = plain(LOSSES + "fixed_beside_open", 2 * rows)
    for got in two_workers(LOSSES + "fixed_beside_open", 2 * rows, config):
        assert_same(got, want)


def test_fixed_placeholders_that_would_have_to_be_divided(two_devices):
    with pytest.raises(RemoteError) as caught:
        two_devices(LOSSES + "fixed_beside_open", 4, {"local_sgd.k_steps": 2})
    assert "UnsupportedError" in caught.value.bases
    assert "'observations:0' is fed 4 rows, as many as 'labels:0', which is divided over the 2" in caught.value.message
    assert "Leave the first dimension open" in caught.value.message


KINDS = ["sum", "vector", "mean", "sum_and_penalty", "sum_mean_and_penalty", "weighted_sum", "stacked"]


@pytest.mark.parametrize("kind", KINDS)
def test_terms_of_losses_are_those_of_the_whole_batch(plain, two_devices, two_workers, kind):
    want = plain(LOSSES + "train_by", kind)
    results = [two_devices(LOSSES + "train_by", kind, {"pipeline.num_micro_batch": 2})]
    results += two_workers(LOSSES + "train_by", kind)
    for got in results:
        assert_same_state(got["states"][-1], want["states"][-1])
        if kind != "vector":  # of rows a fetch gets those of the first copy
            assert_same(got["losses"], want["losses"])


QUOTIENTS = ["ratio", "ratio_sum_and_penalty", "ratio_of_at_least_1", "mean_of_chosen", "mean_of_chosen_logits"]


@pytest.mark.parametrize("kind", QUOTIENTS)
def test_quotients_are_those_of_the_whole_batch(plain, two_devices, two_workers, kind):
    """Of a sum over rows by what the data says, which is more in some parts of the batch than in others."""
    want = plain(LOSSES + "train_by", kind)
    results = [two_devices(LOSSES + "train_by", kind), two_devices(LOSSES + "train_by", kind, weights=(2, 1))]
    for got in results + two_workers(LOSSES + "train_by", kind):
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


@pytest.mark.parametrize("kind", ["mean", "mean_and_penalty", "sum_by_rows", "weighted_sum"])
def test_means_over_last_batches_that_are_shorter(plain, two_devices, two_workers, kind):
    """One copy of the model has 8 rows at the last step, the other has 5."""
    want = plain(LOSSES + "train_to_the_end", kind)
    for got in [two_devices(LOSSES + "train_to_the_end", kind)] + two_workers(LOSSES + "train_to_the_end", kind):
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


@pytest.mark.parametrize("kind", ["mean", "mean_and_penalty", "sum_by_rows", "weighted_sum", "stacked"])
def test_means_over_rows_that_workers_are_fed(plain, two_workers, kind):
    """One is fed 7 rows and the other 5, then both as many, then all and none."""
    want = plain(LOSSES + "train_by", kind)
    for got in two_workers(LOSSES + "train_by", kind, cuts=(7, 6, 12)):
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


@pytest.mark.parametrize(
    "job, config, stages, cuts",
    [
        ((2, 2), {"zero.level": "v1"}, False, (7, 6, 4)),  # of 7 a worker's copies cannot have equal parts
        ((2, 2), {}, False, (8, 6, 3)),
        ((2, 2), {"pipeline.num_micro_batch": 2}, True, (8, 6, 4)),
        ((2, 1), {"pipeline.num_micro_batch": 2, "zero.level": "v3"}, False, (8, 6, 2)),
    ],
    ids=str,
)
def test_rows_that_workers_are_fed_with_other_settings(plain, jobs, job, config, stages, cuts):
    want = plain(LOSSES + "train_by", "sum_mean_and_penalty", stages=stages)
    for got in jobs[job](LOSSES + "train_by", "sum_mean_and_penalty", config, stages=stages, cuts=cuts):
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


SETTINGS = [{"zero.level": "v3"}, {"communication.clip_after_allreduce": True}]
FURTHER = [{"zero.level": "v1"}, {"gradient_checkpoint.type": "auto"}, {"optimizer.num_apply_group": 2}]


@pytest.mark.parametrize(
    "config", SETTINGS + [pytest.param(each, marks=pytest.mark.exhaustive) for each in FURTHER], ids=str
)
def test_terms_with_other_settings(plain, two_devices, two_workers, config):
    want = plain(LOSSES + "train_by", "ratio_sum_and_penalty")
    results = [two_devices(LOSSES + "train_by", "ratio_sum_and_penalty", config)]
    for got in results + two_workers(LOSSES + "train_by", "ratio_sum_and_penalty", config):
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


@pytest.mark.parametrize("kind", ["sum", "sum_mean_and_penalty"])
def test_terms_in_the_last_stage_of_a_pipeline(plain, two_devices, four_devices, kind):
    want = plain(LOSSES + "train_by", kind, stages=True)
    for call in (two_devices, four_devices):
        got = call(LOSSES + "train_by", kind, {"pipeline.num_micro_batch": 3}, stages=True)
        assert_same_state(got["states"][-1], want["states"][-1])
        assert_same(got["losses"], want["losses"])


@pytest.mark.parametrize("kind", ["sum_mean_and_penalty", "weighted_sum"])
def test_devices_of_different_weight(plain, two_devices, kind):
    want, got = plain(LOSSES + "train_by", kind), two_devices(LOSSES + "train_by", kind, weights=(2, 1))
    assert_same_state(got["states"][-1], want["states"][-1])
    assert_same(got["losses"], want["losses"])


def test_means_and_sums_that_are_asked_for(plain, two_devices):
    """Each counts all terms alike, so neither is what one device computes of a sum and a penalty."""
    want = plain(LOSSES + "train_by", "sum_and_penalty")
    for method in ("mean", "sum"):
        got = two_devices(LOSSES + "train_by", "sum_and_penalty", {"communication.gradients_reduce_method": method})
        assert differs(got, want, 1e-2)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_sizes_of_batches_are_counted_in_all_copies(plain, two_devices, two_workers, micro_batches):
    config = {"pipeline.num_micro_batch": micro_batches}
    results = [plain(LOSSES + "counted_rows"), two_devices(LOSSES + "counted_rows", config)]
    for counted, trained_on in results + two_workers(LOSSES + "counted_rows", config):
        assert list(counted) == trained_on
