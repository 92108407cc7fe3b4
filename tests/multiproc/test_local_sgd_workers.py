"""LocalSGD over workers: the numbers of a simulation, no waiting in between, checkpoints, and ends."""

import os

import numpy as np
import pytest

from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, pairs
from tests.helpers.programs import common
from tests.helpers.programs.local_sgd import (
    ADAPTIVE,
    LATE,
    MOMENTUM,
    RATE,
    STEPS,
    assert_states,
    simulated_adaptive,
    simulated_late,
)
from tests.helpers.references import LocalMomentum

PROGRAMS = "tests.helpers.programs.local_sgd:"
PERIOD = {"local_sgd.k_steps": 3}
EVERY_THIRD = list(range(3, 40, 3))


@pytest.mark.parametrize(
    "optimizer, resource, config", [("momentum", False, {}), ("adam", True, {}), ("adam", True, {"zero.level": "v0"})]
)
def test_two_workers(plain, two_workers, optimizer, resource, config):
    want, _ = plain(PROGRAMS + "simulate", 2, optimizer, EVERY_THIRD)
    config = dict(PERIOD, **config)
    for (got, _), rank in pairs(two_workers(PROGRAMS + "train", config, optimizer, resource=resource), want):
        assert_same_training(got, rank)


def test_one_copy_of_the_model_trains_as_without(plain, two_workers):
    trained = "tests.helpers.programs.weights:trained"
    want = plain(trained, 1, [2])
    for got in two_workers(trained, 1, [2], local_sgd__k_steps=3):
        assert_same(got["losses"], want["losses"])
        assert_same_state(got["state"], want["state"])


@pytest.mark.parametrize("optimizer, resource", [("momentum", True), ("rows", False)])
def test_micro_batches(plain, two_workers, optimizer, resource):
    """Each copy takes a step with the mean gradient of its own micro-batches."""
    want, _ = plain(PROGRAMS + "simulate", 2, optimizer, EVERY_THIRD)
    config = dict(PERIOD, **{"pipeline.num_micro_batch": 2})
    for (got, _), rank in pairs(two_workers(PROGRAMS + "train", config, optimizer, resource=resource), want):
        assert_same_training(got, rank)


def test_sums_over_the_rows_of_micro_batches(plain, two_workers):
    """They count as often as a copy has micro-batches, not copies."""
    want, _ = plain(PROGRAMS + "simulate", 2, "summed", EVERY_THIRD)
    config = dict(PERIOD, **{"pipeline.num_micro_batch": 2})
    for (got, _), rank in pairs(two_workers(PROGRAMS + "train", config, "summed"), want):
        for own, whole in pairs(got["states"], rank["states"]):
            assert_same_state(own, whole)


@pytest.mark.parametrize("resource", [False, True])
def test_sparse_gradients_and_recomputation(plain, two_workers, resource):
    want, _ = plain(PROGRAMS + "simulate", 2, "rows", EVERY_THIRD)
    keys = "communication.sparse_as_dense", "communication.clip_after_allreduce"
    config = dict(PERIOD, **dict.fromkeys(keys, True), **{"gradient_checkpoint.type": "auto"})
    for (got, _), rank in pairs(two_workers(PROGRAMS + "train", config, "rows", resource=resource), want):
        assert_same_training(got, rank)


@pytest.mark.parametrize("workers, average_slots", [(2, False), (4, True), (4, False)])
def test_the_numbers_of_a_simulation_in_numpy(jobs, workers, average_slots):
    config = dict(PERIOD, **{"local_sgd.average_slots": average_slots})
    results = jobs[workers, 1](PROGRAMS + "train", config, "momentum")
    simulation = LocalMomentum(results[0][1], workers, RATE, MOMENTUM, average_slots)
    want = [{"losses": [], "states": []} for _ in range(workers)]
    for number in range(STEPS):
        parts = list(zip(*[np.split(rows, workers) for rows in common.batch(number)]))
        losses = simulation.step(parts, number + 1 in EVERY_THIRD)
        for rank, loss in enumerate(losses):
            want[rank]["losses"].append(np.float32(loss))
            state = dict(simulation.states[rank], global_step=np.int64(number + 1))
            want[rank]["states"].append(
                {name: np.asarray(state[name], own.dtype) for name, own in results[0][1].items()}
            )
    for (got, _), rank in pairs(results, want):
        assert_same_training(got, rank, atol=1e-5)  # biases are small sums of large terms, here in float64


