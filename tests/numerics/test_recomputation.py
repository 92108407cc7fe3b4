"""Recomputation together with replicas, micro-batches, pipelines and synchronised batch normalisation."""

import pytest

from tests.helpers.checks import assert_same_training
from tests.numerics.test_pipelines import ATOL

PIPELINES = "tests.helpers.programs.pipelines:"
AUTO = {"gradient_checkpoint__type": "auto"}
CHECKED = dict(AUTO, gradient_checkpoint__check_gradients=True)
# (devices, stages, micro-batches, replicas, schedule)
LAYOUTS = [
    (2, 1, 1, 2, "PreferBackward"),
    (1, 1, 3, 1, "PreferBackward"),
    (2, 2, 4, 1, "PreferBackward"),
    (2, 2, 4, 1, "ZeroBubble"),
]


LARGEST = pytest.param("tiny_bert", marks=pytest.mark.exhaustive)


def test_a_transformer_in_stages(by_hand, two_devices):
    check(by_hand, two_devices, "tiny_bert", LAYOUTS[2])


@pytest.mark.parametrize("model", ["tied_mlp", "batch_norm_cnn", LARGEST])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "x".join(map(str, layout)))
def test_equals_one_device(by_hand, two_devices, model, layout):
    check(by_hand, two_devices, model, layout)


@pytest.mark.parametrize("layout", LAYOUTS[:3], ids=lambda layout: "x".join(map(str, layout)))
def test_loops_of_control_flow_v1(by_hand, two_devices, layout):
    check(by_hand, two_devices, "recurrent", layout)


@pytest.mark.parametrize(
    "config",
    [
        {"zero__level": "v3", "zero__segment_mb": 1e-4},
        {"zero__level": "v1", "offload__level": "v1"},
        pytest.param({"gradient_checkpoint__offload": True}, marks=pytest.mark.exhaustive),
    ],
    ids=lambda config: "-".join(config),
)
def test_loops_that_are_repeated_with_divided_or_distant_memory(by_hand, two_devices, config):
    want = by_hand("recurrent", 1, 2)
    got = two_devices(PIPELINES + "train", 2, "recurrent", 1, 1, 2, **dict(config, **AUTO))
    assert_same_training(got, want, atol=ATOL)


@pytest.mark.once
@pytest.mark.parametrize("level", ["O1", pytest.param("O2", marks=pytest.mark.exhaustive)])
def test_loops_that_are_repeated_in_16_bits(two_devices, level):
    """As those that are not repeated, which is not what float32 gives."""
    config = {"amp__level": level, "amp__dtype": "float16", "amp__loss_scale": 128.0}
    want = two_devices(PIPELINES + "train", 2, "recurrent", 1, 1, 2, **config)
    got = two_devices(PIPELINES + "train", 2, "recurrent", 1, 1, 2, **dict(config, **AUTO))
    assert_same_training(got, want, atol=ATOL)


def check(by_hand, two_devices, model, layout):
    devices, stages, micro_batches, replicas, strategy = layout
    want = by_hand(model, micro_batches, replicas)
    got = two_devices(PIPELINES + "train", devices, model, stages, micro_batches, replicas, strategy, **CHECKED)
    assert_same_training(got, want, atol=ATOL)


def test_a_gradient_that_differs_is_named(two_devices):
    assert two_devices(PIPELINES + "computed_wrongly", 2)


@pytest.mark.parametrize("model", ["batch_norm_cnn", "moments_cnn"])
def test_synchronised_batch_normalisation(two_devices, model):
    """Statistics over all replicas are kept; the same with recomputation as without."""
    synced = {"communication__sync_batch_norm": True}
    want = two_devices(PIPELINES + "train", 2, model, 1, 1, 2, **synced)
    got = two_devices(PIPELINES + "train", 2, model, 1, 1, 2, **dict(synced, **CHECKED))
    assert_same_training(got, want)
