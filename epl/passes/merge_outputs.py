r"""Makes, for each tensor in a collection of epl.GraphKeys, the node that a fetch of it gets instead.

    loss   \
            EplAllReduce (mean) -> what a fetch of `loss` gives
    loss/1 /

The tensor itself stays as it was for the model's own use of it.
"""

from epl.errors import PlanError
from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of
from epl.plan import ops


def merge_outputs(graph, plan):
    """One collective for each merged tensor."""
    if not plan.merges:
        return graph
    edit = graph.editor()
    for merge in plan.merges:
        dtype = dtype_of(graph, merge.tensor)
        workers = plan.layout.worker_num if merge.over_workers else 1
        if merge.how == "concat":
            edit.add(all_gather_node(plan, merge.name, merge.tensor, dtype, 0, merge.tag, workers))
            continue
        if merge.how == "mean" and dtype not in ops.FLOAT_TYPES:
            raise PlanError(
                "tensor '%s' is in a collection of means but holds no floating-point numbers; cast it to float32 "
                "first, or use a collection of sums" % merge.tensor
            )
        scale = 1.0 / (workers * len(plan.layout.instances)) if merge.how == "mean" else 1.0
        edit.add(all_reduce_node(plan, merge.name, [merge.tensor], dtype, scale, 0, merge.tag, workers))
    return edit.finish()
