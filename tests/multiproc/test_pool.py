"""The pool of communicators and the TensorFlow operations over it, between real processes."""

import json
import os
import signal

import pytest

from epl.session.job import _OTHER_CANCELLED
from tests.helpers import processes

pytestmark = pytest.mark.alone

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pool_worker.py")
CORRECT = ("exchange", "link", "all_reduce", "order", "all_gather", "broadcast", "half")
WRONG = ("broadcast_mismatch", "mismatch", "abort_and_reconnect", "cancelled", "late", "not_connected")
BACKENDS = {"shm": 2, "tcp": 3}
EACH_BACKEND = ["shm", pytest.param("tcp", marks=pytest.mark.once)]  # which of them makes no difference to TensorFlow


def start(folder, backend, workers, *scenarios):
    return [
        processes.python([SCRIPT, folder, backend] + list(scenarios), environ, os.path.join(folder, "log.%d" % index))
        for index, environ in enumerate(processes.worker_environments(workers, 1))
    ]


def results(folder, children, timeout_s):
    """What each worker's scenarios returned."""
    try:
        ends = [child.wait(timeout_s) for child in children]
    finally:
        for child in children:
            child.kill()
    for end in ends:
        assert end.code == 0, end
    found = []
    for index in range(len(children)):
        with open(os.path.join(folder, "result.%d" % index)) as file:
            found.append(json.load(file))
    return found


@pytest.fixture(scope="module", params=EACH_BACKEND)
def outcome(request, tmp_path_factory):
    """Runs all scenarios once for each back end; gives a function from a scenario to the workers' results."""
    backend = request.param
    folder = str(tmp_path_factory.mktemp(backend))
    found = results(folder, start(folder, backend, BACKENDS[backend], *(CORRECT + WRONG)), 240)

    def of(scenario):
        for worker in found:
            assert "traceback" not in worker[scenario], worker[scenario]["traceback"]
        return [worker[scenario] for worker in found]

    of.backend = backend
    return of


def test_exchange(outcome):
    assert [worker["backend"] for worker in outcome("exchange")] == [outcome.backend] * BACKENDS[outcome.backend]


def test_workers_have_the_same_figures_of_their_link(outcome):
    figures = [worker["figures"] for worker in outcome("link")]
    assert figures == [figures[0]] * BACKENDS[outcome.backend]
    assert min(min(pair) for pair in figures[0]) > 0


@pytest.mark.parametrize("scenario", ["all_reduce", "order", "all_gather", "broadcast"])
def test_results_are_those_of_numpy(outcome, scenario):
    # Each worker compares by itself; one that fails gives no result.
    assert len(outcome(scenario)) == BACKENDS[outcome.backend]


def test_half_precision(outcome):
    found = outcome("half")
    workers = len(found)
    mean = sum(range(1, workers + 1)) / float(workers)
    for worker in found:
        assert worker["rounded"]["value"] == pytest.approx([mean / 3, mean * 1e-6, mean * -2.0], rel=2e-3)
        # The same error everywhere, also where the number was finite.
        for scenario in ("one_overflows", "sum_overflows"):
            assert worker[scenario]["error"] == "InvalidArgumentError"
            assert "'half'" in worker[scenario]["message"]
            assert "Make communication.fp16_scale smaller" in worker[scenario]["message"]
        # What was infinite before is passed on as it would be without fp16.
        assert worker["infinite_before"]["value"] == [float("inf"), 2.0]
        assert worker["after"]["value"] == [1.0]


def test_receiver_that_expects_another_type(outcome):
    for worker in outcome("broadcast_mismatch")[1:]:
        assert worker["error"] == "FailedPreconditionError"
        assert "expects int32[2], but worker 0 sends float[2]" in worker["message"]


def test_lengths_that_differ(outcome):
    for worker in outcome("mismatch"):
        assert worker["error"] == "FailedPreconditionError"
        assert "3 elements" in worker["message"]
        assert "4 elements" in worker["message"] or "5 elements" in worker["message"]  # of worker 1 or 2


def test_abort_reaches_the_others_and_a_new_generation_works(outcome):
    first, others = outcome("abort_and_reconnect")[0], outcome("abort_and_reconnect")[1:]
    workers = float(len(others) + 1)
    assert first["error"] == "CommunicationError"
    for worker in others:
        assert worker["error"] == "AbortedError"
        assert "the reason of worker 0" in worker["message"]
    for worker in [first] + others:
        assert worker["after"] == [workers] * 4


def test_cancelled_step_ends_at_all_workers(outcome):
    """None of them by a time-out; the worker where it broke says what broke."""
    found = outcome("cancelled")
    assert "broken on purpose" in found[0]["message"]
    for worker in found[1:]:
        assert worker["error"] == "AbortedError"
        assert _OTHER_CANCELLED.search(worker["message"])


def test_time_out_names_the_collective_and_who_is_missing(outcome):
    found = outcome("late")
    for worker in found[:-1]:
        assert worker["error"] in ("DeadlineExceededError", "AbortedError")
    told = " ".join(worker["message"] for worker in found[:-1] if worker["error"] == "DeadlineExceededError")
    assert "mean of w" in told
    assert "for worker %d" % (len(found) - 1) in told


def test_graph_without_communicators(outcome):
    for worker in outcome("not_connected"):
        assert worker["all_reduce"]["error"] == "FailedPreconditionError"
        assert "no communicator number 1" in worker["all_reduce"]["message"]
        assert "call connect() first" in worker["exchange"]["message"]
        assert "call connect() first" in worker["expect"]["message"]


@pytest.mark.parametrize("backend", EACH_BACKEND)
def test_killed_worker_is_noticed_by_all(tmp_path, backend):
    folder = str(tmp_path)
    children = start(folder, backend, 3, "killed")
    try:
        for child in children:
            child.wait_for("WAITS FOR THE LAST", 60)
        children[2].signal(signal.SIGKILL)
        assert children[2].wait(10).code == -signal.SIGKILL
        for worker in results(folder, children[:2], 60):
            assert worker["killed"]["error"] == "AbortedError"
            assert "worker 2" in worker["killed"]["message"]
            assert worker["killed"]["ending"]["worker"] == 2
            assert worker["killed"]["ending"]["kind"] == "lost"
    finally:
        for child in children:
            child.kill()
