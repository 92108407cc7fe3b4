"""Metrics, summaries and merged fetches of two devices are those of one device on the global batch."""

import pytest

from tests.helpers import outputs_checks as checks
from tests.helpers.checks import assert_same

OUTPUTS = "tests.helpers.programs.outputs:"


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_metrics(plain, two_devices, micro_batches):
    got = two_devices(OUTPUTS + "metrics", micro_batches=micro_batches)
    checks.assert_same_metrics(got, plain(OUTPUTS + "metrics"))


def test_summaries(plain, two_devices, tmp_path):
    want = plain(OUTPUTS + "summaries", str(tmp_path / "plain"))
    checks.assert_same_summaries(two_devices(OUTPUTS + "summaries", str(tmp_path / "epl")), want)


@pytest.mark.each_line
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_merged_fetches(two_devices, micro_batches):
    """A micro-batch has its rows as a device has."""
    checks.assert_merged_as_named([two_devices(OUTPUTS + "merged", micro_batches)], devices=2 * micro_batches)


def test_fetches_that_are_merged_after_the_first_run(plain, two_devices):
    _, want = plain(OUTPUTS + "merged_later")
    _, got = two_devices(OUTPUTS + "merged_later")
    assert_same(got, want, what="losses")


def test_tensors_that_cannot_be_merged(two_devices):
    integer, text, truth, key, number = two_devices(OUTPUTS + "refused_merges")
    assert integer.startswith("PlanError") and "collection of means but holds no floating-point numbers" in integer
    assert text.startswith("PlanError") and "string" in text and "CONCAT" in text
    assert truth.startswith("PlanError") and "bool" in truth
    assert key.startswith("CollectionKeyError") and "'means' is none of the collections" in key
    assert number.startswith("CaptureError") and "takes tensors" in number
