"""Where the time of training steps goes, for the page of a run: a few steps are traced, and their time is divided."""

import collections
import json
import logging
import time

from epl import tf_compat
from epl.launch.run_record import TIMES
from epl.plan.input.waits import covered
from epl.rules import effects
from epl.session.executions import RECEIVES, executions, is_exchange, kernels

_LOG = logging.getLogger("epl")
# By then kernels are chosen and pools have grown; tracing the first of them takes longer, so that it does not count.
_FIRST, _COUNT = 5, 4

# Of one step of a device, in seconds: what nothing before it covers.
COMPUTE, DATA, COMMUNICATION, BUBBLE, REST = "compute", "data", "communication", "bubble", "rest"
_MICRO = 1e-6


def divided(intervals, begin, end):
    """Where the time between `begin` and `end` went.

    Args:
      intervals: {kind: (begin, end) pairs, which may overlap}, in the order in which kinds count: what two of them
        cover is of the first one.
      begin, end: of the step.

    Returns:
      {kind: time}, and under "rest" what none of them covers. They add up to the step.
    """
    found, known, before = collections.OrderedDict(), [], 0.0
    for kind, pairs in intervals.items():
        known += [(max(a, begin) - begin, min(b, end) - begin) for a, b in pairs if b > begin and a < end]
        now = covered(known)
        found[kind], before = now - before, now
    found[REST] = max(0.0, end - begin - before)
    return found


def intervals_of(found, on_gpu, device, is_pipeline, waits):
    """What a device was at in a step, as `divided` takes it, in microseconds.

    Args:
      found: the Executions of the worker.
      on_gpu: of GPUs what `kernels` gives.
      device: such as "CPU:0".
      is_pipeline: whether devices wait for those with other stages.
      waits: {DATA: pairs, COMMUNICATION: pairs} from outside the operations.
    """
    own = [(each.op, each.start_us, each.start_us + each.duration_us) for each in found if each.device == device]
    # The host reads the data of GPUs.
    host = device if device.startswith("CPU:") else "CPU:0"
    data = [(each.start_us, each.start_us + each.duration_us) for each in found if each.device == host and _gives(each)]
    computes = [(a, b) for op, a, b in own if not (is_exchange(op) or op in effects.SOURCES)]
    receives = [(a, b) for op, a, b in own if op in RECEIVES]
    # A device may take part in what another one of the worker exchanges for both.
    exchanges = [
        (each.start_us, each.start_us + each.duration_us)
        for each in found
        if is_exchange(each.op) and each.op not in RECEIVES
    ]
    if device in on_gpu:
        computes = [(a, b) for a, b, exchanged in on_gpu[device] if not exchanged]
        exchanges += [(a, b) for a, b, exchanged in on_gpu[device] if exchanged]
    idle = []
    if is_pipeline:
        # From the first operation of any stage here to the last one.
        ran = [each for each in found if not is_exchange(each.op)]
        idle = receives + [(min(e.start_us for e in ran), max(e.start_us + e.duration_us for e in ran))] if ran else []
    else:
        exchanges += receives
    return collections.OrderedDict(
        [
            (COMPUTE, computes),
            (DATA, data + waits.get(DATA, [])),
            (COMMUNICATION, exchanges + waits.get(COMMUNICATION, [])),
            (BUBBLE, idle),
        ]
    )


def _gives(execution):
    return execution.op in effects.SOURCES


class _TimedCall(object):
    """One call that is traced. `began`: by time.time(), `waited_s`: for others in all, then."""

    def __init__(self, kernels, waited_s):
        self.traced, self.waited_s, self.began = tf_compat.TracedCall(kernels), waited_s, time.time()
        self.ended = self.for_others_s = self.read_ahead = None


class StepTimes(object):
    """Of one session: traces training steps number 5 to 8, and writes where their time went.

    Args:
      path: of the file.
    """

    def __init__(self, path):
        self._path, self._seen, self._calls = path, 0, []

    def begins(self, step, mesh, waited_s):
        """A call that nobody else traces begins; returns what `ends` wants, or None where it is not traced.

        Args:
          step: the Step.
          mesh: the Mesh.
          waited_s: for how long this worker has waited for others in all.
        """
        if self._seen >= _FIRST + _COUNT - 1 or not step.changes.trains or step.run.repeats > 1:
            return None
        self._seen += 1
        return _TimedCall(mesh.device_type == "GPU", waited_s) if self._seen >= _FIRST else None

    def ends(self, call, mesh, waited_s, read_ahead):
        """It is through.

        Args:
          call: what `begins` has returned.
          mesh, waited_s: as there.
          read_ahead: (begin, end) of its wait for batches that were read ahead, by time.time(), or ().
        """
        call.ended, call.for_others_s, call.read_ahead = time.time(), waited_s - call.waited_s, read_ahead
        self._calls.append(call)
        if len(self._calls) == _COUNT:
            # Only now, so that no worker waits for another one that reads its traces.
            self._write(mesh)

    def _write(self, mesh):
        calls, self._calls = self._calls[1:], []
        devices = range(mesh.first_device, mesh.first_device + mesh.devices_per_worker)
        names = ["%s:%d" % (mesh.device_type, number) for number in devices]
        sums = collections.OrderedDict((name, collections.Counter()) for name in names)
        for call in calls:
            for name, times in _of_call(call, names, len(mesh.stages) > 1).items():
                sums[name].update(times)
        found = [[name, {kind: us * _MICRO / len(calls) for kind, us in sums[name].items()}] for name in names]
        try:
            with open(self._path, "w", encoding="utf-8") as stream:
                json.dump({"steps": len(calls), "devices": found}, stream)
        except OSError as error:
            _LOG.warning("where a step's time goes cannot be written to %s: %s", self._path, error.strerror)


def _of_call(call, names, is_pipeline):
    """{device: {kind: microseconds}} of one traced call."""
    metadata, begin, end = call.traced.metadata(), call.began / _MICRO, call.ended / _MICRO
    waits = {COMMUNICATION: [(begin, begin + call.for_others_s / _MICRO)]}  # a step begins with this wait
    if call.read_ahead:
        waits[DATA] = [(call.read_ahead[0] / _MICRO, call.read_ahead[1] / _MICRO)]
    found, on_gpu = executions(metadata), kernels(metadata)
    return {name: divided(intervals_of(found, on_gpu, name, is_pipeline, waits), begin, end) for name in names}


def step_times_of(environ):
    """The StepTimes that the launcher asks for (`epl-launch --report`), or None."""
    path = environ.get(TIMES)
    return StepTimes(path) if path else None
