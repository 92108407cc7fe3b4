"""Programs by others on several devices and workers, against plain TensorFlow on the same global batches."""

import numpy as np
import pytest

from epl import tf_compat
from tests.helpers.checks import assert_same, pairs

OTHERS = "tests.helpers.programs.by_others:"
LAYOUTS = [(1, 2), (2, 1)]
LIMIT_S = 400
only_1_15 = pytest.mark.skipif(tf_compat.line() != "tf1", reason="the program needs TensorFlow 1.15")


def assert_same_training(got, want):
    assert len(set(want["losses"])) == len(want["losses"])
    assert_same(got["losses"], want["losses"])
    # Of an Estimator the chief alone has the checkpoint, and so the states.
    for one, other in pairs(got["states"], want["states"]) if got.get("states") else ():
        assert set(one) == set(other)
        for name, value in other.items():
            # The absolute part: Adam divides by the gradient's size, also where that is rounding alone.
            np.testing.assert_allclose(one[name], value, rtol=1e-5, atol=3e-6, err_msg=name)
    for name, value in want.get("metrics", {}).items():
        assert_same(got["metrics"][name], value, what=name)


@only_1_15
@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("program", ["bert", "bert_estimator"])
def test_bert(jobs, plain, tmp_path, program):
    folders = [str(tmp_path / name) for name in ("plain", "1_2", "2_1")] if program == "bert_estimator" else [None] * 3
    want = plain(OTHERS + program, *([folders[0]] if folders[0] else []), timeout_s=LIMIT_S)
    for layout, folder in zip(LAYOUTS, folders[1:]):
        results = jobs[layout](OTHERS + program, *([folder] if folder else []), timeout_s=LIMIT_S)
        assert results[0]["states"]
        for got in results:
            assert_same_training(got, want)


@only_1_15
@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("units", [(1, 1, 1, 1), pytest.param((3, 4, 6, 3), marks=pytest.mark.exhaustive)], ids=str)
def test_resnet_of_slim(jobs, plain, units):
    """With as few units as make one, and ResNet-50."""
    want = plain(OTHERS + "resnet", units, timeout_s=LIMIT_S)
    for layout in LAYOUTS:
        for got in jobs[layout](OTHERS + "resnet", units, timeout_s=LIMIT_S):
            assert_same_training(got, want)


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("program", ["canned", "gan", "language_model"])
def test_programs_for_both_lines(jobs, plain, tmp_path, program):
    def arguments(name):
        return [str(tmp_path / name)] if program == "canned" else []

    want = plain(OTHERS + program, *arguments("plain"), timeout_s=LIMIT_S)
    for layout in LAYOUTS:
        results = jobs[layout](OTHERS + program, *arguments("%d_%d" % layout), timeout_s=LIMIT_S)
        assert results[0]["states"]  # of an Estimator the chief alone has the checkpoint
        for got in results:
            assert_same_training(got, want)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_copies_count_alike(jobs, layout, resource):
    """The rate comes from the count before the step on every copy, though the program leaves that open."""
    for weights, step in jobs[layout](OTHERS + "counted_by_hand", resource):
        np.testing.assert_allclose(weights, [-1.0, -1.1, -1.11, -1.111], rtol=1e-5)
        assert step == 4
