"""Memory of each device over a training step: its peak, what made it, and a page with what was estimated beside it."""

import collections
import json
import logging
import os

from epl.env import Env
from epl.errors import EplError
from epl.plan.cost.device_memory import KINDS, DeviceMemory, kind_of
from epl.plan.input.batch_rows import batch_rows
from epl.plan.report.memory_page import drawn, memory_page
from epl.plan.text import bytes_text
from epl.profiler.trace import TraceHook, gather
from epl.session.estimated_program import estimate_program, lasting_bytes
from epl.session.executions import Phases, executions

_LOG = logging.getLogger("epl")

_LARGEST = 5  # tensors at the peak that are named
_TENSORS = 400  # that the page can name
# In a trace, what is fed is given out by operations of this type, named after the tensor: "_arg_x_0_0" of "x:0".
_FED, _FED_PREFIX = "_Arg", "_arg_"


class MemoryProfilerHook(TraceHook):
    """Measures the memory of each device over a run; the chief writes `memory-<run>.json` and a page that draws it.

    The memory of a device is that of its variables, and that of the tensors that operations have allocated and not yet
    given back. The page is that of `python -m epl.plan --memory`: of each device of each worker what was estimated of
    the run, where it trains, and what was measured. Every worker needs the hook.

    Attributes:
      peaks: dict of "worker 0 CPU:0" to the peak in bytes in the last traced run: on the chief for all workers, on
        others for their own devices.
      picture: path of the last page (HTML), on the chief.

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
        program = self._driver.rewritten.program if self._driver is not None else None
        found = executions(metadata)
        lasting = lasting_bytes(program) if program is not None else {}
        measured = device_memory(found, Phases(self._graph), lasting)
        estimated = _estimated(program, found)
        mine = {device: told(memory, estimated.get(device)) for device, memory in measured.items()}
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
                "memory of %s in run %d: peak %s, of which variables %s%s; largest at the peak: %s",
                name,
                run,
                bytes_text(each["peak"]),
                bytes_text(each["variables"]),
                ", estimated %s" % bytes_text(each["estimated"]) if each["estimated"] is not None else "",
                ", ".join("%s %s" % (op, bytes_text(size)) for op, size in each["largest"]) or "nothing",
            )
        if self._output_dir is not None:
            self._write(run, devices)

    def _write(self, run, devices):
        os.makedirs(self._output_dir, exist_ok=True)
        stem = os.path.join(self._output_dir, "memory-%d" % run)
        with open(stem + ".json", "w") as file:
            json.dump(devices, file, indent=1)
        with open(stem + ".html", "w", encoding="utf-8") as file:
            file.write(memory_page({name: each["charts"] for name, each in devices.items()}, "Memory of run %d" % run))
        self.picture = stem + ".html"


def _estimated(program, found):
    """dict of device to the DeviceMemory that is estimated of a run; empty where it trains nothing."""
    if program is None or not program.apply_calls:
        return {}
    try:
        return estimate_program(program, batch_rows(program.graph, _given_shapes(found)))[0]
    except EplError as error:
        _LOG.warning("memory: what the step needs cannot be estimated: %s", error)
        return {}


def _given_shapes(found):
    """dict of a node to the shapes of what it gave in a run, of all Executions; of what was fed, the placeholder's."""
    shapes = {}
    for each in found:
        name = each.name
        if each.op == _FED and name.startswith(_FED_PREFIX):
            name = name[len(_FED_PREFIX) :].rsplit("_", 2)[0]
        shapes[name] = each.shapes
    return shapes


def told(measured, estimated=None):
    """What one worker tells the chief of a device, as what json takes.

    Args:
      measured: a DeviceMemory.
      estimated: another one; None where nothing was estimated.

    Returns:
      dict of "peak", "variables" and "estimated" (the estimated peak, or None) in bytes; "largest", lists of operation
      and bytes at the measured peak; "charts", dict of caption to what epl.plan.report.memory_page.drawn gives.
    """
    charts = collections.OrderedDict()
    if estimated is not None:
        charts["estimated"] = drawn(estimated)
    charts["measured"] = drawn(measured)
    return {
        "peak": measured.peak_bytes,
        "variables": sum(measured.lasting.values()),
        "estimated": estimated.peak_bytes if estimated is not None else None,
        "largest": [[name, size] for name, _, size in measured.largest],
        "charts": charts,
    }


def device_memory(found, phases, lasting):
    """What is allocated on each device over a step.

    Args:
      found: Executions.
      phases: a Phases.
      lasting: dict of device to bytes of what is there all the time, by kind.

    Returns:
      dict of device to a DeviceMemory with times, which end with the last operation.
    """
    changes = collections.OrderedDict((device, []) for device in sorted(lasting))
    for each in found:
        kind = KINDS.index(kind_of(each.name, each.op, phases.of(each)))
        changes.setdefault(each.device, []).extend((when, size, each.name, kind) for when, size in each.memory)
    moments = [when for each in changes.values() for when, _, _, _ in each]
    start = min(moments + [each.start_us for each in found], default=0)
    end = max(moments + [each.start_us + each.duration_us for each in found], default=0)
    return {device: _curve(each, lasting.get(device, {}), start, end) for device, each in changes.items()}


def _curve(changes, lasting, start, end):
    live, points, times = [0] * len(KINDS), [("", (0,) * len(KINDS))], [0]
    there = collections.defaultdict(collections.deque)  # (operation, bytes, kind) to the places where these were made
    tensors = []
    # What is given back counts before what is taken in the same microsecond, so that the last of it is the most.
    for when, size, name, kind in sorted(changes):
        live[kind] += size
        if times[-1] == when - start:
            points.pop()
            times.pop()
        place = len(points)
        points.append((name, tuple(live)))
        times.append(when - start)
        made = there[name, abs(size), kind]
        if size > 0:
            made.append(place)
        elif made:
            tensors.append((name, KINDS[kind], -size, made.popleft(), place))
    if times[-1] != end - start:
        points.append(("end of the step", tuple(live)))
        times.append(end - start)
    for (name, size, kind), places in there.items():
        tensors.extend((name, KINDS[kind], size, made, len(points)) for made in places)
    tensors.sort(key=lambda each: (-each[2], each[3], each[0]))
    peak = max(range(len(points)), key=lambda place: sum(points[place][1]))
    at_peak = [(name, kind, size) for name, kind, size, made, ended in tensors if made <= peak < ended]
    return DeviceMemory(
        dict(lasting), tuple(points), peak, tuple(at_peak[:_LARGEST]), tuple(tensors[:_TENSORS]), tuple(times)
    )
