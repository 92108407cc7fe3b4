"""Synchronised batch normalisation over two devices is that of one device on the global batch."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same, assert_same_training, differs

BATCH_NORM = "tests.helpers.programs.batch_norm:"


@pytest.mark.parametrize("kind", ["fused", "plain", "keras", "moments", "channels_first"])
def test_equals_one_device(plain, two_devices, kind):
    want = plain(BATCH_NORM + "train", kind)
    got = two_devices(BATCH_NORM + "train", kind)
    assert_same_training(got, want)
    assert_same(got["evaluated"], want["evaluated"])


def test_without_it_each_replica_normalises_its_own_batch(plain, two_devices):
    want = plain(BATCH_NORM + "train", "fused")
    assert differs(two_devices(BATCH_NORM + "train", "fused", sync=False), want, 1e-3)


def test_half_precision(plain, two_devices):
    want, got = plain(BATCH_NORM + "half"), two_devices(BATCH_NORM + "half")
    for one, other in zip(got, want):
        assert_same(one, other, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-3)


@pytest.mark.parametrize("what, text", [("branch", "stands in"), ("loop", "stands in"), ("second order", "again"),
                                        ("second order of moments", "again")])  # fmt: skip
def test_what_cannot_be_synchronised(two_devices, what, text):
    message = two_devices(BATCH_NORM + "refused", what)
    assert "communication.sync_batch_norm" in message and text in message
