"""Runs a pipeline schedule on paper: when each action runs, how long devices idle, how many activations are alive."""

import collections
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from epl.errors import PlanError
from epl.plan.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, needs

Slot = collections.namedtuple("Slot", "action start end")  # times in seconds, from the start of the iteration


@dataclass(frozen=True)
class Timeline:
    """When each action of a schedule runs. Times are in the unit of the durations, usually seconds.

    Attributes:
      slots: per device, a tuple of Slot in the order of running.
      makespan: from the start of the first action to the end of the last.
      idle: per device, the part (0 to 1) of the makespan in which it does nothing: its bubble.
      bubble: the same over all devices.
      peak_live: per stage, the most micro-batches whose activations are alive at one time: from the start of F to the
        end of B, or of W where the schedule has W.
      peak_bytes: per device, the most bytes of such activations over all its stages; None when sizes are not given.
    """

    slots: Tuple[Tuple[Slot, ...], ...]
    makespan: Any
    idle: Tuple[Any, ...]
    bubble: Any
    peak_live: Tuple[int, ...]
    peak_bytes: Optional[Tuple[int, ...]] = None

    @property
    def num_stages(self):
        return len(self.peak_live)

    def slot(self, action):
        """The Slot of an action; KeyError when the schedule does not have it."""
        for slots in self.slots:
            for slot in slots:
                if slot.action == action:
                    return slot
        raise KeyError(str(action))


def simulate(schedule, durations, transfer=0, activation_bytes=None):
    """When each action of a schedule runs, if every device runs its list in order and each action as early as it can.

    Args:
      schedule: per device a list of Action, as epl.plan.pipeline.schedules.schedule gives.
      durations: dict of kind ("F", "B", "W") to the time of one action, or to a sequence with one time per stage; or a
        function of Action to its time. Numbers of any kind: with integers or Fractions the result is exact.
      transfer: time from the end of an action to when its result is on another device; a number, or a function of
        (stage from, stage to). Transfers overlap with computation.
      activation_bytes: per stage, the bytes that one micro-batch's forward pass keeps for its backward pass; None when
        that is of no interest.

    Returns:
      A Timeline.

    Raises:
      PlanError: an action is missing or comes twice, or actions wait for each other.
    """
    num_stages, _ = check_complete(schedule)
    time_of = _time_of(durations)
    transfer_of = transfer if callable(transfer) else lambda begin, end: transfer
    home = {action: device for device, actions in enumerate(schedule) for action in actions}
    ends, slots = {}, [[] for _ in schedule]
    waiting = {}  # an action to the device that cannot go on before it has run
    ready = collections.deque(range(len(schedule)))
    while ready:
        device = ready.popleft()
        while len(slots[device]) < len(schedule[device]):
            action = schedule[device][len(slots[device])]
            needed = needs(action, num_stages)
            missing = [other for other in needed if other not in ends]
            if missing:
                waiting.setdefault(missing[0], []).append(device)
                break
            start = slots[device][-1].end if slots[device] else 0
            for other in needed:
                extra = transfer_of(other.stage, action.stage) if home[other] != device else 0
                start = max(start, ends[other] + extra)
            ends[action] = start + time_of(action)
            slots[device].append(Slot(action, start, ends[action]))
            ready.extend(waiting.pop(action, ()))
    if len(ends) < len(home):
        raise PlanError(_deadlock(schedule, [len(done) for done in slots], home, num_stages, ends))
    return timeline_of(slots, num_stages, activation_bytes)


def timeline_of(slots, num_stages, activation_bytes=None):
    """A Timeline of actions whose times are known, measured ones for example.

    Args:
      slots: per device, Slots in the order of running; the first may start at any time.
      num_stages: stages over all devices.
      activation_bytes: as in `simulate`.
    """
    slots = tuple(tuple(device) for device in slots)
    every = [slot for device in slots for slot in device]
    makespan = max(slot.end for slot in every) - min(slot.start for slot in every) if every else 0
    busy = [sum(slot.end - slot.start for slot in device) for device in slots]
    peak_live, peak_bytes = _peaks(slots, num_stages, activation_bytes)
    return Timeline(
        slots=slots,
        makespan=makespan,
        idle=tuple(1 - b / makespan if makespan else 0 for b in busy),
        bubble=1 - sum(busy) / (makespan * len(slots)) if makespan else 0,
        peak_live=peak_live,
        peak_bytes=peak_bytes,
    )


