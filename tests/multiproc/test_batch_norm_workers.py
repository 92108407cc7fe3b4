"""Synchronised batch normalisation over worker processes is that of one device on the global batch."""

import pytest

from tests.helpers.checks import assert_same, assert_same_training

BATCH_NORM = "tests.helpers.programs.batch_norm:"
# Of a tensor's largest number: gradients of normalised values are small differences of large sums, and processors round
# these in different ways.
ATOL = 5e-6


@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize("layout", [(2, 1), (2, 2)], ids=str)
def test_equals_one_device(plain, jobs, kind, layout):
    want = plain(BATCH_NORM + "train", kind)
    for got in jobs[layout](BATCH_NORM + "train", kind, splits=3):
        assert_same_training(got, want, atol=ATOL)
        assert_same(got["evaluated"], want["evaluated"])
