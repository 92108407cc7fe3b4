"""Batches that do not divide over the copies of the model in a worker, where copies divide state (zero.level)."""

import pytest

from tests.helpers.checks import assert_same_training, pairs
from tests.numerics.test_sessions import SESSIONS, assert_same_uneven

ZERO = "tests.helpers.programs.zero:"
# Of two workers with two devices or micro-batches each: 4, 3, 4, 4, 1, 5, 8 and 8 rows.
SIZES = [8, 6, 8, 8, 2, 10, 16, 16]
LEVELS = ["v0", "v1", "v2", "v3"]
CASES = [((1, 2), "v0", "adam"), ((1, 2), "v3", "momentum"), ((2, 2), "v1", "adam"), ((2, 2), "v2", "momentum")]
FURTHER = [(job, level, o) for job in ((1, 2), (2, 1), (2, 2)) for level in LEVELS for o in ("momentum", "adam")]
FURTHER = [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER if each not in CASES]


@pytest.mark.parametrize("job, level, optimizer", CASES + FURTHER)
def test_training(jobs, plain, job, level, optimizer):
    want = plain(SESSIONS + "uneven", SIZES, optimizer=optimizer)
    for got in jobs[job](SESSIONS + "uneven", SIZES, optimizer=optimizer, zero__level=level):
        assert_same_uneven(got, want)


IN_WORKERS = {"cluster__device_place_prefer_intra_node": False}
TOGETHER = [
    ((1, 4), 2, {"zero__level": "v1"}),  # two copies of a pipeline
    ((2, 2), 2, dict(IN_WORKERS, zero__level="v3")),
    ((2, 2), 1, {"zero__level": "v1", "zero__degree": 2}),
    ((1, 4), 1, {"zero__level": "v3", "zero__degree": 2, "zero__segment_mb": 1e-4}),
    ((2, 2), 1, {"zero__level": "v2", "optimizer__num_apply_group": 2, "offload__level": "v1"}),
]


@pytest.mark.parametrize("job, stages, config", TOGETHER)
def test_together_with(jobs, plain, job, stages, config):
    want = plain(SESSIONS + "uneven", SIZES, optimizer="adam")
    for got in jobs[job](SESSIONS + "uneven", SIZES, stages, stages, "adam", **config):
        assert_same_uneven(got, want)


SCALED = {"amp.level": "O1", "amp.dtype": "float16", "amp.loss_scale": 128}
LIKE_WITHOUT = [
    ((2, 2), None, "v1", {}),
    ((1, 2), None, "v3", {"communication.sync_batch_norm": True}),
    ((2, 2), None, "v2", SCALED),
    ((1, 4), "split", "v1", {}),
    ((2, 2), "split", "v3", {}),
    ((1, 4), "replicate", "v1", {}),
]


@pytest.mark.parametrize("job, strategy, level, config", LIKE_WITHOUT)
def test_the_same_as_without(jobs, job, strategy, level, config):
    """Of a model with rows of a table, batch normalisation and clipping, whose numbers differ from one device's."""
    sizes = [8, 6, 8, 10, 2, 16]
    wanted = jobs[job](ZERO + "uneven", sizes, strategy, config)
    for got, want in pairs(jobs[job](ZERO + "uneven", sizes, strategy, dict(config, **{"zero.level": level})), wanted):
        assert_same_training(got, want)