@pytest.mark.parametrize("workers, devices, micro_batches", [(2, 1, 1), (4, 1, 1), (2, 2, 1), (2, 1, 2), (2, 2, 2)])
def test_adaptive_periods_are_those_of_a_simulation_in_numpy(jobs, workers, devices, micro_batches):
    """With several devices in a worker the losses of all of them decide, and those of all micro-batches."""
    config = dict(ADAPTIVE, **{"pipeline.num_micro_batch": micro_batches})
    results = jobs[workers, devices](PROGRAMS + "train", config, "momentum")
    want, ends = simulated_adaptive(results[0][1], workers * devices, 0, STEPS)
    assert len(set(np.diff(ends))) > 1
    for worker, (got, _) in enumerate(results):
        assert_states(got["states"], want, worker * devices)


def test_adaptive_periods_begin_again_from_a_checkpoint(plain, two_workers, tmp_path):
    results = two_workers(PROGRAMS + "saved", str(tmp_path), ADAPTIVE, 11, 10)
    found = plain("tests.helpers.programs.savers:read", results[0][1])
    initial = plain(PROGRAMS + "simulate", 2, "momentum", [], steps=1)[1]
    whole, ends = simulated_adaptive(initial, 2, 0, 21)
    last = max(end for end in ends if end <= 11)
    assert last < 11
    assert_states([found], whole[last - 1 :][:1], 0)
    resumed = simulated_adaptive(found, 2, last, 10)[0]
    for rank, (going_on, _, first, again) in enumerate(results):
        assert first == last
        assert_states(going_on, whole[11:], rank)
        assert_states(again, resumed, rank)


@pytest.mark.parametrize("workers, resource, micro_batches", [(2, False, 1), (4, True, 1), (2, True, 2)])
def test_late_averages_are_those_of_a_simulation_in_numpy(jobs, workers, resource, micro_batches):
    config = dict(LATE, **{"local_sgd.begin_step": 2, "pipeline.num_micro_batch": micro_batches})
    results = jobs[workers, 1](PROGRAMS + "train", config, "momentum", resource=resource)
    want = simulated_late(results[0][1], workers, 2, 0, STEPS)
    for rank, (got, _) in enumerate(results):
        assert_states(got["states"], want, rank)


def test_with_late_averages_a_checkpoint_is_the_latest_that_has_come(plain, two_workers, tmp_path):
    """After 8 steps that of the first 3; that of the first 6 is under way."""
    results = two_workers(PROGRAMS + "saved", str(tmp_path), LATE, 8, 6)
    found = plain("tests.helpers.programs.savers:read", results[0][1])
    initial = plain(PROGRAMS + "simulate", 2, "momentum", [], steps=1)[1]
    whole, resumed = simulated_late(initial, 2, 0, 0, 14), simulated_late(found, 2, 0, 3, 6)
    mean = {name: (whole[2][0][name] + whole[2][1][name]) / 2 for name in found if "/" in name}
    mean.update((name, whole[2][0][name]) for name in found if name.endswith("Momentum") or "/" not in name)
    assert_same_state(found, {name: mean[name].astype(value.dtype) for name, value in found.items()})
    for rank, (going_on, _, first, again) in enumerate(results):
        assert first == 3
        assert_states(going_on, whole[8:], rank)
        assert_states(again, resumed, rank)


def test_averages_of_every_step_are_data_parallel_training(plain, two_workers):
    """With SGD, where the mean of the updates is the update by the mean."""
    want, _ = plain(PROGRAMS + "simulate", 1, "sgd", [])
    for got, _ in two_workers(PROGRAMS + "train", {"local_sgd.k_steps": 1}, "sgd"):
        assert len(got["states"]) == STEPS
        for one, other in pairs(got["states"], want[0]["states"]):
            assert_same_state(one, other)


@pytest.mark.parametrize("average_slots", [True, False])
def test_a_checkpoint_is_the_latest_average_and_training_goes_on_from_it(plain, two_workers, tmp_path, average_slots):
    """Where slots stay with each copy, all go on with worker 0's. One of the two is written beside training."""
    want, _ = plain(PROGRAMS + "simulate", 2, "momentum", EVERY_THIRD, average_slots)
    config = dict(PERIOD, **{"local_sgd.average_slots": average_slots, "checkpoint.async": average_slots})
    results = two_workers(PROGRAMS + "saved", str(tmp_path), config, 8, 6)
    found = plain("tests.helpers.programs.savers:read", results[0][1])
    assert_same_state(found, want[0]["states"][5])
    again, _ = plain(PROGRAMS + "simulate", 2, "momentum", EVERY_THIRD, average_slots, found, 6)
    for rank, (going_on, _, first, resumed) in enumerate(results):
        assert first == 6
        for number, (one, other) in enumerate(pairs(going_on, want[rank]["states"][8:14])):
            assert_same(one["global_step"], np.int64(9 + number))
            assert_same_state(one, other)
        assert len(resumed) == 6
        for one, other, going in pairs(resumed, again[rank]["states"], want[rank]["states"][6:12]):
            assert_same_state(one, other)
            if average_slots:
                assert_same_state(one, going)


