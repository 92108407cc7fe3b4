"""Pipelines and gradient accumulation compute what one device computes micro-batch by micro-batch."""

import pytest

from tests.helpers.checks import assert_same_training

PIPELINES = "tests.helpers.programs.pipelines:"
MODELS = ("tied_mlp", "batch_norm_cnn", "tiny_bert")
SCHEDULES = ("PreferForward", "PreferBackward")


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("model", MODELS)
def test_stages_in_one_worker(plain, jobs, model, stages, micro_batches):
    want = plain(PIPELINES + "by_hand", model, micro_batches, 1)
    for strategy in SCHEDULES[: 1 if micro_batches == 1 else None]:
        (got,) = jobs[1, stages](PIPELINES + "train", model, stages, micro_batches, 1, strategy)
        assert_same_training(got, want)
