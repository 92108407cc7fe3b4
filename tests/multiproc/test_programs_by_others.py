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


def once_each(programs, layouts):
    """Parameters (program, layout): by turns, each program in one of the layouts; the rest only if asked for."""
    return [
        pytest.param(
            program,
            layout,
            id="%s-%dx%d" % ((program,) + layout),
            marks=() if layout == layouts[number % len(layouts)] else pytest.mark.exhaustive,
        )
        for number, program in enumerate(programs)
        for layout in layouts
    ]


@only_1_15
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("program, layout", once_each(["bert", "bert_estimator"], LAYOUTS))
def test_bert(jobs, plain, tmp_path, program, layout):
    plain_folder, folder = ([str(tmp_path / name)] if program == "bert_estimator" else [] for name in ("plain", "epl"))
    want = plain(OTHERS + program, *plain_folder, timeout_s=LIMIT_S)
    results = jobs[layout](OTHERS + program, *folder, timeout_s=LIMIT_S)
    assert results[0]["states"]
    for got in results:
        assert_same_training(got, want)


@only_1_15
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize(
    "units, layout",
    [
        ((1, 1, 1, 1), (2, 1)),
        pytest.param((1, 1, 1, 1), (1, 2), marks=pytest.mark.exhaustive),
        pytest.param((3, 4, 6, 3), (1, 2), marks=pytest.mark.exhaustive),
        pytest.param((3, 4, 6, 3), (2, 1), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_resnet_of_slim(jobs, plain, units, layout):
    """With as few units as make one, and ResNet-50."""
    want = plain(OTHERS + "resnet", units, timeout_s=LIMIT_S)
    for got in jobs[layout](OTHERS + "resnet", units, timeout_s=LIMIT_S):
        assert_same_training(got, want)


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("program, layout", once_each(["canned", "gan", "language_model"], LAYOUTS[::-1]))
def test_programs_for_both_lines(jobs, plain, tmp_path, program, layout):
    plain_folder, folder = ([str(tmp_path / name)] if program == "canned" else [] for name in ("plain", "epl"))
    want = plain(OTHERS + program, *plain_folder, timeout_s=LIMIT_S)
    results = jobs[layout](OTHERS + program, *folder, timeout_s=LIMIT_S)
    assert results[0]["states"]  # of an Estimator the chief alone has the checkpoint
    for got in results:
        assert_same_training(got, want)


@pytest.mark.timeout(3 * LIMIT_S)
def test_estimators_whose_loss_is_a_sum_with_micro_batches(jobs, plain, tmp_path):
    want = plain(OTHERS + "canned", str(tmp_path / "plain"), timeout_s=LIMIT_S)
    for got in jobs[2, 1](OTHERS + "canned", str(tmp_path / "epl"), 2, timeout_s=LIMIT_S):
        assert_same_training(got, want)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_copies_count_alike(jobs, layout, resource):
    """The rate comes from the count before the step on every copy, though the program leaves that open."""
    for weights, step in jobs[layout](OTHERS + "counted_by_hand", resource):
        np.testing.assert_allclose(weights, [-1.0, -1.1, -1.11, -1.111], rtol=1e-5)
        assert step == 4
