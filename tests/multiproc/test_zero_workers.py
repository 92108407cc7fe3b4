"""Optimizers' state, and parameters, divided over workers train as one device does."""

import numpy as np
import pytest

from epl import tf_compat
from tests.helpers import tricks_checks
from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, pairs
from tests.helpers.loss_scales import BAD, OPTIONS, SCALED, by_the_book, check
from tests.helpers.marks import needs_bfloat16
from tests.numerics.test_pipelines import ATOL, PIPELINES

GRADIENTS = "tests.helpers.programs.gradients:"
ZERO = "tests.helpers.programs.zero:"
OPTIMIZERS = "tests.helpers.programs.optimizers:"
LEVELS = ["v0", "v1"]
# Segments of less than a layer of the small models.
IN_SEGMENTS = {"zero.level": "v3", "zero.segment_mb": 1e-4}
ON_HOSTS = dict(IN_SEGMENTS, **{"offload.level": "v0"})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_training(plain, two_workers, level, optimizer):
    want = plain(GRADIENTS + "classifier", None, optimizer)
    for got in two_workers(GRADIENTS + "classifier", {"zero.level": level}, optimizer):
        assert_same_training(got, want)


@pytest.mark.parametrize(
    "config",
    [
        {"zero.level": "v2"},
        IN_SEGMENTS,
        {"zero.level": "v3", "zero.segment_anchors": ["Tanh:0"]},
        {"zero.level": "v2", "offload.level": "v1"},
        ON_HOSTS,
    ],
    ids=["v2", "v3", "v3_to_an_anchor", "v2_on_host", "v3_on_host"],
)
def test_parameters(plain, two_workers, config):
    want = plain(GRADIENTS + "classifier", None, "adam")
    for got in two_workers(GRADIENTS + "classifier", config, "adam"):
        assert_same_training(got, want)


@pytest.mark.parametrize("level", LEVELS + ["v2"])
def test_sparse_gradients(plain, two_workers, level):
    want = plain(GRADIENTS + "embedding")
    for got in two_workers(GRADIENTS + "embedding", {"zero.level": level}):
        assert_same_training(got, want)


def test_optimizers(plain, two_workers):
    names = ["decoupled_decay", "wrapped", "uncertainty", "smoothed_variables", "l2_and_loss_collection"]
    tricks_checks.check(plain, two_workers, names, {"zero.level": "v1"})


def test_what_programs_do_with_parameters_besides(plain, two_workers):
    names = ["decoupled_decay", "smoothed_variables", "l2_and_loss_collection", "look_ahead"]
    tricks_checks.check(plain, two_workers, names, IN_SEGMENTS)


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_kinds_of_variables(plain, two_workers, level):
    want = plain(ZERO + "kinds_of_variables", {})
    for got in two_workers(ZERO + "kinds_of_variables", {"zero.level": level}):
        assert_same_training(got, want)


def test_clipping_by_global_norm(plain, two_workers):
    tricks_checks.check(plain, two_workers, ["clip_global"], {"zero.level": "v0"})


@pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")
def test_optimizers_of_contrib(plain, two_workers):
    names = ["contrib_ada_max", "contrib_lazy_adam", "contrib_average", "contrib_lars"]
    tricks_checks.check(plain, two_workers, names, {"zero.level": "v1"})


@pytest.mark.exhaustive
@pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")
def test_parameters_of_optimizers_of_contrib(plain, two_workers):
    names = ["contrib_ada_max", "contrib_lazy_adam", "contrib_average", "contrib_lars"]
    tricks_checks.check(plain, two_workers, names, IN_SEGMENTS)


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_micro_batches(by_hand, two_workers, level):
    want = by_hand("tied_mlp", 2, 2)
    for got in two_workers(PIPELINES + "train", 1, "tied_mlp", 1, 2, 2, zero__level=level):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("level", LEVELS + ["v3", pytest.param("v2", marks=pytest.mark.exhaustive)])
def test_pipelines_within_workers(by_hand, two_by_two, level):
    want = by_hand("batch_norm_cnn", 2, 2)
    config = {"zero__level": level, "gradient_checkpoint__type": "auto"}
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, **config):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("level", ["v3", pytest.param("v2", marks=pytest.mark.exhaustive)])
def test_pipelines_within_workers_on_hosts(by_hand, two_by_two, level):
    want = by_hand("batch_norm_cnn", 2, 2)
    config = {"zero__level": level, "offload__level": "v1", "gradient_checkpoint__type": "auto"}
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, **config):
        assert_same_training(got, want, atol=ATOL)


def test_half_precision_on_the_wire(two_workers):
    config = {"communication.fp16": True, "communication.check_replicas_every": 1}
    want = two_workers(GRADIENTS + "classifier", config, "adam")[0]
    for got in two_workers(GRADIENTS + "classifier", dict(config, **{"zero.level": "v0"}), "adam"):
        assert_same_training(got, want, 0, 0)


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_a_reduce_scatter_in_half_precision(two_workers, level):
    """As an all-reduce of the same numbers."""
    config = {"communication.fp16": True, "communication.check_replicas_every": 1}
    want = two_workers(GRADIENTS + "classifier", config, "momentum")[0]
    for got in two_workers(GRADIENTS + "classifier", dict(config, **{"zero.level": level}), "momentum"):
        assert_same_training(got, want)


