"""Pipelines whose stages lie in several workers compute what one device computes, and what they save is whole."""

import os

import numpy as np
import pytest

from tests.helpers.checks import assert_same_training
from tests.helpers.marks import needs_bfloat16
from tests.helpers.remote import RemoteError
from tests.numerics import test_by_hand
from tests.numerics.test_pipelines import ATOL, PIPELINES
from tests.numerics.test_sessions import SESSIONS, assert_same_uneven

# Each model, each schedule and each number of micro-batches at least once.
CASES = [
    ("tied_mlp", 1, "PreferBackward"),
    ("tied_mlp", 7, "PreferBackward"),
    ("tied_mlp", 4, "ZeroBubble"),
    ("batch_norm_cnn", 2, "PreferBackward"),
    ("batch_norm_cnn", 4, "PreferForward"),
    ("batch_norm_cnn", 7, "ZeroBubble"),
    ("tiny_bert", 4, "PreferBackward"),
]


@pytest.mark.parametrize("model, micro_batches, strategy", CASES)
def test_a_worker_for_each_stage(by_hand, two_workers, model, micro_batches, strategy):
    want = by_hand(model, micro_batches, 1)
    for got in two_workers(PIPELINES + "train", 1, model, 2, micro_batches, 1, strategy):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize(
    "model, stages, micro_batches, replicas",
    [("batch_norm_cnn", 1, 1, 2), ("batch_norm_cnn", 2, 4, 1), ("recurrent", 1, 1, 2), ("recurrent", 2, 4, 1)],
)
def test_recomputation_and_updates_in_groups(by_hand, two_workers, model, stages, micro_batches, replicas):
    want = by_hand(model, micro_batches, replicas)
    auto = {"gradient_checkpoint__type": "auto", "optimizer__num_apply_group": 3}
    for got in two_workers(PIPELINES + "train", 1, model, stages, micro_batches, replicas, "PreferBackward", **auto):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.exhaustive
@needs_bfloat16
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_stages_in_16_bits(by_hand, two_workers, level):
    want = by_hand("tied_mlp", 4, 1)
    for got in two_workers(PIPELINES + "train", 1, "tied_mlp", 2, 4, 1, "PreferBackward", amp__level=level):
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
        assert list(got["losses"]) != list(want["losses"])


@pytest.mark.parametrize("model, together", [("tied_mlp", True), ("batch_norm_cnn", False)])
def test_four_stages_in_two_workers(by_hand, two_by_two, model, together):
    want = by_hand(model, 4, 1)
    config = {"cluster__device_place_prefer_intra_node": together}
    for got in two_by_two(PIPELINES + "train", 2, model, 4, 4, 1, **config):
        assert_same_training(got, want, atol=ATOL)


def test_several_stages_of_each_worker(by_hand, two_workers):
    want = by_hand("batch_norm_cnn", 4, 1)
    for got in two_workers(PIPELINES + "train", 1, "batch_norm_cnn", 4, 4, 1, "Interleaved", 2):
        assert_same_training(got, want, atol=ATOL)


def test_stages_of_different_device_counts_in_each_worker(by_hand, two_workers):
    """A replica in each worker, with two devices for its first stage and one for its second."""
    want = by_hand("tied_mlp", 4, 2)
    for got in two_workers(PIPELINES + "train", 3, "tied_mlp", 2, 4, 2, device_counts=[2, 1]):
        assert_same_training(got, want, atol=ATOL)


# The job, devices of each worker, the stages' device counts, micro-batches, replicas.
SPREAD = [((3, 1), 1, [2, 1], 4, 1), ((3, 1), 1, [1, 2], 1, 1)]
SPREAD += [((2, 2), 2, [1, 2, 1], 2, 1), ((3, 1), 2, [2, 1], 2, 2)]


@pytest.mark.parametrize("job, devices, counts, micro_batches, replicas", SPREAD)
def test_a_replica_over_workers_with_different_device_counts(
    by_hand, jobs, job, devices, counts, micro_batches, replicas
):
    """Its parts of a micro-batch are joined, or divided, from worker to worker."""
    want = by_hand("tied_mlp", micro_batches, replicas)
    config = {"device_counts": counts, "groups": 1, "communication__check_replicas_every": 2}
    results = jobs[job](PIPELINES + "train", devices, "tied_mlp", len(counts), micro_batches, replicas, **config)
    assert len(results) == job[0]
    for got in results:
        assert_same_training(got, want, atol=ATOL)


