"""Memory of each device over a training step: its peak, what made it, and a picture."""

import collections
import heapq
import json
import logging
import os

from epl.env import Env
from epl.profiler.picture import IDLE, memory_picture
from epl.profiler.trace import Phases, TraceHook, executions, gather, short_device

_LOG = logging.getLogger("epl")

_VARIABLES = frozenset(["Variable", "VariableV2", "VarHandleOp"])
_DTYPE_BYTES = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 8: 8, 9: 8, 10: 1, 14: 2, 17: 2, 18: 16, 19: 2, 22: 4, 23: 8}
# A picture needs no more points than this for each device.
_POINTS = 2000


class MemoryProfilerHook(TraceHook):
    """Measures the memory of each device over a run; the chief writes `memory-<run>.json` and a picture of it.

    The memory of a device is that of its variables, and that of the tensors that operations have allocated and not yet
    given back. Every worker needs the hook.

    Attributes:
      peaks: dict of "worker 0 CPU:0" to the peak in bytes in the last traced run: on the chief for all workers, on
        others for their own devices.
      picture: path of the last picture (SVG), on the chief.

    Args:
      output_dir: folder for the files; made when it is not there. None: nothing is written, the peaks are logged.
      every_n_steps: runs from one measurement to the next; 0: once, in the second run.
    """

    def __init__(self, output_dir=None, every_n_steps=0):
        super(MemoryProfilerHook, self).__init__(every_n_steps)
        self._output_dir = output_dir
        self.peaks = {}
        self.picture = None

    def on_trace(self, run, metadata):
        mine = device_memory(executions(metadata), Phases(self._graph), variable_bytes(self._graph))
        everyone = gather("memory", run, mine)
        known = everyone if everyone is not None else {Env.get().cluster.worker_index: mine}
        devices = collections.OrderedDict(
            ("worker %d %s" % (worker, device), known[worker][device])
            for worker in sorted(known)
            for device in sorted(known[worker])
        )
        self.peaks = {name: each["peak"] for name, each in devices.items()}
        if everyone is None:
            return
        for name, each in devices.items():
            _LOG.info(
                "memory of %s in run %d: peak %.1f MiB, of which variables %.1f MiB; largest at the peak: %s",
                name,
                run,
                each["peak"] / 2.0**20,
                each["variables"] / 2.0**20,
                ", ".join("%s %.1f MiB" % (op, size / 2.0**20) for op, size in each["largest"]) or "nothing",
            )
        if self._output_dir is not None:
            self._write(run, devices)

    def _write(self, run, devices):
        os.makedirs(self._output_dir, exist_ok=True)
        stem = os.path.join(self._output_dir, "memory-%d" % run)
        with open(stem + ".json", "w") as file:
            json.dump(devices, file, indent=1)
        with open(stem + ".svg", "w") as file:
            file.write(memory_picture(devices, "Memory of run %d" % run))
        self.picture = stem + ".svg"


def variable_bytes(graph):
    """dict of device ("GPU:0") to the bytes of the variables on it; of a rewritten Graph, or None for none."""
    found = collections.Counter()
    for node in graph.nodes.values() if graph is not None else ():
        shape = node.attr["shape"].shape
        if node.op not in _VARIABLES or shape.unknown_rank or any(dim.size < 0 for dim in shape.dim):
            continue
        size = _DTYPE_BYTES.get(node.attr["dtype"].type % 100, 4)
        for dim in shape.dim:
            size *= dim.size
        found[short_device(node.device) or node.device] += size
    return found


def device_memory(found, phases, variables):
    """What is allocated on each device over a step.

    Args:
      found: Executions.
      phases: a Phases.
      variables: bytes of variables by device.

    Returns:
      dict of device to {"peak": bytes, "variables": bytes, "points": [[microseconds since the step began, bytes, phase
      of what runs or "idle"], ...] from 0 on, "largest": [[operation, bytes], ...] at the peak}.
    """
    changes = collections.OrderedDict((device, []) for device in sorted(variables))
    running = collections.defaultdict(list)
    for each in found:
        running[each.device].append((each.start_us, each.start_us + each.duration_us, phases.of(each)))
        changes.setdefault(each.device, []).extend((when, size, each.name) for when, size in each.memory)
    start = min((when for each in (*changes.values(), *running.values()) for when, _, _ in each), default=0)
    return {
        device: _curve(each, list(_activity(running[device], start)), variables.get(device, 0), start)
        for device, each in changes.items()
    }


def _activity(running, start):
    """What a device does from `start` on: (microseconds, phase of what began last of what runs, or IDLE), in order."""
    begun, active, known = sorted(running, reverse=True), [], None
    for when in sorted({start}.union(*(each[:2] for each in running))):
        while begun and begun[-1][0] <= when:
            first, end, phase = begun.pop()
            heapq.heappush(active, (-first, end, phase))
        while active and active[0][1] <= when:
            heapq.heappop(active)
        phase = active[0][2] if active else IDLE
        if phase != known:
            known = phase
            yield when, phase


def _curve(changes, activity, variables, start):
    level = peak = variables
    points, live, at_peak = [], collections.Counter(), {}
    # What is given back counts before what is taken in the same microsecond. It may belong to an operation of another
    # phase than what runs.
    edges = [(when, size, name, None) for when, size, name in changes]
    edges += [(when, 0, "", phase) for when, phase in activity]
    doing = IDLE
    for when, size, name, phase in sorted(edges, key=lambda edge: (edge[0], edge[3] is None, edge[1])):
        doing = phase or doing
        level += size
        live[name] += size
        if points and points[-1][0] == when - start:
            points.pop()
        points.append([when - start, level, doing])
        if level > peak:
            peak, at_peak = level, dict(live)
    largest = sorted(((size, name) for name, size in at_peak.items() if size > 0), reverse=True)[:5]
    return {
        "peak": peak,
        "variables": variables,
        "points": _fewer(points),
        "largest": [[name, size] for size, name in largest],
    }


def _fewer(points):
    """At most _POINTS points: of each run of neighbours the highest one."""
    width = -(-len(points) // _POINTS)
    if width <= 1:
        return points
    return [max(points[i : i + width], key=lambda p: p[1]) for i in range(0, len(points), width)]
