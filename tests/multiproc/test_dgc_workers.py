"""Deep gradient compression over workers: the numbers of a simulation in NumPy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.checks import assert_same, assert_same_training, pairs
from tests.helpers.marks import needs_bfloat16
from tests.helpers.programs import common
from tests.helpers.programs.dgc import MOMENTUM, RATE
from tests.helpers.references import Classifier, Dgc

PROGRAMS = "tests.helpers.programs.dgc:"
RAMP = {"sparsity": [0.5, 0.8, 0.9], "begin": 4, "ramp": 6, "least": 20}
STEPS = 20


def config_of(options):
    return {
        "dgc.sparsity": options["sparsity"],
        "dgc.rampup_begin_step": options["begin"],
        "dgc.rampup_step": options["ramp"],
        "dgc.min_elements": options["least"],
        "dgc.clip_norm": options.get("clip", 0.0),
    }


def simulated(initial, workers, options, steps=STEPS, resumed=None):
    """What each worker computes: {"losses", "states"}. `resumed`: the step at which it goes on from a checkpoint."""
    return goes_on(begun(initial, workers, options), workers, range(steps), resumed)


def begun(initial, workers, options):
    weights = {name: value for name, value in initial.items() if not name.endswith("Momentum")}
    return Dgc(weights, workers, RATE, MOMENTUM, options)


def goes_on(dgc, workers, steps, resumed=None):
    """The same of a Dgc that has come as far as the first of these steps."""
    found = [{"losses": [], "states": []} for _ in range(workers)]
    for number in steps:
        if number == resumed:
            dgc.forget()
        parts = zip(*[np.split(each, workers) for each in common.batch(number)])
        losses, gradients = zip(*[Classifier.gradients(dgc.weights, x, labels) for x, labels in parts])
        dgc.step(gradients)
        state = dict(dgc.weights, **{name + "/Momentum": value for name, value in dgc.slots.items()})
        for own, loss in zip(found, losses):
            own["losses"].append(np.float32(loss))
            own["states"].append({name: value.astype(np.float32) for name, value in state.items()})
    return found


@pytest.mark.parametrize("resource, more", [(False, {}), (True, {"clip": 0.5})])
def test_two_workers(two_workers, resource, more):
    options = dict(RAMP, **more)
    results = two_workers(PROGRAMS + "train", config_of(options), STEPS, resource)
    for (got, initial), want in pairs(results, simulated(results[0][1], 2, options)):
        assert_same_training(got, want)


def test_four_workers(jobs):
    results = jobs[4, 1](PROGRAMS + "train", config_of(RAMP), STEPS)
    for (got, _), want in pairs(results, simulated(results[0][1], 4, RAMP)):
        assert_same_training(got, want)


def test_devices_of_a_worker_add_up_what_they_send(two_by_two):
    results = two_by_two(PROGRAMS + "train", config_of(RAMP), STEPS, True)
    want = simulated(results[0][1], 2, RAMP)
    for rank, (got, _) in enumerate(results):
        got["losses"] = want[rank]["losses"]  # those of a worker's first device are not those of its whole batch
        assert_same_training(got, want[rank])


def test_gradients_of_micro_batches_are_compressed_once(two_workers):
    config = dict(config_of(dict(RAMP, clip=0.5)), **{"pipeline.num_micro_batch": 2})
    results = two_workers(PROGRAMS + "train", config, STEPS)
    want = simulated(results[0][1], 2, dict(RAMP, clip=0.5))
    for rank, (got, _) in enumerate(results):
        got["losses"] = want[rank]["losses"]  # one of a micro-batch is not that of a worker's whole batch
        assert_same_training(got, want[rank])


def test_large_gradients(two_workers):
    """Of 24000 numbers, a sample says which are sent."""
    options = dict(RAMP, sparsity=[0.9], begin=1, least=10000)
    results = two_workers(PROGRAMS + "train", config_of(options), 4, True, 4000)
    assert results[0][1]["hidden/kernel"].size == 24000
    for (got, _), want in pairs(results, simulated(results[0][1], 2, options, 4)):
        assert_same_training(got, want)


def test_recomputation_and_groups_of_updates_change_no_numbers(two_workers):
    config = {"gradient_checkpoint.type": "auto", "optimizer.num_apply_group": 2}
    want = two_workers(PROGRAMS + "train", config_of(RAMP), 12)
    got = two_workers(PROGRAMS + "train", dict(config_of(RAMP), **config), 12)
    for (one, _), (other, _) in pairs(got, want):
        assert_same_training(one, other)


def test_a_monitored_session_goes_on_with_nothing_kept_back(two_workers, tmp_path):
    initial = two_workers(PROGRAMS + "train", config_of(RAMP), 1)[0][1]
    first, second = (two_workers(PROGRAMS + "monitored", config_of(RAMP), str(tmp_path), until) for until in (10, 16))
    for one, other, want in pairs(first, second, simulated(initial, 2, RAMP, 16, resumed=10)):
        assert_same_training({key: one[key] + other[key] for key in want}, want)


def test_a_monitored_session_goes_on_with_what_was_kept_back(two_workers, jobs, tmp_path):
    """The numbers of a run that is not interrupted; four workers begin with the mean of what two had."""
    config = dict(config_of(RAMP), **{"dgc.save_residuals": True})
    initial = two_workers(PROGRAMS + "train", config, 1)[0][1]
    first, second = (two_workers(PROGRAMS + "monitored", config, str(tmp_path), until) for until in (10, 16))
    dgc = begun(initial, 2, RAMP)
    for one, other, want in pairs(first, second, goes_on(dgc, 2, range(16))):
        assert_same_training({key: one[key] + other[key] for key in want}, want)
    saved = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-16"))
    for kind, rows in (("velocity", dgc.u), ("residual", dgc.v)):
        for name in ("hidden/kernel", "logits/kernel"):
            want = np.stack([own[name] for own in rows]).astype(np.float32)
            assert want.any()
            assert_same(saved.get_tensor("epl_dgc/%s/%s" % (name, kind)), want)
    dgc.share_with(4)
    found = jobs[4, 1](PROGRAMS + "monitored", config, str(tmp_path), 20)
    for got, want in pairs(found, goes_on(dgc, 4, range(16, 20))):
        assert_same_training(got, want)


def test_what_is_kept_back_and_checkpoints_of_objects(two_workers, tmp_path):
    config = dict(config_of(RAMP), **{"dgc.save_residuals": True})
    for text in two_workers(PROGRAMS + "saved_as_objects", config, str(tmp_path)):
        assert "or dgc.save_residuals gathers" in text and "Use tf.train.Saver" in text


@needs_bfloat16
def test_bfloat16(two_workers):
    want = two_workers(PROGRAMS + "train", config_of(RAMP), STEPS)
    got = two_workers(PROGRAMS + "train", dict(config_of(RAMP), **{"amp.level": "O1"}), STEPS)
    for (one, _), (other, _) in pairs(got, want):
        assert one["losses"] != other["losses"]
        # Of parts of about the same size another one may be sent.
        np.testing.assert_allclose(one["losses"], other["losses"], rtol=0.05)


@pytest.mark.exhaustive
def test_handwritten_digits_are_learnt_as_well(two_workers):
    """With 99 % kept back after a ramp, within half a point of dense gradients: the mean over several first values."""
    config = {
        "dgc.sparsity": [0.75, 0.9375, 0.984375, 0.99],
        "dgc.rampup_step": 100,
        "dgc.min_elements": 500,
    }
    dense, sparse = (
        np.mean([two_workers(PROGRAMS + "digits", options, 500, seed)[0] for seed in range(1, 5)])
        for options in ({}, config)
    )
    assert dense > 0.95
    assert sparse > dense - 0.005, (sparse, dense)