def _peaks(slots, num_stages, activation_bytes):
    """Per stage the most micro-batches alive, and per device the most bytes alive."""
    last_use = WEIGHT if any(s.action.kind == WEIGHT for device in slots for s in device) else BACKWARD
    live, peak_live = [0] * num_stages, [0] * num_stages
    peak_bytes = []
    for device in slots:
        held = most = 0
        for slot in device:
            stage = slot.action.stage
            size = activation_bytes[stage] if activation_bytes is not None else 0
            if slot.action.kind == FORWARD:
                live[stage] += 1
                held += size
                peak_live[stage] = max(peak_live[stage], live[stage])
                most = max(most, held)
            elif slot.action.kind == last_use:
                live[stage] -= 1
                held -= size
        peak_bytes.append(most)
    return tuple(peak_live), None if activation_bytes is None else tuple(peak_bytes)


def check_complete(schedule, num_stages=None, num_micro_batch=None):
    """Checks that a schedule has each action once, and all actions of a stage on one device.

    Args:
      schedule: per device a list of Action.
      num_stages, num_micro_batch: what it must serve; None: as many as its actions name.

    Returns:
      (stages, micro-batches).

    Raises:
      PlanError: an action is missing, unknown, comes twice, or lies on another device than its stage.
    """
    counts = collections.Counter(action for actions in schedule for action in actions)
    if not counts:
        raise PlanError("the schedule is empty")
    num_stages = num_stages or 1 + max(action.stage for action in counts)
    num_micro_batch = num_micro_batch or 1 + max(action.micro_batch for action in counts)
    kinds = [FORWARD, BACKWARD] + ([WEIGHT] if any(action.kind == WEIGHT for action in counts) else [])
    action_type = type(next(iter(counts)))
    wanted = [action_type(k, s, m) for s in range(num_stages) for m in range(num_micro_batch) for k in kinds]
    _refuse("lacks", [action for action in wanted if action not in counts])
    _refuse("has more than once", [action for action in wanted if counts[action] > 1])
    known = set(wanted)
    _refuse("has actions that no model needs", [action for action in sorted(counts) if action not in known])
    device_of = {}
    for device, actions in enumerate(schedule):
        for action in actions:
            if device_of.setdefault(action.stage, device) != device:
                raise PlanError(
                    "the schedule runs %s on device %d, but other actions of stage %d on device %d; all actions of a "
                    "stage need the same device, which holds its variables and activations"
                    % (action, device, action.stage, device_of[action.stage])
                )
    return num_stages, num_micro_batch


def _refuse(what, actions):
    if actions:
        more = ", … (%d in all)" % len(actions) if len(actions) > 4 else ""
        raise PlanError("the schedule %s: %s%s" % (what, ", ".join(str(action) for action in actions[:4]), more))


def _time_of(durations):
    if callable(durations):
        return durations

    def time_of(action):
        times = durations[action.kind]
        return times[action.stage] if isinstance(times, (list, tuple)) else times

    return time_of


def _deadlock(schedule, next_action, home, num_stages, ends):
    """Names the actions that wait for each other."""
    heads = {d: actions[next_action[d]] for d, actions in enumerate(schedule) if next_action[d] < len(actions)}
    device = min(heads)
    seen, chain = {}, []
    while device not in seen:
        seen[device] = len(chain)
        needed = next(other for other in needs(heads[device], num_stages) if other not in ends)
        chain.append((device, heads[device], needed))
        device = home[needed]
    parts = [
        "device %d waits in %s for %s, which %s" % (d, action, needed, _where(home[needed], needed, heads))
        for d, action, needed in chain[seen[device] :]
    ]
    return "the schedule cannot run, as actions wait for each other: %s" % "; ".join(parts)


def _where(device, needed, heads):
    return "device %d runs only after %s" % (device, heads[device])
