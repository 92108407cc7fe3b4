"""epl.ops between worker processes: results and gradients against NumPy, the order of steps, what is refused."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_state
from tests.helpers.programs import common
from tests.helpers.remote import RemoteError

COLLECTIVES = "tests.helpers.programs.collectives:"


@pytest.fixture
def three_workers(jobs):
    return jobs[3, 1]


@pytest.mark.parametrize("program", ["reductions", "moves", "gradients", "second_derivative"])
def test_two_workers_compute_what_numpy_does(two_workers, program):
    assert all(two_workers(COLLECTIVES + program))


@pytest.mark.parametrize("program", ["reductions", "moves", "gradients"])
def test_three_workers_compute_what_numpy_does(three_workers, program):
    assert all(three_workers(COLLECTIVES + program))


@pytest.mark.parametrize("program", ["reductions", "moves", "gradients"])
def test_over_the_network(two_workers, program):
    assert all(two_workers(COLLECTIVES + program, backend="tcp"))


def test_results_that_cannot_take_the_place_of_inputs_lie_in_shared_memory(two_workers):
    # The large one alone: a small one would gain nothing.
    for small, large in two_workers(COLLECTIVES + "kept_inputs"):
        assert small == 0
        assert large >= 90001 * 3 * 4


def test_barrier(two_workers):
    assert two_workers(COLLECTIVES + "barrier") == [7, 7]


def test_order_is_the_same_whichever_is_ready_first(two_workers):
    assert two_workers(COLLECTIVES + "crossing_order") == [True, True]


def test_gradients_reduced_by_the_program(plain, two_workers):
    want = plain(COLLECTIVES + "plain_training")
    for got in two_workers(COLLECTIVES + "mixed_with_training"):
        assert_same_state(got, want)


def test_over_the_devices_of_all_workers(two_by_two):
    x = common.batch(0)[0]
    results = two_by_two(COLLECTIVES + "over_devices")
    # As one device does it with the whole batch: of the mean of squares of (x - mean) . w, one step.
    centred = x - x.mean(0)
    gradient = np.mean(2.0 * centred.sum(1)[:, None] * centred, axis=0)
    for got in results:
        np.testing.assert_array_equal(got["rows"], x[:, 0])
        np.testing.assert_array_equal(got["sensitivity"], np.full(x.shape, 4.0))
        np.testing.assert_allclose(got["w"], 1.0 - 0.1 * gradient, rtol=1e-5)


def test_errors_name_the_operation_and_the_difference(two_workers):
    texts = two_workers(COLLECTIVES + "refusals")
    for got in texts:
        assert "'mine'" in got["all_reduce"] or "mine" in got["all_reduce"]
        assert "2" in got["all_reduce"] and "3" in got["all_reduce"]
        assert "3 rows do not divide over 2 workers" in got["reduce_scatter"]
        assert "do not add up to the 3 rows" in got["all_to_all"]
        assert "mine (float[2])" in got["recv"] and "mine (float[4])" in got["recv"]
        assert "after" not in got
    assert "this worker has float[3], but worker 0 broadcasts float[2]" in texts[1]["broadcast"]


def test_graphs_that_differ_are_refused(two_workers):
    outcomes = two_workers.outcomes(COLLECTIVES + "different_roots")
    for outcome in outcomes:
        assert isinstance(outcome, RemoteError) and "the workers have built different graphs" in outcome.message
