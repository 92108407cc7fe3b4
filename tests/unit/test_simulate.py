"""The simulator of schedules: times, bubbles, activations, and schedules that cannot run."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.errors import PlanError
from epl.plan.pipeline.schedules import Action, schedule
from epl.plan.pipeline.simulate import Slot, check_complete, simulate, timeline_of

pytestmark = pytest.mark.once

devices = st.integers(1, 8)
micro_batches = st.integers(1, 16)
times = st.integers(1, 5).map(Fraction)


def parse(*lines):
    """["F0.0 B0.0"] to lists of Action."""
    actions = []
    for line in lines:
        words = [(word[0], word[1:].split(".")) for word in line.split()]
        actions.append([Action(kind, int(stage), int(batch)) for kind, (stage, batch) in words])
    return actions


def test_two_stages_by_hand():
    line = simulate(parse("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"), {"F": 1, "B": 2}, activation_bytes=[10, 7])
    assert line.slots[0] == (
        Slot(Action("F", 0, 0), 0, 1),
        Slot(Action("F", 0, 1), 1, 2),
        Slot(Action("B", 0, 0), 4, 6),
        Slot(Action("B", 0, 1), 7, 9),
    )
    assert [slot[1:] for slot in line.slots[1]] == [(1, 2), (2, 4), (4, 5), (5, 7)]
    assert line.makespan == 9
    assert line.idle == (pytest.approx(3 / 9), pytest.approx(3 / 9))
    assert line.bubble == pytest.approx(1 / 3)
    assert (line.peak_live, line.peak_bytes) == ((2, 1), (20, 7))
    assert line.slot(Action("B", 1, 0)).start == 2
    with pytest.raises(KeyError, match="B1.5"):
        line.slot(Action("B", 1, 5))


def test_times_of_stages_and_transfers():
    order = parse("F0.0 B0.0", "F1.0 B1.0")
    line = simulate(order, {"F": [1, 2], "B": [3, 4]}, transfer=10)
    assert [slot[1:] for slot in line.slots[0]] == [(0, 1), (27, 30)]
    assert [slot[1:] for slot in line.slots[1]] == [(11, 13), (13, 17)]
    uneven = simulate(order, lambda action: 1, transfer=lambda begin, end: 5 if begin < end else 7)
    assert [slot[1:] for slot in uneven.slots[0]] == [(0, 1), (15, 16)]


def test_no_transfer_within_a_device():
    assert simulate(parse("F0.0 F1.0 B1.0 B0.0"), {"F": 1, "B": 1}, transfer=100).makespan == 4


def test_measured_slots():
    line = timeline_of([[Slot(Action("F", 0, 0), 5, 6), Slot(Action("B", 0, 0), 8, 9)]], 1)
    assert (line.makespan, line.bubble, line.peak_live, line.peak_bytes) == (4, 0.5, (1,), None)


@settings(deadline=None)
@given(st.sampled_from(["PreferForward", "PreferBackward"]), devices, micro_batches, times, times)
def test_bubble_is_the_theoretical_one(strategy, stages, batches, forward, backward):
    line = simulate(schedule(strategy, stages, batches), {"F": forward, "B": backward})
    assert line.bubble == Fraction(stages - 1, batches + stages - 1)
    assert line.idle == (line.bubble,) * stages


@settings(deadline=None)
@given(devices, micro_batches, st.integers(1, 4), times, times)
def test_bubble_of_interleaving(num_devices, batches, chunks, forward, backward):
    line = simulate(schedule("Interleaved", num_devices, batches, chunks), {"F": forward, "B": backward})
    # (D - 1) / (C M + D - 1), unless there are too few micro-batches to keep the devices busy.
    passes = max(chunks * batches + num_devices - 1, chunks * num_devices + batches - 1)
    assert line.makespan == passes * (forward + backward)


@settings(deadline=None)
@given(devices, micro_batches, times, times, times)
def test_bubble_of_zero_bubble(stages, more, forward, backward, weight):
    weight = min(weight, forward, backward)
    batches = stages + more
    line = simulate(schedule("ZeroBubble", stages, batches), {"F": forward, "B": backward, "W": weight})
    assert line.makespan == batches * (forward + backward + weight) + (stages - 1) * (forward + backward - weight)


@settings(deadline=None)
@given(devices, micro_batches, times, times, times)
def test_zero_bubble_is_never_slower(stages, batches, forward, backward, weight):
    split = simulate(schedule("ZeroBubble", stages, batches), {"F": forward, "B": backward, "W": weight})
    whole = simulate(schedule("PreferBackward", stages, batches), {"F": forward, "B": backward + weight})
    assert split.makespan <= whole.makespan


@settings(deadline=None)
@given(
    st.sampled_from(["PreferForward", "PreferBackward", "Interleaved", "ZeroBubble"]),
    devices,
    micro_batches,
    st.data(),
)
def test_actions_start_as_early_as_they_can(strategy, num_devices, batches, data):
    uneven = st.lists(st.integers(0, 9), min_size=num_devices, max_size=num_devices)
    durations = {kind: data.draw(uneven) for kind in "FBW"}
    transfer = data.draw(st.integers(0, 3))
    line = simulate(schedule(strategy, num_devices, batches), durations, transfer)
    ends = {slot.action: slot.end for slots in line.slots for slot in slots}
    for slots in line.slots:
        before = 0
        for action, start, end in slots:
            kind, stage, batch = action
            needed = [before]
            if kind == "F" and stage > 0:
                needed.append(ends[("F", stage - 1, batch)] + transfer)
            if kind == "B":
                needed.append(ends[("F", stage, batch)])
                if stage + 1 < num_devices:
                    needed.append(ends[("B", stage + 1, batch)] + transfer)
            if kind == "W":
                needed.append(ends[("B", stage, batch)])
            assert (start, end) == (max(needed), start + durations[kind][stage])
            before = end


def test_deadlock_names_the_actions():
    order = parse("F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1")
    message = (
        "device 0 waits in B0.0 for B1.0, which device 1 runs only after F1.1; "
        "device 1 waits in F1.1 for F0.1, which device 0 runs only after B0.0"
    )
    with pytest.raises(PlanError) as caught:
        simulate(order, {"F": 1, "B": 1})
    assert str(caught.value).endswith(message)


def test_deadlock_on_one_device():
    with pytest.raises(PlanError, match="device 0 waits in B0.0 for F0.0, which device 0 runs only after B0.0"):
        simulate(parse("B0.0 F0.0"), {"F": 1, "B": 1})


@pytest.mark.parametrize(
    "order, problem",
    [
        (("F0.0 F0.1 B0.0",), "lacks: B0.1"),
        (("F0.0 B0.0", "F1.0"), "lacks: B1.0"),
        (("F0.0 B0.0 B0.0",), "has more than once: B0.0"),
        (("F0.0 B0.0 W0.0", "F1.0 B1.0"), "lacks: W1.0"),
        (("F0.0 B0.0 X0.0",), "has actions that no model needs: X0.0"),
        (("F0.0 F0.1 B0.0", "B0.1"), "runs B0.1 on device 1, but other actions of stage 0 on device 0"),
        (("",), "is empty"),
    ],
)
def test_schedules_that_are_not_whole(order, problem):
    with pytest.raises(PlanError, match=problem):
        simulate(parse(*order), {"F": 1, "B": 1, "W": 1})


def test_schedule_of_too_few_micro_batches():
    assert check_complete(parse("F0.0 B0.0")) == (1, 1)
    with pytest.raises(PlanError, match="lacks: F0.1, B0.1"):
        check_complete(parse("F0.0 B0.0"), num_micro_batch=2)
    with pytest.raises(PlanError, match=r"lacks: F1.0, B1.0, F2.0, B2.0, … \(6 in all\)"):
        check_complete(parse("F0.0 B0.0"), num_stages=4)
