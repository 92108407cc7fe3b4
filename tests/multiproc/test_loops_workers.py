"""Workers that exchange before loops of control flow v1 and behind them compute what one device computes."""

import pytest

from tests.helpers.checks import assert_same_training

LOOPS = "tests.helpers.programs.loops:"
NORMALISED = [(2, {}), (1, {"zero__level": "v3"})]


@pytest.mark.each_line
def test_a_classifier_that_workers_divide(plain, two_workers):
    want = plain(LOOPS + "text_classifier", 1)
    for got in two_workers(LOOPS + "text_classifier", 2):
        assert_same_training(got, want)


@pytest.mark.each_line
@pytest.mark.parametrize("micro_batches, config", NORMALISED)
def test_batches_normalised_before_and_behind(plain, two_workers, micro_batches, config):
    want = plain(LOOPS + "normalised", micro_batches)
    for got in two_workers(LOOPS + "normalised", micro_batches, communication__sync_batch_norm=True, **config):
        assert_same_training(got, want)
