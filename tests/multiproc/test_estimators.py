"""tf.estimator on several devices and workers, against plain TensorFlow on the same global batches."""

import pytest

from tests.helpers.checks import assert_same, assert_same_state

ESTIMATORS = "tests.helpers.programs.estimators:"


@pytest.fixture(scope="module")
def plain_life(jobs, tmp_path_factory):
    """What plain TensorFlow makes of the program `life`."""
    folder = str(tmp_path_factory.mktemp("plain"))
    return jobs["plain"](ESTIMATORS + "life", folder)[0]


def without_events(names):
    return [name for name in names if "tfevents" not in name]


def assert_same_life(got, want):
    assert_same(got["losses"], want["losses"])
    assert got["starts"] == want["starts"] == [0, 3]
    for one, other in zip(got["metrics"], want["metrics"]):
        assert set(one) == set(other)
        for name in other:
            assert_same(one[name], other[name], what=name)


@pytest.mark.parametrize("layout", [(1, 2), (2, 1), (2, 2)], ids=str)
def test_train_evaluate_predict(jobs, plain_life, tmp_path, layout):
    results = jobs[layout](ESTIMATORS + "life", str(tmp_path))
    for index, got in enumerate(results):
        assert_same_life(got, plain_life)
        assert got["chief"] == (index == 0) and got["place"] == (layout[0], index, "")
        assert_same_state(got["state"], plain_life["state"])
        assert_same(got["predictions"], plain_life["predictions"])
        assert without_events(got["files"]) == without_events(plain_life["files"])


def test_folder_that_only_the_chief_has(two_workers, plain_life, tmp_path):
    chief, other = two_workers(ESTIMATORS + "life", str(tmp_path), shared=False)
    for got in (chief, other):
        assert_same_life(got, plain_life)
    assert_same_state(chief["state"], plain_life["state"])
    assert without_events(chief["files"]) == without_events(plain_life["files"]) and other["files"] == []


def test_evaluation_on_the_chief(two_workers, plain_life, tmp_path):
    config = {"estimator.evaluate_on": "chief"}
    for got in two_workers(ESTIMATORS + "life", str(tmp_path), config, shared=False, all_rows=True):
        assert_same_life(got, plain_life)
