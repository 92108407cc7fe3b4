"""tf.estimator and tf.keras where devices have parts of different size of a batch compute what one device computes."""

import pytest

from tests.helpers.checks import assert_same, assert_same_fit, assert_same_state, pairs

UNEVEN = "tests.helpers.programs.uneven:"

# (job, devices of each worker, of each stage, weights, micro-batches)
CASES = [
    ((3, 1), 1, [2, 1], (), 1),
    ((1, 2), 3, [1, 2], (), 2),
    ((1, 2), 2, [2], [3, 1], 2),
    ((2, 1), 1, [2], [1, 2], 1),
]
FURTHER = [(job, d, c, (), m) for job, d in (((3, 1), 1), ((1, 2), 3)) for c in ([2, 1], [1, 2]) for m in (1, 2)]
FURTHER += [(job, job[1], [2], w, m) for job in ((1, 2), (2, 1)) for w in ([3, 1], [1, 2]) for m in (1, 2)]
FURTHER = [each for each in FURTHER if each not in CASES]
LAYOUTS = CASES + [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER]


@pytest.mark.parametrize("job, devices, counts, weights, micro_batches", LAYOUTS)
def test_estimators(jobs, plain, tmp_path, job, devices, counts, weights, micro_batches):
    want = plain(UNEVEN + "estimator", str(tmp_path / "plain"), 1, counts, weights, micro_batches)
    results = jobs[job](UNEVEN + "estimator", str(tmp_path / "epl"), devices, counts, weights, micro_batches)
    assert len(results) == job[0]
    for got in results:
        assert_same(got["losses"], want["losses"])
        for one, other in pairs(got["metrics"], want["metrics"]):
            assert set(one) == set(other)
            for name in other:
                assert_same(one[name], other[name], what=name)
        assert_same_state(got["state"], want["state"])
        assert_same(got["predictions"], want["predictions"])


KERAS = [case + ("data" if case[0] == (1, 2) else "feed", "train" if case[3] else "adam") for case in CASES]
# Where the last stage has several workers, `predict` gives the rows of one of them.
WHOLE = [case for case in CASES + FURTHER if case[0] != (3, 1) or case[2][-1] == 1]
FURTHER_KERAS = [c + (s, o) for c in WHOLE for s in ("feed", "data") for o in ("adam", "train")]


@pytest.mark.parametrize(
    "job, devices, counts, weights, micro_batches, source, optimizer",
    KERAS + [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER_KERAS if each not in KERAS],
)
def test_keras(jobs, plain, job, devices, counts, weights, micro_batches, source, optimizer):
    short = job[0] == 1  # devices of several workers divide what they are given
    want = plain(UNEVEN + "keras", 1, counts, weights, micro_batches, optimizer, source, short)
    results = jobs[job](UNEVEN + "keras", devices, counts, weights, micro_batches, optimizer, source, short)
    assert len(results) == job[0]
    for got in results:
        assert_same_fit(got, want)
