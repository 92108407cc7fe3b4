"""Devices with parts of different size of a batch compute what one device computes: by cluster.device_weights, and in
stages whose device counts do not divide each other."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_state

WEIGHTS = "tests.helpers.programs.weights:"


def check(want, results):
    for got in results:
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=1e-5)
        np.testing.assert_allclose(got["mean"], want["mean"], rtol=1e-5)
        assert got["rows"] == want["rows"]
        assert got["state"].keys() == want["state"].keys()
        for name, value in want["state"].items():
            atol = 5e-6 * np.abs(value).max()
            np.testing.assert_allclose(got["state"][name], value, rtol=1e-5, atol=atol, err_msg=name)


CASES = [
    ((1, 2), [3, 1], 1, "feed"),
    ((1, 2), [1, 2], 2, "data"),
    ((2, 1), [1, 2], 1, "data"),
    ((2, 1), [3, 1], 2, "feed"),
]
FURTHER = [
    (job, w, m, s) for job in ((1, 2), (2, 1)) for w in ([3, 1], [1, 2]) for m in (1, 2) for s in ("feed", "data")
]
FURTHER += [((2, 2), [1, 2, 2, 1], 2, s) for s in ("feed", "data")]


@pytest.mark.parametrize(
    "job, weights, micro_batches, source",
    CASES + [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER if each not in CASES],
)
def test_equals_one_device(plain, jobs, job, weights, micro_batches, source):
    want = plain(WEIGHTS + "trained", 1, [len(weights)], weights, micro_batches, source)
    results = jobs[job](WEIGHTS + "trained", job[1], [len(weights)], weights, micro_batches, source)
    check(want, results)
    if job[0] == 1:
        np.testing.assert_allclose(results[0]["local"], want["losses"], rtol=1e-5)


@pytest.mark.each_line
@pytest.mark.parametrize("source, config", [("data", {}), ("feed", {"auto__batch": 12})])
def test_weights_that_are_measured(plain, two_workers, source, config):
    """At the first run, once; all workers go by what worker 0 makes of it."""
    want = plain(WEIGHTS + "trained_by_speed", (), source)
    results = two_workers(WEIGHTS + "trained_by_speed", (1000.0, 490.0), source, **config)
    check(want, results)
    assert [(got["weights"], got["measured"]) for got in results] == [((8, 4), 1)] * 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"zero__level": "v0"},
        {"zero__level": "v1"},
        {"zero__level": "v3"},
        {"pipeline__num_micro_batch": 1, "communication__fp16": False, "zero__level": "v0", "zero__degree": 2},
        {"communication__gradients_reduce_method": "sum"},
        {"communication__sparse_as_dense": True},
        {"communication__clip_after_allreduce": True},
        {"gradient_checkpoint__type": "auto"},
        {"optimizer__num_apply_group": 2},
    ],
)
def test_two_replicas_with_other_settings(plain, jobs, config):
    want = plain(WEIGHTS + "trained", 1, [2], [2, 1], 1, "feed", replicas=2)
    results = jobs[2, 2](WEIGHTS + "trained", 2, [2], [2, 1], 1, "feed", replicas=2, **config)
    if "communication__gradients_reduce_method" in config:
        assert [got["losses"][0] for got in results] == pytest.approx([want["losses"][0]] * 2)
    else:
        check(want, results)


@pytest.mark.exhaustive
@pytest.mark.parametrize("job, devices", [((1, 4), 4), ((2, 2), 2), ((4, 1), 1)])
def test_stages(plain, jobs, job, devices):
    want = plain(WEIGHTS + "trained", 1, [2, 2], [3, 1], 2, "data")
    check(want, jobs[job](WEIGHTS + "trained", devices, [2, 2], [3, 1], 2, "data"))


COUNTS = [((1, 2), 5, [2, 3], 2, "feed"), ((3, 1), 2, [3, 2, 1], 1, "data")]
FURTHER_COUNTS = [((1, 2), 5, [3, 2], 1, "data"), ((1, 2), 9, [2, 3, 4], 2, "data"), ((3, 1), 2, [1, 3, 2], 2, "data")]


@pytest.mark.parametrize(
    "job, devices, counts, micro_batches, source",
    COUNTS + [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER_COUNTS],
)
def test_device_counts_that_do_not_divide_each_other(plain, jobs, job, devices, counts, micro_batches, source):
    """A device takes rows of parts of two others."""
    want = plain(WEIGHTS + "trained", 1, counts, (), micro_batches, source)
    check(want, jobs[job](WEIGHTS + "trained", devices, counts, (), micro_batches, source))


@pytest.mark.parametrize("job, weights, micro_batches", [((1, 2), [3, 1], 1), ((2, 1), [1, 2], 1)])
def test_batch_normalisation_over_all_rows(plain, jobs, job, weights, micro_batches):
    want = plain(WEIGHTS + "trained", 1, [2], weights, micro_batches, "feed", norms=True)
    config = {"communication__sync_batch_norm": True}
    check(want, jobs[job](WEIGHTS + "trained", job[1], [2], weights, micro_batches, "feed", norms=True, **config))


def test_fed_rows_are_checked(plain, two_workers):
    """Each device counts by its weight, so it has to be fed by it."""
    fed = "tests.helpers.programs.losses:fed_by_weights"
    want = plain(fed, (9, 3))
    for got in two_workers(fed, (9, 3)):
        assert_same_state(got, want)
    for told in two_workers(fed, (6, 6)):
        assert "rows for each part of weight 1 are 2 at worker 0, 6 at worker 1" in told
