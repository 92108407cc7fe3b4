"""Parameters that two devices divide train as one device's do, where each lies in the memory of the host."""

import pytest

from tests.helpers.checks import assert_same_training
from tests.numerics.test_pipelines import ATOL, PIPELINES

CLASSIFIER = "tests.helpers.programs.gradients:classifier"
ONCE = {"zero.level": "v2", "offload.level": "v1"}
IN_SEGMENTS = {"zero.level": "v3", "zero.segment_mb": 1e-4, "offload.level": "v0"}


@pytest.mark.each_line
@pytest.mark.parametrize("config", [ONCE, IN_SEGMENTS], ids=["v2", "v3"])
def test_two_devices(plain, two_devices, config):
    want = plain(CLASSIFIER, None, "adam")
    assert_same_training(two_devices(CLASSIFIER, config, "adam"), want)


@pytest.mark.parametrize("model", ["tied_mlp", pytest.param("batch_norm_cnn", marks=pytest.mark.exhaustive)])
def test_two_stages_of_two_copies_with_micro_batches(by_hand, four_devices, model):
    config = {"zero__level": "v3", "zero__segment_mb": 1e-4, "offload__level": "v1"}
    want = by_hand(model, 2, 2)
    assert_same_training(four_devices(PIPELINES + "train", 4, model, 2, 2, 2, **config), want, atol=ATOL)
