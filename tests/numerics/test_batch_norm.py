"""Synchronised batch normalisation over two devices is that of one device on the global batch."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same, assert_same_training, differs, pairs
from tests.numerics.test_pipelines import ATOL

BATCH_NORM = "tests.helpers.programs.batch_norm:"
PIPELINES = "tests.helpers.programs.pipelines:"
SYNCED = {"communication__sync_batch_norm": True}


@pytest.mark.parametrize("kind", ["fused", "plain", "keras", "moments", "channels_first"])
def test_equals_one_device(plain, two_devices, kind):
    want = plain(BATCH_NORM + "train", kind)
    got = two_devices(BATCH_NORM + "train", kind)
    assert_same_training(got, want)
    assert_same(got["evaluated"], want["evaluated"])


@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize("scope", ["replicate", "split"])
def test_copies_whose_devices_divide_tensors(plain, four_devices, kind, scope):
    want = plain(BATCH_NORM + "divided", kind, scope)
    assert_same_training(four_devices(BATCH_NORM + "divided", kind, scope), want)


def test_without_it_each_replica_normalises_its_own_batch(plain, two_devices):
    want = plain(BATCH_NORM + "train", "fused")
    assert differs(two_devices(BATCH_NORM + "train", "fused", sync=False), want, 1e-3)


def test_half_precision(plain, two_devices):
    want, got = plain(BATCH_NORM + "half"), two_devices(BATCH_NORM + "half")
    for one, other in pairs(got, want):
        assert_same(one, other, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-3)


@pytest.mark.parametrize("what, text", [("branch", "stands in"), ("loop", "stands in"), ("second order", "again"),
                                        ("second order of moments", "again")])  # fmt: skip
def test_what_cannot_be_synchronised(two_devices, what, text):
    message = two_devices(BATCH_NORM + "refused", what)
    assert "communication.sync_batch_norm" in message and text in message


@pytest.mark.parametrize("model", ["batch_norm_cnn", pytest.param("moments_cnn", marks=pytest.mark.once)])
def test_micro_batches_with_one_number_are_normalised_together(by_hand, two_devices, model):
    want = by_hand(model, 3, 2, together=True)
    got = two_devices(PIPELINES + "train", 2, model, 1, 3, 2, **SYNCED)
    assert_same_training(got, want, atol=ATOL)
    alone = two_devices(PIPELINES + "train", 2, model, 1, 3, 2)
    assert differs(alone, want, 1e-3)


@pytest.mark.parametrize(
    "model, stages, micro_batches, strategy, chunks",
    [
        ("batch_norm_cnn", 2, 4, "PreferBackward", 1),
        ("moments_cnn", 2, 4, "PreferForward", 1),
        pytest.param("batch_norm_cnn", 2, 4, "ZeroBubble", 1, marks=pytest.mark.once),
        ("batch_norm_cnn", 4, 4, "Interleaved", 2),
    ],
)
def test_in_pipelines(by_hand, two_devices, model, stages, micro_batches, strategy, chunks):
    want = by_hand(model, micro_batches, 2, together=True)
    devices = 2 * stages // chunks
    got = two_devices(PIPELINES + "train", devices, model, stages, micro_batches, 2, strategy, chunks, **SYNCED)
    assert_same_training(got, want, atol=ATOL)
