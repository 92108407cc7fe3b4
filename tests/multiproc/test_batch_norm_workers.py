"""Synchronised batch normalisation over worker processes is that of one device on the global batch."""

import pytest

from tests.helpers.checks import assert_same, assert_same_training
from tests.numerics.test_pipelines import ATOL

BATCH_NORM = "tests.helpers.programs.batch_norm:"
PIPELINES = "tests.helpers.programs.pipelines:"
SYNCED = {"communication__sync_batch_norm": True}
# Of a tensor's largest number: gradients of normalised values are small differences of large sums. In four parts, and
# in the float32 of the fused kernels, processors round these in different ways; the plain ones are tested in float64.
WIDER = {("fused", (2, 2)): 5e-6}
# Four parts in two stages: the gradient of an offset is a sum of 1152 such differences.
WIDER_IN_STAGES = 1e-5


@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize("layout", [(2, 1), (2, 2)], ids=str)
def test_equals_one_device(plain, jobs, kind, layout):
    want = plain(BATCH_NORM + "train", kind)
    for got in jobs[layout](BATCH_NORM + "train", kind, splits=3):
        assert_same_training(got, want, atol=WIDER.get((kind, layout), 1e-6))
        assert_same(got["evaluated"], want["evaluated"])


@pytest.mark.parametrize(
    "layout, kind, scope", [((2, 2), "plain", "replicate"), ((2, 2), "fused", "split"), ((4, 1), "plain", "split")]
)
def test_copies_whose_devices_divide_tensors(plain, jobs, layout, kind, scope):
    want = plain(BATCH_NORM + "divided", kind, scope)
    for got in jobs[layout](BATCH_NORM + "divided", kind, scope):
        assert_same_training(got, want)


@pytest.mark.parametrize("model", ["batch_norm_cnn", "moments_cnn"])
def test_micro_batches_with_one_number_are_normalised_together(by_hand, two_workers, model):
    want = by_hand(model, 3, 2, together=True)
    for got in two_workers(PIPELINES + "train", 1, model, 1, 3, 2, **SYNCED):
        assert_same_training(got, want, atol=ATOL)


# Collectives of all stages of a worker, in the order of each schedule.
@pytest.mark.parametrize("strategy", ["PreferBackward", "PreferForward", "ZeroBubble"])
def test_a_pipeline_in_each_worker(by_hand, two_by_two, strategy):
    want = by_hand("batch_norm_cnn", 4, 2, together=True)
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 4, 2, strategy, **SYNCED):
        assert_same_training(got, want, atol=ATOL)


def test_several_stages_on_each_device(by_hand, two_by_two):
    want = by_hand("batch_norm_cnn", 4, 2, together=True)
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 4, 4, 2, "Interleaved", 2, **SYNCED):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("model, strategy", [("batch_norm_cnn", "PreferBackward"), ("moments_cnn", "PreferForward")])
def test_pipelines_over_workers(by_hand, jobs, model, strategy):
    want = by_hand(model, 4, 2, together=True)
    results = jobs[4, 1](PIPELINES + "train", 1, model, 2, 4, 2, strategy, **SYNCED)
    assert len(results) == 4
    for got in results:
        assert_same_training(got, want, atol=ATOL)


def test_two_replicas_over_the_same_two_workers(by_hand, two_by_two):
    want = by_hand("batch_norm_cnn", 2, 2, together=True)
    config = dict(SYNCED, cluster__device_place_prefer_intra_node=False, groups=1)
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, **config):
        assert_same_training(got, want, atol=WIDER_IN_STAGES)
