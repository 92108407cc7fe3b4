"""Schedules of a program as pictures."""

import os

from epl.capture.specs import spec_reader
from epl.plan.cost import estimate
from epl.plan.timeline import estimated_timeline, page


def schedule_page(graph, model, plan, pipeline, script, measured=None):
    """A web page with one training iteration of one model replica.

    Args:
      graph: the user's tf.Graph.
      model: the Model that it was made into, without copies for micro-batches.
      plan: its Plan.
      pipeline: the `pipeline` part of the configuration.
      script: path of the program, for the title.
      measured: a Timeline of a run, which is shown beside the estimated one; None for none.
    """
    costs = estimate(model.graph, plan.analysis.cloned, spec_reader(graph))
    names, stage_of, chunks = [stage.name for stage in plan.layout.stages], plan.stage_of, pipeline.num_chunks
    if _on_one_device(plan.layout):  # stages on the same device are none to a schedule
        names, stage_of, chunks = [" + ".join(names)], {}, 1
    line = estimated_timeline(
        model.graph, costs, stage_of, len(names), pipeline.strategy, pipeline.num_micro_batch, chunks
    )
    title = "%s: %s, %d %s, %d %s" % (
        os.path.basename(script),
        pipeline.strategy,
        len(names),
        "stage" if len(names) == 1 else "stages",
        pipeline.num_micro_batch,
        "micro-batch" if pipeline.num_micro_batch == 1 else "micro-batches",
    )
    speeds = costs.speeds
    note = (
        "Estimated from shapes for a device of %.4g TFLOP/s and %.4g GB/s and links of %.4g GB/s, an unknown batch "
        "counted as %d; communication of gradients and the update of the variables are left out."
        % (speeds.flops / 1e12, speeds.memory_bytes / 1e9, speeds.link_bytes / 1e9, speeds.unknown_dim)
    )
    return page(line, title, names, measured, notes=[note])


def _on_one_device(layout):
    return len(layout.crew) == 1 and len(set(layout.instances[0].devices)) == 1
