"""Optimizers' state, and parameters, divided over the copies of a pipeline whose stages lie in several workers."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_training
from tests.helpers.marks import needs_bfloat16
from tests.numerics.test_pipelines import ATOL, PIPELINES

APART = {"cluster__device_place_prefer_intra_node": False, "groups": 1}
IN_SEGMENTS = {"zero__level": "v3", "zero__segment_mb": 1e-4}
IN_GROUPS = {"optimizer__num_apply_group": 2, "gradient_checkpoint__type": "auto"}
MORE = pytest.mark.exhaustive


@pytest.mark.parametrize("level", ["v1"] + [pytest.param(level, marks=MORE) for level in ("v0", "v2", "v3")])
def test_copies_over_the_same_two_workers(by_hand, two_by_two, level):
    want = by_hand("batch_norm_cnn", 2, 2)
    for got in two_by_two(PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 2, zero__level=level, **APART):
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize(
    "model, micro_batches, strategy, config",
    [
        ("tied_mlp", 4, "PreferBackward", {"zero__level": "v1"}),
        ("batch_norm_cnn", 1, "PreferBackward", dict(IN_GROUPS, zero__level="v0")),
        ("batch_norm_cnn", 2, "PreferForward", IN_SEGMENTS),
        pytest.param("tied_mlp", 2, "PreferForward", dict(IN_SEGMENTS, offload__level="v1"), marks=MORE),
        pytest.param("tied_mlp", 2, "ZeroBubble", {"zero__level": "v2"}, marks=MORE),
        pytest.param("tiny_bert", 4, "ZeroBubble", {"zero__level": "v1"}, marks=MORE),
        pytest.param("tiny_bert", 2, "PreferForward", dict(IN_GROUPS, zero__level="v0"), marks=MORE),
        pytest.param("tied_mlp", 1, "PreferBackward", IN_SEGMENTS, marks=MORE),
        pytest.param(
            "tied_mlp",
            2,
            "PreferBackward",
            {"zero__level": "v1", "communication__fuse_size_mb": 1e-4, "communication__check_replicas_every": 1},
            marks=MORE,
        ),
        pytest.param(
            "tied_mlp",
            2,
            "PreferBackward",
            {"zero__level": "v0", "communication__clip_after_allreduce": True},
            marks=MORE,
        ),
        pytest.param(
            "tied_mlp",
            2,
            "PreferBackward",
            {"zero__level": "v3", "communication__clip_after_allreduce": True},
            marks=MORE,
        ),
    ],
)
def test_two_pipelines_of_two_workers(by_hand, jobs, model, micro_batches, strategy, config):
    want = by_hand(model, micro_batches, 2)
    for got in jobs[4, 1](PIPELINES + "train", 1, model, 2, micro_batches, 2, strategy, **config):
        assert_same_training(got, want, atol=ATOL)


@MORE
@pytest.mark.parametrize("degree", [0, 2])
@pytest.mark.parametrize("level", ["v1", "v3"])
def test_two_copies_in_each_of_two_pairs_of_workers(by_hand, jobs, level, degree):
    want = by_hand("batch_norm_cnn", 2, 4)
    config = dict(APART, groups=2, zero__level=level, zero__degree=degree)
    for got in jobs[4, 1](PIPELINES + "train", 2, "batch_norm_cnn", 2, 2, 4, **config):
        assert_same_training(got, want, atol=ATOL)


@MORE
def test_several_stages_of_each_worker(by_hand, jobs):
    want = by_hand("batch_norm_cnn", 4, 2)
    for got in jobs[4, 1](PIPELINES + "train", 1, "batch_norm_cnn", 4, 4, 2, "Interleaved", 2, zero__level="v1"):
        assert_same_training(got, want, atol=ATOL)


@MORE
@needs_bfloat16
@pytest.mark.parametrize("amp", ["O1", "O2"])
def test_mixed_precision(jobs, amp):
    want = jobs[4, 1](PIPELINES + "train", 1, "tied_mlp", 2, 4, 2, amp__level=amp)[0]
    for got in jobs[4, 1](PIPELINES + "train", 1, "tied_mlp", 2, 4, 2, amp__level=amp, zero__level="v1"):
        assert_same_training(got, want)


def test_checkpoints_are_whole(plain, jobs, two_by_two, tmp_path):
    """Plain TensorFlow, and other layouts, go on from them; the same session comes back to the same loss."""
    args = (1, "tied_mlp", 2, 1, 2)
    for first, again, prefix in jobs[4, 1](PIPELINES + "saved", str(tmp_path / "model"), *args, zero__level="v1"):
        assert first == again
    loss, state = plain(PIPELINES + "resumed", prefix, 1, "tied_mlp", 1, 1, 2)
    others = list(jobs[4, 1](PIPELINES + "resumed", prefix, *args, zero__level="v3"))
    config = {"cluster__device_place_prefer_intra_node": False, "zero__level": "v0"}
    others += two_by_two(PIPELINES + "resumed", prefix, 2, "tied_mlp", 2, 1, 2, **config)
    for other_loss, other_state in others:
        np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
        assert set(other_state) == set(state)
        for name, value in state.items():
            largest = np.abs(value).max()
            np.testing.assert_allclose(other_state[name], value, rtol=1e-5, atol=ATOL * largest, err_msg=name)


@MORE
def test_the_chief_reads_alone(jobs):
    (alone, state), *others = jobs[4, 1](PIPELINES + "chief_reads", 1, 2, zero__level="v3")
    assert len(alone) == 3
    for name in alone[0]:
        assert not np.array_equal(alone[1][name], alone[2][name])
        assert all(np.array_equal(state[name], other[name]) for _, other in others)


@MORE
def test_a_monitored_session(plain, jobs, tmp_path):
    results = jobs[4, 1](PIPELINES + "monitored", str(tmp_path), 1, 2, 4, zero__level="v1")
    losses = results[0][0]
    assert all(other[0] == losses for other in results) and len(set(losses)) == 4
    np.testing.assert_allclose(results[0][1], losses, rtol=1e-6)
    tensors, kept = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path))
    assert kept[-1] == "model.ckpt-4" and {"embedding", "layer_3/kernel/Adam_1", "global_step"} <= set(tensors)