FURTHER = [("tiny_bert", 1, [2, 1], "PreferBackward"), ("tiny_bert", 1, [1, 2], "ZeroBubble")]
FURTHER += [("tied_mlp", 2, [4, 2], "PreferForward"), ("tied_mlp", 2, [1, 2, 1, 2], "ZeroBubble")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("model, devices, counts, strategy", FURTHER)
def test_other_models_over_workers_with_different_device_counts(by_hand, jobs, model, devices, counts, strategy):
    want = by_hand(model, 4, 1)
    config = {"device_counts": counts, "gradient_checkpoint__type": "auto"}
    for got in jobs[3, 1](PIPELINES + "train", devices, model, len(counts), 4, 1, strategy, **config):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.exhaustive
def test_checkpoints_of_workers_with_different_device_counts(plain, jobs, tmp_path):
    """What such workers save, plain TensorFlow and others go on from."""
    path = str(tmp_path / "model.ckpt")
    results = jobs[3, 1](PIPELINES + "saved", path, 1, "tied_mlp", 2, 2, 1, device_counts=[2, 1])
    first, again, prefix = results[0]
    assert first == pytest.approx(again, rel=1e-6)
    for value, _ in jobs[3, 1](PIPELINES + "resumed", prefix, 1, "tied_mlp", 2, 2, 1, device_counts=[1, 2]):
        assert value == pytest.approx(first, rel=1e-5)
    tensors, _ = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path))
    assert tensors["embedding"].shape == (10, 8) and not [name for name in tensors if name.startswith("epl")]


@pytest.mark.parametrize("counts", [[2, 1], [1, 2]])
def test_data_read_by_one_of_several_workers_with_a_stage(plain, jobs, counts):
    """One worker reads for all that compute a replica; clipping sees the gradients of all stages."""
    losses, read, state = plain(PIPELINES + "reads", 1, counts, 2)
    for got in jobs[3, 1](PIPELINES + "reads", 1, counts, 2):
        np.testing.assert_allclose(got[0], losses, rtol=1e-5)
        assert got[1] == read
        for name, value in state.items():
            np.testing.assert_allclose(got[2][name], value, rtol=1e-5, atol=ATOL * np.abs(value).max(), err_msg=name)


def test_two_replicas_over_the_same_two_workers(by_hand, two_by_two):
    want = by_hand("batch_norm_cnn", 2, 2)
    config = {"cluster__device_place_prefer_intra_node": False, "groups": 1}
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, **config):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("model, micro_batches", [("tied_mlp", 4), ("batch_norm_cnn", 2)])
def test_two_pipelines_of_two_workers(by_hand, jobs, model, micro_batches):
    want = by_hand(model, micro_batches, 2)
    results = jobs[4, 1](PIPELINES + "train", 1, model, 2, micro_batches, 2)
    assert len(results) == 4
    for got in results:
        assert_same_training(got, want, atol=ATOL)


def test_the_state_of_a_scalar_of_the_last_stage_is_saved(plain, jobs, two_workers, tmp_path):
    """Only the worker that has the stage changes it, whatever its shape."""
    config = {"amp.level": "", "amp.dtype": "auto"}
    options = dict(kind="last", config=config, save=str(tmp_path))
    for found in two_workers("tests.helpers.programs.loss_scale:train", (0, 3), (), stages=2, groups=1, **options):
        assert found["states"][-1]["net/alone/Adam"] > 0.2
    tensors, _ = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path / "worker_0"))
    assert tensors["net/alone/Adam"] == found["states"][-1]["net/alone/Adam"]


