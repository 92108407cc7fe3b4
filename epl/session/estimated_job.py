"""The memory that each device of a job will need: of workers with equal graphs one is gone through."""

import collections
from dataclasses import dataclass
from typing import Any, Dict, Tuple

from epl import compiler
from epl.plan.cost.device_memory import table
from epl.plan.report.memory_page import drawn
from epl.plan.worker_roles import workers_by_role
from epl.session.estimated_program import estimate_program


@dataclass(frozen=True)
class EstimatedMemory:
    """The memory of some workers with equal graphs.

    Attributes:
      workers: their indices.
      devices: dict of device, such as "CPU:0", to an epl.plan.cost.device_memory.DeviceMemory.
      unknown: names of tensors of unknown size.
    """

    workers: Tuple[int, ...]
    devices: Dict[str, Any]
    unknown: Tuple[str, ...]


def estimate_job(captured, program, config, cluster, batch=None, most=None):
    """The memory of all devices of a job over a training step.

    Args:
      captured: the epl.program.program.Program that capture made.
      program: what epl.compiler.compile made of it for the cluster's own worker.
      config, cluster: as for that.
      batch: as of epl.session.estimated_program.estimate_program.
      most: kinds of workers to go through; None: all. Each takes about as long as planning does.

    Returns:
      A list of EstimatedMemory, by their first workers.
    """
    found = []
    for workers in workers_by_role(program.plan)[:most]:
        own = program
        if cluster.worker_index not in workers:
            own = compiler.compile(captured, config, cluster.with_index(workers[0]))
        devices, unknown = estimate_program(own, batch)
        found.append(EstimatedMemory(tuple(workers), devices, tuple(unknown)))
    return found


def job_table(found, worker_num, most=None):
    """The figures as text, a line for each device of the job.

    Args:
      found: what `estimate_job` returns.
      worker_num: workers of the job.
      most: devices to list before the rest is summed up; None: all.
    """
    rows = {
        (worker, name): memory for each in found for worker in each.workers for name, memory in each.devices.items()
    }
    devices = collections.OrderedDict()
    for (worker, name), memory in sorted(rows.items(), key=lambda row: row[0]):
        devices["worker %d %s" % (worker, name) if worker_num > 1 else name] = memory
    text = table(devices, sorted({name for each in found for name in each.unknown}), most)
    others = worker_num - sum(len(each.workers) for each in found)
    if others:
        text += (
            "\nNot gone through: %d further workers with graphs of their own; with a larger --rows they are." % others
        )
    return text


def job_charts(found, worker_num):
    """What epl.plan.report.memory_page draws: a chart for each device of each EstimatedMemory."""
    charts = collections.OrderedDict()
    for each in found:
        for name, memory in each.devices.items():
            heading = "%s, %s" % (_in_words(each.workers), name) if worker_num > 1 else name
            charts[heading] = {"estimated": drawn(memory)}
    return charts


def _in_words(workers):
    """Some workers for people: "worker 3", "workers 0 to 4, 6"."""
    spans = []
    for worker in sorted(workers):
        if spans and spans[-1][1] == worker - 1:
            spans[-1][1] = worker
        else:
            spans.append([worker, worker])
    text = ", ".join("%d" % begin if begin == end else "%d to %d" % (begin, end) for begin, end in spans)
    return "worker%s %s" % ("" if len(workers) == 1 else "s", text)
