"""Random models in random layouts with random options that change no numbers, against one device."""

import random

import pytest

from tests.helpers.checks import assert_same_training
from tests.helpers.programs import random_models
from tests.multiproc.test_combinations import EXACT, LAYOUTS, LEVELS, PLACES, SWITCHES, arguments
from tests.numerics.test_pipelines import ATOL, PIPELINES

SYNC = {"communication__sync_batch_norm": True}


def drawn(seed):
    """(name of a layout, of a model, names of options, whether copies normalise together)."""
    draw = random.Random(seed)
    names = [draw.choice(LEVELS), draw.choice(PLACES)] + draw.sample(SWITCHES, draw.randint(0, 3))
    model = "%s%d" % (random_models.PREFIX, seed)
    return draw.choice(list(LAYOUTS)), model, [name for name in names if name in EXACT], draw.random() < 0.5


SEEDS = [1001, 1002] + [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1000, 1003)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models(jobs, by_hand, seed):
    name, model, names, together = drawn(seed)
    layout = LAYOUTS[name]
    *shape, config = arguments(layout, model, names)
    config.update(SYNC if together else {})
    results = jobs[layout.workers, layout.devices](PIPELINES + "train", *shape, **config)
    want = by_hand(model, layout.micro_batches, layout.replicas, together=together)
    for got in results:
        assert_same_training(got, want, atol=ATOL)
