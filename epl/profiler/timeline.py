"""A step of all workers as one Chrome trace: open it in chrome://tracing or ui.perfetto.dev."""

import collections
import json
import logging
import os
import socket

from epl.env import Env
from epl.profiler.trace import TraceHook, gather
from epl.rules.effects import COLLECTIVES
from epl.session.executions import PHASES, Phases, executions

_LOG = logging.getLogger("epl")

# One bar: `shard_rank` is its phase; times in microseconds since the epoch.
Bar = collections.namedtuple("Bar", "name op device phase start_us duration_us")
# A shard rank of overlapping bars takes several rows; no phase has more.
_ROWS = 1000


class TimelineHook(TraceHook):
    """Writes what all devices of all workers did in a run: `timeline-<run>.json`, by the chief.

    Each device has a row for the forward pass, the backward pass, communication, the updates and the rest; more rows
    where operations overlap. Every worker needs the hook.

    Attributes:
      path: of the last file; None on other workers and before there is one.

    Args:
      output_dir: folder for the files; made when it is not there.
      every_n_steps: runs from one trace to the next; 0: one trace, of the second run.
    """

    def __init__(self, output_dir, every_n_steps=0):
        super(TimelineHook, self).__init__(every_n_steps)
        self._output_dir = output_dir
        self.path = None

    def on_trace(self, run, metadata):
        mine = {"host": socket.gethostname(), "bars": bars(executions(metadata), Phases(self._graph))}
        everyone = gather("timeline", run, mine)
        if everyone is None:
            return
        shifts = clock_shifts(everyone)
        trace = chrome_trace({w: each["bars"] for w, each in everyone.items()}, shifts)
        os.makedirs(self._output_dir, exist_ok=True)
        path = os.path.join(self._output_dir, "timeline-%d.json" % run)
        with open(path, "w") as file:
            json.dump(trace, file)
        self.path = path
        _LOG.info(
            "timeline of run %d, %d of %d workers: %s", run, len(everyone), Env.get().cluster.worker_num, self.path
        )


def bars(found, phases):
    """Executions as Bars."""
    return [
        Bar(each.name, each.op, each.device, phases.of(each), each.start_us, max(each.duration_us, 1)) for each in found
    ]


def clock_shifts(everyone):
    """What to add to each worker's times, in microseconds, so that they fit worker 0's.

    Hosts' clocks differ. All workers leave a collective operation at about the same time, so the median difference of
    their ends is that of the clocks; workers on the host of worker 0 have its clock.
    """
    shifts = {}
    ends = {w: _collective_ends(each["bars"]) for w, each in everyone.items()}
    for worker, each in everyone.items():
        differences = sorted(ends[0][name] - end for name, end in ends[worker].items() if name in ends[0])
        same = each["host"] == everyone[0]["host"] or not differences
        shifts[worker] = 0 if same else differences[len(differences) // 2]
    return shifts


def _collective_ends(worker_bars):
    made = (Bar(*each) for each in worker_bars)
    return {bar.name: bar.start_us + bar.duration_us for bar in made if bar.op in COLLECTIVES}


def chrome_trace(workers, shifts=None):
    """The trace as a dict, in the Trace Event Format's object form.

    Args:
      workers: dict of worker index to its Bars (or lists with their fields).
      shifts: dict of worker index to microseconds to add to its times.
    """
    events = []
    starts = [bar[4] + (shifts or {}).get(w, 0) for w, found in workers.items() for bar in found]
    origin = min(starts) if starts else 0
    processes = []
    for worker in sorted(workers):
        by_device = collections.OrderedDict()
        for bar in sorted((Bar(*each) for each in workers[worker]), key=lambda b: (b.device, b.start_us, b.name)):
            by_device.setdefault(bar.device, []).append(bar)
        for device, found in by_device.items():
            pid = len(processes)
            processes.append((worker, device))
            events.append(_meta(pid, 0, "process_name", "worker %d %s" % (worker, device)))
            events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})
            events.extend(_rows(pid, found, (shifts or {}).get(worker, 0) - origin))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _meta(pid, tid, name, value):
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {"name": value}}


def _rows(pid, found, shift):
    """The events of one device: bars of a phase go into the first row that is free."""
    events = []
    for shard_rank, phase in enumerate(PHASES):
        free_from = []
        for bar in (b for b in found if b.phase == phase):
            row = next((r for r, end in enumerate(free_from) if end <= bar.start_us), len(free_from))
            row = min(row, _ROWS - 1)
            if row == len(free_from):
                free_from.append(0)
                title = phase if row == 0 else "%s (%d)" % (phase, row + 1)
                events.append(_meta(pid, shard_rank * _ROWS + row, "thread_name", title))
            free_from[row] = bar.start_us + bar.duration_us
            events.append(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": shard_rank * _ROWS + row,
                    "ts": bar.start_us + shift,
                    "dur": bar.duration_us,
                    "name": bar.name,
                    "cat": phase,
                    "args": {"op": bar.op},
                }
            )
    return events
