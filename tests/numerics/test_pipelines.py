"""Pipelines and gradient accumulation compute what one device computes micro-batch by micro-batch."""

import pytest

from tests.helpers.checks import assert_same_training

PIPELINES = "tests.helpers.programs.pipelines:"
MODELS = ("tied_mlp", "batch_norm_cnn", "tiny_bert")
# The same with the largest one left out, where another test has it too.
SMALLER = MODELS[:2] + (pytest.param("tiny_bert", marks=pytest.mark.exhaustive),)
# The same with the largest one on one line only.
LARGEST_ONCE = MODELS[:2] + (pytest.param("tiny_bert", marks=pytest.mark.once),)
# Of a tensor's largest number: sums over micro-batches round otherwise than sums over a batch, which shows where terms
# cancel out.
ATOL = 5e-6
SCHEDULES = ("PreferForward", "PreferBackward")


# With these the next test has every model with every number of stages and micro-batches.
OTHERS = [("batch_norm_cnn", 1, 7), ("tied_mlp", 2, 7), ("batch_norm_cnn", 2, 2), ("tied_mlp", 4, 4)]


@pytest.mark.parametrize(
    "model, stages, micro_batches",
    [("tied_mlp", 1, 7), ("batch_norm_cnn", 2, 7), ("tied_mlp", 2, 2), ("batch_norm_cnn", 4, 4)]
    + [pytest.param(*each, marks=pytest.mark.once) for each in OTHERS]
    + [pytest.param("tiny_bert", *each, marks=pytest.mark.exhaustive) for each in ((1, 7), (2, 2), (2, 7), (4, 4))],
)
def test_stages_in_one_worker(by_hand, two_devices, model, stages, micro_batches):
    check_stages(by_hand, two_devices, model, stages, micro_batches)


@pytest.mark.parametrize("model", SMALLER)
def test_three_stages_in_one_worker(by_hand, two_devices, model):
    check_stages(by_hand, two_devices, model, 3, 4)


def check_stages(by_hand, two_devices, model, stages, micro_batches):
    want = by_hand(model, micro_batches, 1)
    for strategy in SCHEDULES if micro_batches == 4 else SCHEDULES[1:]:
        got = two_devices(PIPELINES + "train", stages, model, stages, micro_batches, 1, strategy)
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("stages, micro_batches", [(1, 2), (3, 4)])
@pytest.mark.parametrize("model", SMALLER)
def test_gradients_of_weights_are_put_off(by_hand, two_devices, model, stages, micro_batches):
    want = by_hand(model, micro_batches, 1)
    got = two_devices(PIPELINES + "train", stages, model, stages, micro_batches, 1, "zerobubble")
    assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("model", SMALLER)
@pytest.mark.parametrize("stages, micro_batches, chunks", [(4, 7, 2)])
def test_several_stages_on_a_device(by_hand, two_devices, model, stages, micro_batches, chunks):
    want = by_hand(model, micro_batches, 1)
    for strategy in ("Interleaved", "PreferForward"):
        devices = stages // chunks
        got = two_devices(PIPELINES + "train", devices, model, stages, micro_batches, 1, strategy, chunks)
        assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("model", LARGEST_ONCE)
@pytest.mark.parametrize("stages, micro_batches", [(2, 4)])
def test_two_replicas_of_stages(by_hand, two_devices, model, stages, micro_batches):
    want = by_hand(model, micro_batches, 2)
    got = two_devices(PIPELINES + "train", 2 * stages, model, stages, micro_batches, 2)
    assert_same_training(got, want, atol=ATOL)


def test_two_replicas_of_several_stages_on_a_device(by_hand, two_devices):
    """A stage's moving averages do not wait for those of a later stage on the same device."""
    want = by_hand("batch_norm_cnn", 4, 2)
    got = two_devices(PIPELINES + "train", 4, "batch_norm_cnn", 4, 4, 2, "Interleaved", 2)
    assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize("model, stages", [("batch_norm_cnn", 2), pytest.param("tiny_bert", 4, marks=pytest.mark.once)])
def test_stages_chosen_automatically(by_hand, two_devices, model, stages):
    want = by_hand(model, 4, 1)
    got = two_devices(PIPELINES + "train", stages, model, 1, 4, 1, automatic=stages)
    assert_same_training(got, want, atol=ATOL)


UNEVEN = [("tied_mlp", [2, 1], 1, 1), ("tied_mlp", [1, 2], 4, 1), ("norm_at_the_end", [2, 1], 4, 2)]
FURTHER = [("tied_mlp", [1, 2], 4, 2), ("tied_mlp", [4, 2, 1], 4, 1)]
FURTHER += [("tiny_bert", [2, 1], 4, 1), ("tiny_bert", [1, 2], 4, 1)]


@pytest.mark.parametrize(
    "model, counts, micro_batches, replicas",
    UNEVEN + [pytest.param(*each, marks=pytest.mark.exhaustive) for each in FURTHER],
)
def test_stages_of_different_device_counts(by_hand, two_devices, model, counts, micro_batches, replicas):
    """A micro-batch is joined, or divided, where it comes to the next stage."""
    want = by_hand(model, micro_batches, replicas)
    devices = sum(counts) * replicas
    got = two_devices(PIPELINES + "train", devices, model, len(counts), micro_batches, replicas, device_counts=counts)
    # To normalise four rows magnifies how sums are rounded.
    assert_same_training(got, want, atol=4 * ATOL if model == "norm_at_the_end" else ATOL)


# What needs as many copies of all variables; a device of the smaller stage has several.
STACKED = [
    ("tied_mlp", [2, 1], 2, 1, {"zero__level": "v3", "zero__segment_mb": 1e-4, "offload__level": "v1"}),
    ("tied_mlp", [1, 2], 1, 2, {"gradient_checkpoint__offload": True, "optimizer__num_apply_group": 2}),
    ("moments_cnn", [1, 2], 1, 1, {"communication__sync_batch_norm": True, "zero__level": "v1"}),
]


@pytest.mark.parametrize("model, counts, micro_batches, replicas, options", STACKED)
def test_options_of_stages_of_different_device_counts(
    by_hand, two_devices, model, counts, micro_batches, replicas, options
):
    want = by_hand(model, micro_batches, replicas)
    case = sum(counts) * replicas, model, len(counts), micro_batches, replicas
    assert_same_training(two_devices(PIPELINES + "train", *case, device_counts=counts, **options), want, atol=ATOL)


def test_checkpoints_of_stages_of_different_device_counts(plain, two_devices, tmp_path):
    """They hold what one device has, and load under other device counts."""
    path = str(tmp_path / "model.ckpt")
    first, again, prefix = two_devices(PIPELINES + "saved", path, 3, "tied_mlp", 2, 2, 1, device_counts=[2, 1])
    value, _ = two_devices(PIPELINES + "resumed", prefix, 3, "tied_mlp", 2, 2, 1, device_counts=[1, 2])
    assert first == pytest.approx(again, rel=1e-6) and first == pytest.approx(value, rel=1e-5)
    tensors, _ = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path))
    assert tensors["embedding"].shape == (10, 8) and not [name for name in tensors if name.startswith("epl")]


def test_what_is_fetched_alone_at_stages_of_different_device_counts(two_devices):
    """A run that does not train gives what one device makes of the whole batch."""
    for counts in [2, 1], [1, 2]:
        assert two_devices(PIPELINES + "seen", 3, counts) == pytest.approx(1.0)