def test_checkpoints_are_whole(plain, jobs, two_workers, two_devices, tmp_path):
    """What a pipeline over workers saves, plain TensorFlow and every other layout go on from."""
    for first, again, prefix in two_workers(PIPELINES + "saved", str(tmp_path / "model"), 1, "batch_norm_cnn", 2, 1, 1):
        assert first == again
    loss, state = plain(PIPELINES + "resumed", prefix, 1, "batch_norm_cnn", 1, 1, 1)
    np.testing.assert_allclose(loss, first, rtol=1e-5)
    others = [two_devices(PIPELINES + "resumed", prefix, 2, "batch_norm_cnn", 2, 1, 1)]
    others += two_workers(PIPELINES + "resumed", prefix, 1, "batch_norm_cnn", 2, 1, 1)
    for other_loss, other_state in others:
        np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
        assert set(other_state) == set(state)
        for name, value in state.items():
            np.testing.assert_allclose(
                other_state[name], value, rtol=1e-5, atol=ATOL * np.abs(value).max(), err_msg=name
            )


def test_the_chief_reads_alone(two_workers):
    (alone, state), (nothing, other) = two_workers(PIPELINES + "chief_reads", 1, 2)
    assert nothing == [] and len(alone) == 3
    assert set(alone[0]) <= set(state)
    for name in alone[0]:
        assert not np.array_equal(alone[1][name], alone[2][name])
        np.testing.assert_array_equal(state[name], other[name])


@pytest.mark.parametrize("strategy, alive", [("PreferBackward", (2, 1)), ("PreferForward", (4, 4))])
def test_a_monitored_session_over_stages(two_workers, plain, tmp_path, strategy, alive):
    """The chief writes what one device would write, and the schedule is the one that was asked for."""
    (losses, shown, live, page), (others, _, nothing, _) = two_workers(
        PIPELINES + "monitored", str(tmp_path), 1, 2, 4, strategy
    )
    assert losses == others and len(set(losses)) == 4
    np.testing.assert_allclose(shown, losses, rtol=1e-6)
    assert live == alive and nothing is None  # micro-batches whose activations are alive, counted in the run
    measured = page.partition("<h2>Measured")[2]
    for kind in ("forward", "backward"):
        for stage in range(2):
            assert all("%s, stage %d, micro-batch %d:" % (kind, stage, m) in measured for m in range(4))
    assert "Measured" in page and "Estimated" in page
    tensors, kept = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path))
    assert kept[-1] == "model.ckpt-4" and {"embedding", "layer_3/kernel", "global_step"} <= set(tensors)
    assert not [name for name in os.listdir(str(tmp_path)) if "epl_part" in name]


def test_automatic_stages_in_two_workers(by_hand, two_workers):
    want = by_hand("batch_norm_cnn", 4, 1)
    for got in two_workers(PIPELINES + "train", 1, "batch_norm_cnn", 1, 4, 1, automatic=2):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_optimizers_by_hand_of_two_stages(plain, two_workers, micro_batches):
    """Slots, and what is made of gradients, lie in the worker of their variables; the norm of all goes to both."""
    names, config = ["adam", "clipped", "sparse", "steady"], {"pipeline.num_micro_batch": micro_batches}
    names = [name for name in names if micro_batches == 1 or name != "sparse"]
    want = plain(test_by_hand.TRAIN, names)
    for got in two_workers(test_by_hand.TRAIN, names, config, stages=2, together=True):
        test_by_hand.check(got, want)


def test_accumulators_in_branches_of_two_stages_are_refused(two_workers):
    for outcome in two_workers.outcomes(test_by_hand.TRAIN, ["accumulated"], stages=2, together=True):
        assert isinstance(outcome, RemoteError) and "stands in a loop or a branch and is used by" in outcome.message
        assert "or all stages into one worker" in outcome.message


def test_batches_that_do_not_divide_into_micro_batches(plain, two_workers):
    sizes = [8, 7, 8, 1, 6]
    want = plain(SESSIONS + "uneven", sizes)
    for got in two_workers(SESSIONS + "uneven", sizes, 2, 2):
        assert_same_uneven(got, want)


def test_short_batches_of_two_copies_over_two_workers(plain, two_by_two):
    sizes = [8, 6, 8, 1]
    want = plain(SESSIONS + "uneven", sizes)
    for got in two_by_two(SESSIONS + "uneven", sizes, 2, 2, cluster__device_place_prefer_intra_node=False):
        assert_same_uneven(got, want)
