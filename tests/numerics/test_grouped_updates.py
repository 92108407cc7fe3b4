"""Updates in groups, one after the other, together with replicas, micro-batches, stages and clipping."""

import pytest

from tests.helpers.checks import assert_same_training
from tests.numerics.test_pipelines import ATOL, PIPELINES

GRADIENTS = "tests.helpers.programs.gradients:"
GROUPS = {"optimizer__num_apply_group": 3}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_clipping_by_global_norm(plain, two_devices, micro_batches):
    config = dict(GROUPS, pipeline__num_micro_batch=micro_batches)
    got = two_devices(GRADIENTS + "clipped", 2, after=True, **config)
    assert_same_training(got, plain(GRADIENTS + "clipped", 1))


def test_sparse_gradients(plain, two_devices):
    config = {"optimizer.num_apply_group": 2}
    assert_same_training(two_devices(GRADIENTS + "embedding", config), plain(GRADIENTS + "embedding"))


# (devices, stages, micro-batches, replicas, schedule)
@pytest.mark.parametrize("layout", [(1, 1, 3, 1, "PreferBackward"), (2, 2, 4, 1, "ZeroBubble")])
def test_stages_with_recomputation(by_hand, two_devices, layout):
    devices, stages, micro_batches, replicas, strategy = layout
    want = by_hand("batch_norm_cnn", micro_batches, replicas)
    config = dict(GROUPS, gradient_checkpoint__type="auto")
    got = two_devices(
        PIPELINES + "train", devices, "batch_norm_cnn", stages, micro_batches, replicas, strategy, **config
    )
    assert_same_training(got, want, atol=ATOL)
