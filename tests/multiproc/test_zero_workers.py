"""Optimizers' state divided over workers trains as one device does."""

import pytest

from epl import tf_compat
from tests.helpers import tricks_checks
from tests.helpers.checks import assert_same_state, assert_same_training
from tests.numerics.test_pipelines import ATOL, PIPELINES

GRADIENTS = "tests.helpers.programs.gradients:"
ZERO = "tests.helpers.programs.zero:"
LEVELS = ["v0", "v1"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_training(plain, two_workers, level, optimizer):
    want = plain(GRADIENTS + "classifier", None, optimizer)
    for got in two_workers(GRADIENTS + "classifier", {"zero.level": level}, optimizer):
        assert_same_training(got, want)


@pytest.mark.parametrize("level", LEVELS)
def test_sparse_gradients(plain, two_workers, level):
    want = plain(GRADIENTS + "embedding")
    for got in two_workers(GRADIENTS + "embedding", {"zero.level": level}):
        assert_same_training(got, want)


def test_optimizers(plain, two_workers):
    names = ["decoupled_decay", "wrapped", "uncertainty", "smoothed_variables", "l2_and_loss_collection"]
    tricks_checks.check(plain, two_workers, names, {"zero.level": "v1"})


def test_kinds_of_variables(plain, two_workers):
    want = plain(ZERO + "kinds_of_variables", {})
    for got in two_workers(ZERO + "kinds_of_variables", {"zero.level": "v1"}):
        assert_same_training(got, want)


def test_clipping_by_global_norm(plain, two_workers):
    tricks_checks.check(plain, two_workers, ["clip_global"], {"zero.level": "v0"})


@pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")
def test_optimizers_of_contrib(plain, two_workers):
    names = ["contrib_ada_max", "contrib_lazy_adam", "contrib_average", "contrib_lars"]
    tricks_checks.check(plain, two_workers, names, {"zero.level": "v1"})


def test_micro_batches(by_hand, two_workers):
    want = by_hand("tied_mlp", 2, 2)
    for got in two_workers(PIPELINES + "train", 1, "tied_mlp", 1, 2, 2, zero__level="v1"):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("level", LEVELS)
def test_pipelines_within_workers(by_hand, two_by_two, level):
    want = by_hand("batch_norm_cnn", 2, 2)
    config = {"zero__level": level, "gradient_checkpoint__type": "auto"}
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, **config):
        assert_same_training(got, want, atol=ATOL)


def test_half_precision_on_the_wire(two_workers):
    config = {"communication.fp16": True, "communication.check_replicas_every": 1}
    want = two_workers(GRADIENTS + "classifier", config, "adam")[0]
    for got in two_workers(GRADIENTS + "classifier", dict(config, **{"zero.level": "v0"}), "adam"):
        assert_same_training(got, want, 0, 0)


@pytest.mark.skipif(tf_compat.line() == "tf1", reason="TF 1.15 has no kernels for bfloat16")
def test_mixed_precision(two_workers):
    config = {"amp.level": "O1", "pipeline.num_micro_batch": 2}
    want = two_workers(GRADIENTS + "classifier", config, "adam")[0]
    for got in two_workers(GRADIENTS + "classifier", dict(config, **{"zero.level": "v1"}), "adam"):
        assert_same_training(got, want)


def test_checkpoints_load_everywhere(plain, two_workers, jobs, tmp_path):
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    want = plain(ZERO + "goes_on", {}, 0, 8)
    parts = [
        two_workers(ZERO + "goes_on", {"zero.level": "v1"}, 0, 2, None, first)[0],
        plain(ZERO + "goes_on", {}, 2, 4, first, second),
        jobs[4, 1](ZERO + "goes_on", {"zero.level": "v0"}, 4, 6, second, third)[3],
        two_workers(ZERO + "goes_on", {}, 6, 8, third)[1],
    ]
    got = {key: sum((part[key] for part in parts), []) for key in want}
    assert_same_training(got, want)


def test_a_monitored_session_resumes(plain, two_workers, tmp_path):
    want, got = plain(ZERO + "goes_on", {}, 0, 5), {"losses": [], "states": []}
    for until in (2, 5):
        one, other = two_workers(ZERO + "monitored", {"zero.level": "v1"}, str(tmp_path), until)
        assert one["losses"] == other["losses"]
        assert_same_state(one["states"][-1], other["states"][-1], 0, 0)
        got = {key: got[key] + one[key] for key in got}
    assert_same_training(got, want)


def test_a_restore_by_the_chief_alone_is_no_silent_loss(two_workers, tmp_path):
    found = two_workers(ZERO + "restored_by_the_chief_alone", {"zero.level": "v1"}, str(tmp_path))
    assert all("worker 1 alone holds" in message for message in found), found