@needs_bfloat16
@pytest.mark.parametrize(
    "amp, level", [("O1", "v1"), ("O2", "v1"), ("O2", "v3"), pytest.param("O2", "v0", marks=pytest.mark.exhaustive)]
)
def test_mixed_precision(two_workers, amp, level):
    config = {"amp.level": amp, "pipeline.num_micro_batch": 2}
    want = two_workers(GRADIENTS + "classifier", config, "adam")[0]
    for got in two_workers(GRADIENTS + "classifier", dict(config, **{"zero.level": level}), "adam"):
        assert_same_training(got, want)


@pytest.mark.parametrize(
    "level, kind, resource, options",
    [
        ("v0", "one", False, {}),
        ("v1", "one", True, {}),
        ("v1", "two", False, {"pipeline.num_micro_batch": 2}),
        ("v1", "clipped", True, {}),
        ("v3", "one", False, {}),
        ("v1", "one", True, {"amp.level": "O2"}),
        pytest.param("v2", "clipped", True, {}, marks=pytest.mark.exhaustive),
        pytest.param("v3", "two", True, {"pipeline.num_micro_batch": 2}, marks=pytest.mark.exhaustive),
    ],
)
def test_steps_are_left_out_together(two_workers, level, kind, resource, options):
    """One worker owns the gradient that is not finite; both leave the step out, and are as without zero.level."""
    config = dict(OPTIONS, **options)
    want = two_workers(SCALED + "train", (0, 24), BAD, kind, resource, config=config)[0]
    config["zero.level"] = level
    for found in two_workers(SCALED + "train", (0, 24), BAD, kind, resource, config=config):
        check(found, range(24), BAD)
        assert found["scales"] == by_the_book(range(24), BAD)
        for state, wanted in pairs(found["states"], want["states"]):
            assert_same_state(state, wanted)


@pytest.mark.parametrize(
    "kind, groups, level",
    [
        ("lamb", 1, "v1"),
        ("lars", 1, "v1"),
        ("lamb", 2, "v1"),
        ("lamb", 2, "v2"),
        pytest.param("lars", 1, "v3", marks=pytest.mark.exhaustive),
    ],
)
def test_norms_over_whole_variables(plain, two_workers, kind, groups, level):
    want = plain(OPTIMIZERS + "train", kind)
    for got in two_workers(OPTIMIZERS + "train", kind, {"zero.level": level, "optimizer.num_apply_group": groups}):
        assert_same_training(got, want)


def test_clipped_updates_in_groups_of_several_devices(plain, two_by_two):
    config = {"zero.level": "v0", "optimizer.num_apply_group": 2}
    tricks_checks.check(plain, two_by_two, ["clip_global"], config)


@pytest.mark.parametrize(
    "resource, level", [(False, "v1"), (True, "v1"), pytest.param(True, "v3", marks=pytest.mark.exhaustive)]
)
def test_state_of_other_shapes(plain, two_workers, resource, level):
    want = plain(ZERO + "adafactor", None, resource)
    for got in two_workers(ZERO + "adafactor", {"zero.level": level}, resource):
        assert_same_training(got, want)


def test_bert_by_an_estimator_with_all_at_once(plain, two_workers, tmp_path):
    """Recomputation, float16 with a loss scale, and ZeRO: as without the first and the last, and near to float32."""
    half = {"amp.level": "O1", "amp.dtype": "float16", "amp.loss_scale": 128}
    everything = dict(half, **{"gradient_checkpoint.type": "auto", "zero.level": "v1"})
    near = plain(ZERO + "bert_by_an_estimator", str(tmp_path / "plain"))
    want = two_workers(ZERO + "bert_by_an_estimator", str(tmp_path / "half"), half)[0]
    for got in two_workers(ZERO + "bert_by_an_estimator", str(tmp_path / "all"), everything):
        assert_same(got["losses"], want["losses"])
        assert_same_state(got["state"], want["state"])
        assert set(got["state"]) == set(near["state"]) and got["losses"] != near["losses"]
        np.testing.assert_allclose(got["losses"], near["losses"], rtol=0.02)


@pytest.mark.parametrize(
    "layout, level",
    [
        ((1, 2), "v1"),
        ((2, 2), "v0"),
        ((2, 2), "v1"),
        ((2, 2), "v3"),
        pytest.param((1, 2), "v3", marks=pytest.mark.exhaustive),
    ],
)
def test_several_devices_in_a_worker(plain, jobs, layout, level):
    want = plain(GRADIENTS + "classifier", None, "adam")
    for got in jobs[layout](GRADIENTS + "classifier", {"zero.level": level}, "adam"):
        assert_same_training(got, want)


