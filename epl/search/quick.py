"""What a Choice costs at a first glance, by a few estimates of one copy of the model: quick enough for thousands.

It decides only which plans are looked at closely. Stages count as equally long, and of what is exchanged during the
backward pass as much counts as hidden as that pass is long.
"""

from dataclasses import dataclass
from typing import Any

from epl.plan.cost.device_memory import LASTING, SLOTS, VARIABLES
from epl.plan.estimate.exchanged import Exchanged
from epl.program.collective import ALL_GATHER, ALL_REDUCE
from epl.search.space import GPIPE, INTERLEAVED, ZERO_BUBBLE

# Of a step's gradients and their backward pass: parts of a micro-batch's time.
_BACKWARD = 2.0 / 3
# With zero-bubble schedules a third of the backward passes fills gaps.
_BUBBLE_LEFT = 1.0 / 3
# Parts of a step's memory that a device need not hold with offload.
_ON_HOST = {"": (), "v0": (VARIABLES,), "v1": (SLOTS,)}


@dataclass(frozen=True)
class Line:
    """Figures of one copy of the model on one device, as straight lines over the rows of a micro-batch.

    Attributes:
      rows: of the first estimate.
      repeated_s: seconds that each micro-batch takes with so many rows; `row_s`: with each row more.
      once_s: of the updates.
      passing: bytes that come and go in a micro-batch with so many rows; `row_bytes`: with each row more.
      lasting: dict of the kinds of memory that are there all the time to bytes.
    """

    rows: int
    repeated_s: float
    row_s: float
    once_s: float
    passing: float
    row_bytes: float
    lasting: Any

    def seconds(self, rows):
        """Of a micro-batch with so many rows; None: as many as in the first estimate."""
        return max(0.0, self.repeated_s + self.row_s * ((self.rows if rows is None else rows) - self.rows))

    def num_bytes(self, rows):
        """That come and go in a micro-batch."""
        return max(0.0, self.passing + self.row_bytes * ((self.rows if rows is None else rows) - self.rows))


def line_of(first, wider, twice, rows, more):
    """The Line of estimates of a model on one device.

    Args:
      first, wider: the Estimates of one micro-batch with `rows` and with `more` rows.
      twice: of two micro-batches with `rows` each.
      rows, more: numbers; the same where the program does not leave them open.
    """
    took, longer, both = [sum(stage.compute_s for stage in each.stages) for each in (first, wider, twice)]
    once = max(0.0, min(2 * took - both, took))
    lasting = {kind: sum(stage.bytes.get(kind, 0) for stage in first.stages) for kind in LASTING}
    passing = [sum(stage.peak_bytes for stage in each.stages) - sum(lasting.values()) for each in (first, wider)]
    step = max(1, more - rows)
    return Line(rows, took - once, (longer - took) / step, once, passing[0], (passing[1] - passing[0]) / step, lasting)


class Quick(object):
    """First guesses.

    Args:
      lines: dict of (recomputes, amp) to a Line.
      cluster, machine: an epl.Cluster and an epl.cluster.machine.Machine.
    """

    def __init__(self, lines, cluster, machine):
        self._lines, self._cluster, self._machine = lines, cluster, machine
        self._nodes = len(set(cluster.nodes))
        self._exchanged = Exchanged(machine, self._nodes)

    def of(self, choice):
        """(seconds of a step, bytes of a device)."""
        line = self._lines[choice.recomputes, choice.amp]
        stages, shared = float(choice.stages), self._sharers(choice)
        each, once = line.seconds(choice.rows) / stages, line.once_s / stages
        if choice.zero:
            once /= shared
        state = dict(line.lasting)
        gradients = state[VARIABLES] / stages
        sent = self._exchanges(choice, gradients)
        last = _BACKWARD * each
        waits = sent if self._machine.device.cores else max(0.0, sent - last)
        computed = choice.micro_batches * each + once
        seconds = computed + waits + self._bubble(choice, each) + self._copies(choice, state, stages)
        seconds = max(seconds, self._host(choice, choice.micro_batches * each + once))
        return seconds, self._bytes(choice, line, state, gradients, shared)

    def _sharers(self, choice):
        return choice.degree or choice.replicas

    def _bubble(self, choice, each):
        gap = (choice.stages - 1) * each
        if choice.schedule == ZERO_BUBBLE:
            return gap * _BUBBLE_LEFT
        return gap / choice.chunks if choice.schedule == INTERLEAVED else gap

    def _exchanges(self, choice, gradients):
        """Seconds of what the copies of the model exchange."""
        if choice.replicas == 1:
            return 0.0
        found = self._ring(choice, ALL_REDUCE, gradients)
        if choice.zero in ("v2", "v3"):
            times = 1 if choice.zero == "v2" else 2 * choice.micro_batches
            found += times * self._ring(choice, ALL_GATHER, gradients / choice.replicas)
        return found

    def _ring(self, choice, operation, size):
        local = max(1, min(choice.replicas, self._cluster.gpu_num_per_worker // choice.stages))
        workers = choice.replicas // local
        found = self._exchanged.over(self._machine.worker, operation, local, size) if local > 1 else 0.0
        if workers > 1:
            found += self._exchanged.over(self._exchanged.between_workers, operation, workers, size)
        return found

    def _copies(self, choice, state, stages):
        """Seconds in which what lies on the host comes and goes."""
        moved = sum(state[kind] for kind in _ON_HOST[choice.offload]) / stages
        return 2 * moved / self._machine.worker.bytes_per_s

    def _host(self, choice, busy_s):
        """Seconds that a host takes for all of its devices where these share its cores."""
        if not self._machine.device.cores:
            return 0.0
        return busy_s * self._cluster.total_gpu_num / self._nodes

    def _bytes(self, choice, line, state, gradients, shared):
        stages = float(choice.stages)
        for kind in _ON_HOST[choice.offload]:
            state[kind] = 0
        parts = {SLOTS: shared if choice.zero else 1, VARIABLES: shared if choice.zero in ("v2", "v3") else 1}
        found = sum(size / stages / parts.get(kind, 1) for kind, size in state.items())
        alive = choice.micro_batches if choice.schedule == GPIPE else min(choice.micro_batches, choice.stages)
        found += alive * line.num_bytes(choice.rows) / stages
        if choice.micro_batches > 1:
            found += gradients / (shared if choice.zero in ("v1", "v2", "v3") else 1)
        return found
