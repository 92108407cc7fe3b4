"""What each replica does by itself."""

import numpy as np

from tests.helpers.checks import assert_same, pairs
from tests.helpers.programs import common

REPLICAS = "tests.helpers.programs.replicas:"


def moving_statistics(parts, momentum=0.8, steps=5):
    """What the moving averages must be: fed with the mean of the statistics of each part of the batch."""
    mean, variance, history = np.zeros(common.FEATURES), np.ones(common.FEATURES), []
    for step in range(steps):
        shares = np.split(common.batch(step)[0].astype(np.float64), parts)
        mean = momentum * mean + (1 - momentum) * np.mean([share.mean(axis=0) for share in shares], axis=0)
        variance = momentum * variance + (1 - momentum) * np.mean([share.var(axis=0) for share in shares], axis=0)
        history.append({"mean": mean, "variance": variance})
    return history


def check_batch_norm(history, parts):
    for got, want in pairs(history, moving_statistics(parts)):
        for name in ("mean", "variance"):
            everywhere = np.broadcast_to(want[name], (parts, common.FEATURES)).astype(np.float32)
            assert_same(got[name], everywhere, rtol=1e-5, atol=1e-5, what="moving " + name)


def test_batch_norm_reference(plain):
    check_batch_norm(plain(REPLICAS + "batch_norm"), 1)


def test_batch_norm_averages_its_moving_statistics(two_devices, four_devices):
    check_batch_norm(two_devices(REPLICAS + "batch_norm"), 2)
    check_batch_norm(four_devices(REPLICAS + "batch_norm"), 4)


def check_random_start(values, replicas):
    start, after = values
    for everywhere in start + after:
        assert len(everywhere) == replicas
        for replica in everywhere[1:]:
            np.testing.assert_array_equal(replica, everywhere[0])
    assert len(np.unique(start[0])) == 12
    assert not np.array_equal(start[0], after[0])


def test_replicas_start_from_the_same_random_values(two_devices):
    check_random_start(two_devices(REPLICAS + "random_start"), 2)


def test_replicas_drop_different_units(two_devices):
    first, second = two_devices(REPLICAS + "dropout")
    half = common.BATCH // 2
    assert first.shape == (common.BATCH, 64)
    assert not np.array_equal(first[:half], first[half:])
    assert not np.array_equal(first, second)
    assert 0.3 < first.mean() < 0.7


def test_seeded_random_ops_repeat(two_devices):
    first, again = two_devices(REPLICAS + "dropout", seed=7), two_devices(REPLICAS + "dropout", seed=7)
    np.testing.assert_array_equal(first, again)
    half = common.BATCH // 2
    assert not np.array_equal(first[0][:half], first[0][half:])


def test_merged_fetches(two_devices):
    got = two_devices(REPLICAS + "collections")
    rows = np.arange(2 * common.BATCH, dtype=np.float32).reshape([common.BATCH, 2])
    halves = [half.mean() for half in np.split(rows, 2)]
    assert got["unmerged"] == halves[0]
    for scope in ("GLOBAL", "LOCAL"):
        np.testing.assert_array_equal(got[scope + "_CONCAT_OBJECTS"], rows)
        assert got[scope + "_MEAN_OBJECTS"] == np.mean(halves)
        assert got[scope + "_SUM_OBJECTS"] == np.sum(halves)