@pytest.mark.parametrize("levels", [("v1", "v0"), ("v2", "v3")])
def test_checkpoints_load_everywhere(plain, two_workers, jobs, tmp_path, levels):
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    want = plain(ZERO + "goes_on", {}, 0, 8)
    parts = [
        two_workers(ZERO + "goes_on", {"zero.level": levels[0]}, 0, 2, None, first)[0],
        plain(ZERO + "goes_on", {}, 2, 4, first, second),
        jobs[4, 1](ZERO + "goes_on", {"zero.level": levels[1]}, 4, 6, second, third)[3],
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
    assert all("is taken from worker 1, as zero.level divides the state" in message for message in found), found


def test_a_restore_of_parameters_by_the_chief_alone_is_no_silent_loss(two_workers, tmp_path):
    found = two_workers(ZERO + "restored_by_the_chief_alone", {"zero.level": "v2"}, str(tmp_path))
    assert all("is taken from worker 1, as zero.level divides" in message for message in found), found


@pytest.mark.parametrize("level", ["v2", pytest.param("v3", marks=pytest.mark.exhaustive)])
def test_a_monitored_session_divides_parameters(plain, two_workers, tmp_path, level):
    """It writes checkpoints on the way, and a session without goes on from them."""
    want = plain(ZERO + "goes_on", {}, 0, 5)
    first = two_workers(ZERO + "monitored", {"zero.level": level}, str(tmp_path), 2)[0]
    then = two_workers(ZERO + "monitored", {}, str(tmp_path), 5)[0]
    assert_same_training({key: first[key] + then[key] for key in first}, want)


@pytest.mark.parametrize("level, micro_batches", [("v0", 1), ("v1", 2), ("v3", 2)])
def test_state_divided_within_each_worker(plain, two_by_two, level, micro_batches):
    config = {"zero.level": level, "zero.degree": 2, "pipeline.num_micro_batch": micro_batches}
    want = plain(GRADIENTS + "classifier", None, "adam")
    for got in two_by_two(GRADIENTS + "classifier", config, "adam"):
        assert_same_training(got, want)


@pytest.mark.once
@pytest.mark.parametrize("level", ["v1", pytest.param("v3", marks=pytest.mark.exhaustive)])
def test_state_divided_within_groups_of_the_devices_of_each_worker(plain, jobs, level):
    want = plain(GRADIENTS + "classifier", None, "adam")
    for got in jobs[2, 4](GRADIENTS + "classifier", {"zero.level": level, "zero.degree": 2}, "adam"):
        assert_same_training(got, want)


@pytest.mark.parametrize(
    "level, micro_batches", [("v1", 1), ("v3", 2), pytest.param("v2", 1, marks=pytest.mark.exhaustive)]
)
def test_state_divided_within_groups_of_workers(plain, jobs, level, micro_batches):
    config = {"zero.level": level, "zero.degree": 2, "pipeline.num_micro_batch": micro_batches}
    want = plain(GRADIENTS + "classifier", None, "adam")
    for got in jobs[4, 1](GRADIENTS + "classifier", config, "adam"):
        assert_same_training(got, want)


@pytest.mark.once
def test_checkpoints_of_state_divided_within_groups_of_workers(plain, jobs, tmp_path):
    config, path = {"zero.level": "v2", "zero.degree": 2}, str(tmp_path / "model")
    want = plain(ZERO + "goes_on", {}, 0, 4)
    jobs[4, 1](ZERO + "goes_on", config, 0, 2, None, path)
    later = {key: values[2:] for key, values in want.items()}
    for got in [plain(ZERO + "goes_on", {}, 2, 4, path)] + list(jobs[4, 1](ZERO + "goes_on", config, 2, 4, path)):
        assert_same_training(got, later)


@pytest.mark.parametrize("layout", [(2, 2), (4, 1)])
def test_steps_are_left_out_by_all_groups_that_have_the_whole_state(jobs, layout):
    config = dict(OPTIONS)
    want = jobs[layout](SCALED + "train", (0, 24), BAD, "one", False, config=config)[0]
    config.update({"zero.level": "v1", "zero.degree": 2})
    for found in jobs[layout](SCALED + "train", (0, 24), BAD, "one", False, config=config):
        check(found, range(24), BAD)
        for state, wanted in pairs(found["states"], want["states"]):
            assert_same_state(state, wanted)


def test_checkpoints_of_state_divided_within_each_worker(plain, two_by_two, tmp_path):
    """They are those of one device, and are restored from these."""
    config, path = {"zero.level": "v1", "zero.degree": 2}, str(tmp_path / "model")
    want = plain(ZERO + "goes_on", {}, 0, 4)
    two_by_two(ZERO + "goes_on", config, 0, 2, None, path)
    later = {key: values[2:] for key, values in want.items()}
    for got in [plain(ZERO + "goes_on", {}, 2, 4, path)] + list(two_by_two(ZERO + "goes_on", config, 2, 4, path)):
        assert_same_training(got, later)
