"""Schedules of a program as pictures."""

import os

from epl.plan.cost.cost import UNKNOWN_SIZE, forward_costs
from epl.plan.input.batch_rows import data_set_rows
from epl.plan.report import timeline_page, web
from epl.plan.report.timeline_page import estimated_timeline


def schedule_page(program, pipeline, script, measured=None, batch=None):
    """A web page with one training iteration of one model replica.

    Args:
      program: a compiled Program.
      pipeline: the `pipeline` part of the configuration.
      script: path of the program, for the title.
      measured: a Timeline of a run, which is shown beside the estimated one; None for none.
      batch: rows of a micro-batch, where the program leaves them open. None: those of its data sets, where that is a
        constant, else UNKNOWN_SIZE.
    """
    heading, body = schedule_part(program, pipeline, measured, batch)
    return web.document("%s: %s" % (os.path.basename(script), heading), body)


def schedule_part(program, pipeline, measured=None, batch=None):
    """(heading, HTML) of the same for a page that shows more."""
    graph, plan = program.source.graph, program.source.plan
    batch = batch or data_set_rows(graph) or UNKNOWN_SIZE
    costs = forward_costs(graph, plan.analysis.cloned, program.spec_of, unknown_size=batch)
    names, stage_of, chunks = [stage.name for stage in plan.mesh.stages], plan.stage_of, pipeline.num_chunks
    if _on_one_device(plan.mesh):  # stages on the same device are none to a schedule
        names, stage_of, chunks = [" + ".join(names)], {}, 1
    link = costs.machine.worker if plan.mesh.pipeline.num_workers == 1 else costs.machine.host
    line = estimated_timeline(
        graph, costs, stage_of, len(names), pipeline.strategy, pipeline.num_micro_batch, chunks, link
    )
    heading = "%s, %d %s, %d %s" % (
        pipeline.strategy,
        len(names),
        "stage" if len(names) == 1 else "stages",
        pipeline.num_micro_batch,
        "micro-batch" if pipeline.num_micro_batch == 1 else "micro-batches",
    )
    device = costs.machine.device
    note = (
        "Estimated from shapes for a device of %.4g TFLOP/s and %.4g GB/s and links of %.4g GB/s, an unknown batch "
        "counted as %d; communication of gradients and the update of the variables are left out."
        % (device.most_flops_per_s / 1e12, device.memory_bytes_per_s / 1e9, link.bytes_per_s / 1e9, costs.unknown_size)
    )
    return heading, timeline_page.part(line, names, measured, [note])


def _on_one_device(mesh):
    return mesh.pipeline.num_workers == 1 and len(set(mesh.instances[0].devices)) == 1
