"""Losses and feeds that do not divide as a mean over the rows of a batch does come to what one device computes."""

import pytest

from tests.helpers.checks import assert_same
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
        two_devices(LOSSES + "fixed_beside_open", 4, {"zero.level": "v1"})
    assert "UnsupportedError" in caught.value.bases
    assert "'observations:0' is fed 4 rows, as many as 'labels:0', which is divided over the 2" in caught.value.message
    assert "Leave the first dimension open" in caught.value.message
