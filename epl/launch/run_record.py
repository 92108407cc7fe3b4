"""What is kept of a job for the page of its run: how it went, where workers' time went, their last events, warnings.

The launcher only collects; `epl.report` makes the page, in a process of its own.
"""

import collections
import json
import os
import re
import subprocess
import sys
import time

from epl.launch import board
from epl.launch.progress import rate_of
from epl.launch.restarts import table

# A point of the curves so often at first. When there are too many, every second one goes, and so on from then on.
_EVERY_S = 0.5
_POINTS = 600
# Of the last events, those of so many of the last steps are drawn.
_LAST_STEPS = 12
_WARNINGS = 40
TIMES = "EPL_REPORT_TIMES"  # the file into which a worker writes where the time of its steps went
PARTS = "EPL_REPORT_PARTS"  # the file into which worker 0 writes what it knows of the plan, for the page
_WARNING = re.compile(r"^(?:[-\d]+ [:\d]+ )?(WARNING|ERROR|CRITICAL) epl: (.*)$")


class Curve(object):
    """Steps, samples a second and the loss, over the time of a job."""

    def __init__(self):
        self.points = []  # [seconds, step, steps a second, loss or None]
        self._every_s, self._next_s = _EVERY_S, 0.0
        self._before = {}  # the look of the latest point

    def add(self, seconds, seen):
        """Adds a point if one is due.

        Args:
          seconds: since the job began.
          seen: dict of worker to Seen, now.
        """
        trained = {worker: each for worker, each in seen.items() if each.steps}
        if seconds < self._next_s or not trained:
            return
        first = trained[min(trained)]
        before, self._before = self._before, trained
        if before:
            self.points.append([seconds, first.step, rate_of(trained, before), first.loss])
        self._next_s = seconds + self._every_s
        if len(self.points) > _POINTS:
            self.points = self.points[::2]
            self._every_s *= 2


class Warnings(object):
    """What EPL has warned of, each text once."""

    def __init__(self):
        self.counts = collections.OrderedDict()

    def take(self, line):
        """Looks at a line of a worker, text."""
        found = _WARNING.match(line)
        if found and (found.group(2) in self.counts or len(self.counts) < _WARNINGS):
            self.counts[found.group(2)] = self.counts.get(found.group(2), 0) + 1


def of_workers(paths):
    """What the boards of workers hold at the end.

    Args:
      paths: dict of worker to the path of its board.

    Returns:
      List of dicts, one for each worker that has a board.
    """
    found = []
    for worker, path in sorted(paths.items()):
        seen = board.read(path)
        if seen is None:
            continue
        own, collectives, (busy_s, moved) = board.read_events(path)
        steps = [event for event in own if event.kind == board.STEP_EVENT][-_LAST_STEPS:]
        since = steps[0].begin_s if steps else 0.0
        found.append(
            {
                "worker": worker,
                "steps": seen.steps,
                "step": seen.step,
                "rows": seen.rows,
                "loss": seen.loss,
                "in_program_s": seen.in_program_s,
                "in_steps_s": seen.in_steps_s,
                "waited_others_s": seen.waited_others_s,
                "waited_data_s": seen.waited_data_s,
                "in_collectives_s": busy_s,
                "collective_bytes": moved,
                "first_step_at": seen.first_step_at,
                "last_step_at": seen.last_step_at,
                "step_times": _step_times(board.times_beside(path)),
                "phases": [_event(event) for event in own if event.kind == board.PHASE_EVENT],
                "messages": [_event(event) for event in own if event.kind == board.MESSAGE_EVENT],
                "last_steps": [_event(event) for event in steps],
                "last_collectives": [_event(event) for event in collectives if steps and event.begin_s >= since],
            }
        )
    return found


def _step_times(path):
    """What a worker has left there; None where it has not come so far."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def _event(event):
    return {
        "begin": event.begin_s,
        "end": event.end_s,
        "name": event.name,
        "number": event.number,
        "bytes": event.bytes,
    }


class RunRecord(object):
    """All of a job on this machine, over its attempts.

    Args:
      command: what was started, a list.
      workers: of the job.
      devices: in words, of each worker.
      folder: the launcher's, in which worker 0 leaves what it knows of the plan.
    """

    def __init__(self, command, workers, devices, folder):
        self._facts = {"command": command, "workers": workers, "devices": devices, "started": time.time()}
        self._began = time.monotonic()
        self.parts_path = os.path.join(folder, ".plan.parts")
        self.curve, self.warnings = Curve(), Warnings()
        self._workers = []

    def add(self, seen):
        """A look at the workers: dict of worker to Seen."""
        self.curve.add(time.monotonic() - self._began, seen)

    def ended(self, paths):
        """An attempt is through, and its boards are still there."""
        self._workers = of_workers(paths)

    def write(self, path, attempts, cause):
        """Makes the page.

        Args:
          path: of the page.
          attempts: the list of Attempt.
          cause: lines that say why the job failed; [] where it did not.

        Returns:
          What went wrong, in words; None if it is there.
        """
        facts = dict(self._facts, began=self._began, seconds=time.monotonic() - self._began, attempts=table(attempts))
        facts.update(curve=self.curve.points, warnings=list(self.warnings.counts.items()), cause=cause)
        facts["by_worker"], facts["parts"] = self._workers, self._plan()
        command = [sys.executable, "-m", "epl.report", path]
        made = subprocess.run(
            command,
            input=json.dumps(facts).encode("utf-8"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=120,
        )
        said = made.stderr.decode("utf-8", "replace").strip().splitlines()
        return (said or ["it ended with status %d" % made.returncode])[-1] if made.returncode else None

    def _plan(self):
        try:
            with open(self.parts_path, encoding="utf-8") as stream:
                parts = json.load(stream)
        except (OSError, ValueError):  # no worker of this machine has come to its first step
            return []
        os.unlink(self.parts_path)
        return parts
