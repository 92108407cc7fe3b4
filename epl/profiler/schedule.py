"""The schedule of a training step as it was run, beside the estimated one."""

import logging
import os
import re
import sys

from epl.env import Env
from epl.plan.pipeline.schedules import FORWARD, Action
from epl.plan.pipeline.simulate import Slot, timeline_of
from epl.plan.report.schedule_page import schedule_page
from epl.profiler.trace import TraceHook, gather
from epl.session.executions import executions, stem

_LOG = logging.getLogger("epl")
_COPY = re.compile(r"epl_micro_batch_(\d+)/(.*)", re.DOTALL)
_US = 1e-6


class ScheduleHook(TraceHook):
    """Writes when each stage worked on each micro-batch in a run: `schedule-<run>.html`, by the chief.

    It is the picture of `python -m epl.plan --timeline`, with the first model replica's measured times below the
    estimated ones. Every worker needs the hook. The clocks of several machines must agree, as NTP keeps them.

    Attributes:
      timeline: the measured epl.plan.pipeline.simulate.Timeline, in seconds; None on other workers, before there is
        one, and for programs with one micro-batch a step.
      path: of the last file; None as for `timeline`.

    Args:
      output_dir: folder for the files; made when it is not there.
      every_n_steps: runs from one trace to the next; 0: one trace, of the second run.
    """

    def __init__(self, output_dir, every_n_steps=0):
        super(ScheduleHook, self).__init__(every_n_steps)
        self._output_dir = output_dir
        self.timeline = None
        self.path = None

    def on_trace(self, run, metadata):
        rewritten = self._driver.rewritten
        mesh, action_of = rewritten.plan.mesh, rewritten.micro_batches.action_of
        own = {name: action for name, action in action_of.items() if mesh.worker_of(action[1]) == mesh.pipeline.index}
        found = actions(executions(metadata), own) if mesh.has_first else []
        everyone = gather("schedule", run, found)
        if everyone is None:
            return
        if not any(everyone.values()):
            _LOG.warning("ScheduleHook: run %d has no schedule, as it trained nothing in several micro-batches", run)
            return
        self.timeline = measured(mesh, [each for worker in mesh.pipeline.workers for each in everyone.get(worker, ())])
        self._write(run)

    def _write(self, run):
        page = schedule_page(self._driver.rewritten.program, Env.get().config.pipeline, sys.argv[0], self.timeline)
        os.makedirs(self._output_dir, exist_ok=True)
        self.path = os.path.join(self._output_dir, "schedule-%d.html" % run)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(page)
        _LOG.info("schedule of run %d, idle for %.1f %%: %s", run, 100 * self.timeline.bubble, self.path)


def actions(found, action_of):
    """When a worker worked on each action of its schedule.

    Args:
      found: Executions of a run.
      action_of: node of the user's to (kind, stage), for the worker's own stages.

    Returns:
      A list of [kind, stage, micro-batch, begin, start, end] with microseconds since the epoch: when its first
      operation began, when its last one ended, and the start that it would have had, had its operations run without a
      pause, as waiting for a message is not counted.
    """
    times = {}
    for each in found:
        copy = _COPY.match(stem(each.name))
        name, micro_batch = (copy.group(2), int(copy.group(1))) if copy else (stem(each.name), 0)
        if name not in action_of:
            continue
        # `found` is in the order of starts.
        key, end = action_of[name] + (micro_batch,), each.start_us + each.duration_us
        first, busy, last = times.get(key, (each.start_us, 0, each.start_us))
        times[key] = (first, busy + max(0, end - max(each.start_us, last)), max(last, end))
    return [list(key + (first, last - busy, last)) for key, (first, busy, last) in sorted(times.items())]


def measured(mesh, found):
    """The Timeline of the actions of all workers that hold the first model replica."""
    origin = min(each[4] for each in found)
    devices = mesh.instances[0].devices
    places = sorted({(mesh.worker_of(s), device) for s, device in enumerate(devices)})
    slots = [[] for _ in places]
    # In the order of beginnings. But a backward that comes next after its own forward waits for nothing else, and may
    # begin before it, with shapes that are known already.
    forwards = {(stage, m): begin for kind, stage, m, begin, _, _ in found if kind == FORWARD}

    def turn(action):
        kind, stage, micro_batch, begin = action[:4]
        return max(begin, forwards.get((stage, micro_batch), begin)), kind != FORWARD

    for kind, stage, micro_batch, _, start, end in sorted(found, key=turn):
        place = places.index((mesh.worker_of(stage), devices[stage]))
        slots[place].append(Slot(Action(kind, stage, micro_batch), (start - origin) * _US, (end - origin) * _US))
    return timeline_of(slots, len(devices))
