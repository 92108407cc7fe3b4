"""What is known of the memory of a device over a training step, estimated or measured, and its figures as text."""

from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph import tags
from epl.plan.facts.names import PREFIX
from epl.rules import effects

# What memory is for. The first three are there all the time.
VARIABLES, SLOTS, STATE = "variables", "slots", "other variables"
ACTIVATIONS, AGAIN, GRADIENTS = "activations", "computed again", "gradients"
COMMUNICATION, UPDATE = "communication", "update"
KINDS = (VARIABLES, SLOTS, STATE, ACTIVATIONS, AGAIN, GRADIENTS, COMMUNICATION, UPDATE)

LASTING = frozenset([VARIABLES, SLOTS, STATE])
_RECOMPUTED, _AGGREGATED = "%s_recompute/" % PREFIX, "%s_aggregate/" % PREFIX
_OF_PHASES = {tags.BACKWARD: GRADIENTS, tags.APPLY: UPDATE, COMMUNICATION: COMMUNICATION}
_SENT = frozenset(["EplBroadcastSend", "EplBroadcastReceive"])


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a device over a step.

    Attributes:
      lasting: bytes of each of VARIABLES, SLOTS and STATE.
      points: for each operation that changes anything (its name, bytes of each of KINDS once it has its outputs).
      peak: place of the peak among `points`; -1 for none.
      largest: (tensor, kind, bytes) of what is there at the peak, largest first.
      tensors: (tensor, kind, bytes, place where it is made, place where it is given back) of the largest of all.
      times: microseconds from the beginning of the step to each of `points`; empty where only their order is known.
    """

    lasting: Dict[str, int]
    points: Tuple
    peak: int
    largest: Tuple
    tensors: Tuple
    times: Tuple = ()

    @property
    def peak_bytes(self):
        return self.at(self.peak)

    def at(self, place):
        """Bytes of everything at a place among `points`."""
        return sum(self.lasting.values()) + (sum(self.points[place][1]) if place >= 0 else 0)

    def peak_of(self, kind):
        """Bytes of a kind at the peak."""
        if kind in LASTING:
            return self.lasting.get(kind, 0)
        return self.points[self.peak][1][KINDS.index(kind)] if self.peak >= 0 else 0


def kind_of(name, op, phase):
    """What the memory is for that an operation allocates.

    Args:
      name, op: of the operation, and its type.
      phase: one of epl.graph.tags, or COMMUNICATION; what is none of the backward pass or of updates counts as forward.
    """
    if op in effects.COLLECTIVES or op in _SENT or _AGGREGATED in name:  # what is joined to be sent, and taken apart
        return COMMUNICATION
    if _RECOMPUTED in name:
        return AGAIN
    return _OF_PHASES.get(phase, ACTIVATIONS)


def table(devices, unknown=(), most=None):
    """The figures as text, a line for each device.

    Args:
      devices: dict of a device's words to its DeviceMemory; those that share one are alike.
      unknown: names of tensors of unknown size.
      most: devices to list before the rest is summed up; None: all.
    """
    highest = max([memory.peak_bytes for memory in devices.values()] or [0])
    unit, number_of = ("MiB", 2.0**20) if highest >= 2**20 else ("KiB", 2.0**10)  # so that small models show numbers

    def text_of(size):
        return "%.1f" % (size / number_of)

    heads = ["device", "peak"] + list(KINDS)
    rows = []
    for device, memory in list(devices.items())[:most]:
        rows.append([device, text_of(memory.peak_bytes)] + [text_of(memory.peak_of(kind)) for kind in KINDS])
    widths = [max(len(row[i]) for row in [heads] + rows) for i in range(len(heads))]
    lines = ["Memory of a training step in %s, at its peak:" % unit]
    for row in [heads, ["-" * width for width in widths]] + rows:
        lines.append("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    hidden = list(devices.values())[len(rows) :]
    if hidden:
        highest = max(memory.peak_bytes for memory in hidden)
        lines.append("  ... and %d further devices, the fullest of them with %s" % (len(hidden), text_of(highest)))
    told = set()
    for device, memory in devices.items():
        if memory.peak >= 0 and id(memory) not in told:
            told.add(id(memory))
            lines.append(
                "%s: the peak is at operation %d of %d, '%s'; largest: %s"
                % (
                    device,
                    memory.peak + 1,
                    len(memory.points),
                    memory.points[memory.peak][0],
                    ", ".join("%s %s" % (tensor, text_of(size)) for tensor, _, size in memory.largest[:4]),
                )
            )
    if unknown:
        lines.append(
            "Not counted, as their sizes are not known before the step: %d tensors, such as '%s'."
            % (len(unknown), unknown[0])
        )
    return "\n".join(lines)
