"""Schedules of pipelines: orders by hand, and properties over many sizes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.errors import ConfigError
from epl.plan.pipeline.schedules import Action, needs, schedule, strategies, strategy_name
from epl.plan.pipeline.simulate import check_complete, simulate

pytestmark = pytest.mark.once


def text(strategy, *sizes):
    """Per device the actions as one string."""
    return [" ".join(str(action) for action in actions) for actions in schedule(strategy, *sizes)]


def test_prefer_forward_by_hand():
    assert text("PreferForward", 2, 3) == [
        "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2",
        "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2",
    ]


def test_prefer_backward_by_hand():
    assert text("PreferBackward", 3, 4) == [
        "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3",
        "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3",
        "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3",
    ]


def test_interleaved_by_hand():
    assert text("Interleaved", 2, 4, 2) == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    ]


def test_zero_bubble_by_hand():
    assert text("ZeroBubble", 2, 3) == [
        "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2",
        "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2",
    ]


@pytest.mark.parametrize("strategy", strategies())
def test_one_device_is_gradient_accumulation(strategy):
    (actions,) = schedule(strategy, 1, 5)
    forward = [action for action in actions if action.kind == "F"]
    assert forward == [Action("F", 0, m) for m in range(5)]
    if strategy != "PreferForward":
        assert [action.kind for action in actions[:2]] == ["F", "B"]


@pytest.mark.parametrize("text", ["preferbackward", "PREFER_BACKWARD", "prefer-backward", "PreferBackward"])
def test_names_in_any_case(text):
    assert strategy_name(text) == "PreferBackward"
    assert schedule(text, 3, 4) == schedule("PreferBackward", 3, 4)


def test_strategies():
    assert strategies() == ("PreferBackward", "PreferForward", "Interleaved", "ZeroBubble")


@pytest.mark.parametrize("wrong, near", [("PreferBackwards", "PreferBackward"), ("zerobuble", "ZeroBubble")])
def test_unknown_name(wrong, near):
    with pytest.raises(ConfigError, match="'%s' is not known. Did you mean '%s'" % (wrong, near)):
        schedule(wrong, 2, 2)


@pytest.mark.parametrize("wrong", ["qqqq", None, 3])
def test_unknown_name_with_no_neighbour(wrong):
    with pytest.raises(ValueError, match="is not known. Known are: 'PreferBackward'"):
        schedule(wrong, 2, 2)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (2.0, 1, 1), (1, True, 1)])
def test_bad_numbers(sizes):
    with pytest.raises(ConfigError, match="a whole number of at least 1"):
        schedule("PreferForward", *sizes)


@pytest.mark.parametrize("strategy", ["PreferBackward", "ZeroBubble"])
def test_strategies_of_one_chunk(strategy):
    with pytest.raises(ConfigError, match="with 6 stages take 6 devices, or pipeline.strategy='Interleaved'"):
        schedule(strategy, 3, 4, 2)


def test_what_actions_need():
    assert needs(Action("F", 0, 5), 3) == ()
    assert needs(Action("F", 2, 5), 3) == (Action("F", 1, 5),)
    assert needs(Action("B", 2, 5), 3) == (Action("F", 2, 5),)
    assert needs(Action("B", 1, 5), 3) == (Action("F", 1, 5), Action("B", 2, 5))
    assert needs(Action("W", 1, 5), 3) == (Action("B", 1, 5),)


sizes = st.tuples(st.sampled_from(strategies()), st.integers(1, 8), st.integers(1, 16), st.integers(1, 4)).map(
    lambda drawn: drawn if drawn[0] in ("PreferForward", "Interleaved") else drawn[:3] + (1,)
)


@settings(deadline=None)
@given(sizes)
def test_every_schedule_is_whole_and_runs(drawn):
    strategy, num_devices, num_micro_batch, num_chunks = drawn
    devices = schedule(*drawn)
    assert check_complete(devices, num_devices * num_chunks, num_micro_batch) == (
        num_devices * num_chunks,
        num_micro_batch,
    )
    assert len(devices) == num_devices
    for device, actions in enumerate(devices):
        assert {action.stage % num_devices for action in actions} == {device}
        # Updates of batch normalisation and sums of gradients go in the order of micro-batches.
        for kind, stage in sorted({(action.kind, action.stage) for action in actions}):
            order = [action.micro_batch for action in actions if (action.kind, action.stage) == (kind, stage)]
            assert order == list(range(num_micro_batch))
    simulate(devices, {"F": 1, "B": 2, "W": 1})  # raises on deadlock


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 16))
def test_activations_alive(num_devices, num_micro_batch):
    durations = {"F": 1, "B": 1, "W": 1}
    one = simulate(schedule("PreferBackward", num_devices, num_micro_batch), durations)
    assert one.peak_live == tuple(min(num_micro_batch, num_devices - s) for s in range(num_devices))
    gpipe = simulate(schedule("PreferForward", num_devices, num_micro_batch), durations)
    assert gpipe.peak_live == (num_micro_batch,) * num_devices
    zero = simulate(schedule("ZeroBubble", num_devices, num_micro_batch), durations)
    assert zero.peak_live == (min(num_micro_batch, num_devices),) * num_devices


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 16), st.integers(2, 4))
def test_interleaved_activations_alive(num_devices, num_micro_batch, num_chunks):
    devices = schedule("Interleaved", num_devices, num_micro_batch, num_chunks)
    line = simulate(devices, {"F": 1, "B": 2}, activation_bytes=[1] * (num_devices * num_chunks))
    group = num_micro_batch
    if num_micro_batch >= num_devices:
        group = -(-num_micro_batch // (num_micro_batch // num_devices))
    for device in range(num_devices):
        assert line.peak_bytes[device] <= 2 * (num_devices - device - 1) + (num_chunks - 1) * group + 1
