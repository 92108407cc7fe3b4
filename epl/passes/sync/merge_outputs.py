r"""Makes, for each tensor in a collection of epl.GraphKeys, the node that a fetch of it gets instead.

    loss   \
            EplAllReduce (mean) -> what a fetch of `loss` gives
    loss/1 /

The tensor itself stays as it was for the model's own use of it.
"""

from epl.errors import PlanError
from epl.graph import types
from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of
from epl.passes.row_lists import add_rows


def merge_outputs(program, plan):
    """One collective for each merged tensor."""
    graph = program.graph
    if not plan.merges:
        return program
    edit = graph.editor()
    for merge in plan.merges:
        dtype = dtype_of(graph, merge.source)
        if merge.how == "concat":
            add_rows(
                edit,
                merge.name,
                dtype,
                merge.tensor,
                lambda name, dtype, each=merge: all_gather_node(plan, each.name, each.source, dtype, name),
            )
            continue
        if merge.how == "mean" and dtype not in types.FLOAT_TYPES:
            raise PlanError(
                "tensor '%s' is in a collection of means but holds no floating-point numbers; cast it to float32 "
                "first, or use a collection of sums" % merge.tensor
            )
        if dtype not in types.SUMMED_TYPES:
            raise PlanError(
                "tensor '%s' is in a collection of %ss, but %s cannot be added up; cast it to float32 or int64 "
                "first, or use a CONCAT collection" % (merge.tensor, merge.how, types.name(dtype))
            )
        here = len(plan.mesh.givers(stage=plan.stage(merge.source)))
        copies = plan.num_copies(merge.source) if merge.over_workers else here
        scale = 1.0 / copies if merge.how == "mean" else 1.0
        edit.add(all_reduce_node(plan, merge.name, [merge.source], dtype, scale))
    return program.with_graph(edit.finish())
