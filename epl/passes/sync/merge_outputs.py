r"""Makes, for each tensor in a collection of epl.GraphKeys, the node that a fetch of it gets instead.

    loss   \
            EplAllReduce (mean) -> what a fetch of `loss` gives
    loss/1 /

The tensor itself stays as it was for the model's own use of it.
"""

from epl.errors import PlanError
from epl.graph import types
from epl.graph.build import Type, make_node
from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of, tagged

_UINT8 = 4
_STRING = 7


def merge_outputs(program, plan):
    """One collective for each merged tensor."""
    graph = program.graph
    if not plan.merges:
        return program
    edit = graph.editor()
    for merge in plan.merges:
        dtype = dtype_of(graph, merge.source)
        workers = plan.group_of(merge.source).num_workers if merge.over_workers else 1
        if merge.how == "concat":
            _concatenate(edit, plan, merge, dtype, workers)
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
        edit.add(all_reduce_node(plan, merge.name, [merge.source], dtype, scale, 0, merge.tag, workers))
    return program.with_graph(edit.finish())


def _concatenate(edit, plan, merge, dtype, workers):
    """Scalars are rows of one; strings travel as bytes."""
    host = plan.mesh.host_device
    text = dtype == _STRING
    name = merge.name + "/packed" if text else merge.name
    gather = all_gather_node(plan, name, merge.source, _UINT8 if text else dtype, 0, merge.tag, workers)
    for index, tensor in enumerate(list(gather.input)):
        made = "%s/rows_%d" % (merge.name, index)
        if text:
            edit.add(make_node("EplPackStrings", made, [tensor], host))
        else:
            edit.add(tagged(make_node("EplRows", made, [tensor], host, T=Type(dtype)), "join"))
        gather.input[index] = made
    edit.add(gather)
    if text:
        edit.add(make_node("EplUnpackStrings", merge.name, [name], host, what=merge.tensor))