def test_a_training_that_ends_everywhere_at_once_ends_with_an_average(plain, two_workers, tmp_path):
    want, _ = plain(PROGRAMS + "simulate", 2, "momentum", [3, 6, 8], steps=8)
    assert two_workers(PROGRAMS + "monitored", str(tmp_path), PERIOD, 8) == [8, 8]
    found = plain("tests.helpers.programs.savers:read", os.path.join(str(tmp_path), "of_0", "model.ckpt-8"))
    assert_same_state(found, want[0]["states"][7])


def test_late_averages_too(plain, two_workers, tmp_path):
    initial = plain(PROGRAMS + "simulate", 2, "momentum", [], steps=1)[1]
    end, mean = simulated_late(initial, 2, 0, 0, 8)[-1], {}
    for name in end[0]:
        own = name.endswith("Momentum") or "/" not in name  # worker 0's
        mean[name] = end[0][name] if own else (end[0][name] + end[1][name]) / 2
    assert two_workers(PROGRAMS + "monitored", str(tmp_path), LATE, 8) == [8, 8]
    found = plain("tests.helpers.programs.savers:read", os.path.join(str(tmp_path), "of_0", "model.ckpt-8"))
    assert_same_state(found, {name: mean[name].astype(value.dtype) for name, value in found.items()})


@pytest.mark.parametrize(
    "config, sizes, want",
    [
        ({"local_sgd.k_steps": 5}, [3, 4], [3, 4]),
        ({"local_sgd.k_steps": 4}, [3, 6], [3, 3]),
        (dict(LATE, **{"local_sgd.k_steps": 2}), [3, 9], [3, 5]),
    ],
)
def test_after_the_end_of_data_copies_are_averaged_before_they_go_on(two_workers, config, sizes, want):
    """In the second case worker 1 comes to the average after its fourth step when the data of worker 0 has ended; in
    the third the average that it begins there tells it so, after its sixth."""
    results = two_workers(PROGRAMS + "unequal", config, sizes)
    (_, one, _), (_, other, _) = results
    mean = {name: np.mean([one[name], other[name]], axis=0) for name in one}
    for (counts, _, after), count in pairs(results, want):
        assert counts == [count, count]
        assert_same_state(after, mean)  # the first step's rate is 0


def test_an_estimator(plain, two_workers, tmp_path):
    want, _ = plain(PROGRAMS + "simulate", 2, "momentum", [3, 5], steps=5)
    for got in two_workers(PROGRAMS + "estimated", str(tmp_path), PERIOD, 5):
        assert_same_state(got, want[0]["states"][4])


def test_keras_models_are_refused(two_workers):
    for message in two_workers(PROGRAMS + "of_keras", PERIOD):
        assert message is not None and message.startswith("local_sgd.k_steps cannot be used with the training of Keras")


def test_workers_do_not_wait_between_averages(two_workers, tmp_path):
    assert two_workers(PROGRAMS + "apart", str(tmp_path), {"local_sgd.k_steps": 50}, 20) == [True, True]


def test_workers_do_not_wait_for_late_averages_before_the_next(two_workers, tmp_path):
    """Worker 0 has begun one after its tenth step."""
    config = dict(LATE, **{"local_sgd.k_steps": 10})
    assert two_workers(PROGRAMS + "apart", str(tmp_path), config, 19) == [False, False]


@pytest.mark.parametrize(
    "config",
    [
        {"local_sgd.k_steps": 10**9},
        pytest.param(dict(LATE, **{"local_sgd.k_steps": 2}), marks=pytest.mark.once),
    ],
)
def test_a_killed_worker_is_noticed_between_averages(jobs, config):
    """In the second case also while an average waits for it."""
    survivor, _ = jobs[2, 1].outcomes(PROGRAMS + "killed", config)
    kind, message = survivor
    assert kind == "WorkerError" and "worker 1" in message


def test_what_is_merged_over_workers_is_refused(two_workers):
    for message in two_workers(PROGRAMS + "refused", PERIOD, "global"):
        assert message is not None and "collection epl.GraphKeys.GLOBAL_" in message
