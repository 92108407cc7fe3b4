"""tensor2tensor's transformer on several devices and workers, against plain TensorFlow on the same global batches."""

import numpy as np
import pytest

from tests.multiproc.test_programs_by_others import assert_same_training

PROGRAMS = "tests.helpers.programs.translation:"
LIMIT_S = 300
pytestmark = pytest.mark.usefixtures("packages")


@pytest.fixture(scope="module")
def plain_losses_and_state(jobs):
    """What plain TensorFlow makes of the transformer."""
    return jobs["plain"](PROGRAMS + "transformer", timeout_s=LIMIT_S)[0]


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("layout", [(1, 2), pytest.param((2, 1), marks=pytest.mark.exhaustive)], ids=str)
def test_model_in_a_loop(jobs, plain_losses_and_state, layout):
    for got in jobs[layout](PROGRAMS + "transformer", timeout_s=LIMIT_S):
        assert_same_training(got, plain_losses_and_state)


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("layout", [pytest.param((1, 2), marks=pytest.mark.exhaustive), (2, 1)], ids=str)
def test_estimator_of_its_trainer(jobs, plain, tmp_path, layout):
    want = plain(PROGRAMS + "transformer_estimator", str(tmp_path / "plain"), timeout_s=LIMIT_S)
    results = jobs[layout](PROGRAMS + "transformer_estimator", str(tmp_path / "epl"), timeout_s=LIMIT_S)
    assert results[0]["states"]  # the chief has written the checkpoint from which the variables are read
    for got in results:
        assert_same_training(got, want)


@pytest.mark.exhaustive
@pytest.mark.timeout(2 * LIMIT_S)
def test_dropout_differs_and_trains(jobs, plain_losses_and_state):
    """The workers agree though each drops units of its own, and it is another training than without dropout."""
    first, second = jobs[2, 1](PROGRAMS + "transformer", 0.2, timeout_s=LIMIT_S)
    assert first["losses"] == second["losses"] and np.all(np.isfinite(first["losses"]))
    assert not np.allclose(first["losses"], plain_losses_and_state["losses"], rtol=1e-3)
    for name, value in first["states"][0].items():
        np.testing.assert_array_equal(value, second["states"][0][name], err_msg=name)
