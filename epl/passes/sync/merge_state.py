r"""Merges what instances do to moving averages, counters and metrics' totals, so that their copies stay the same.

delta   -> AssignSub                delta   \                / AssignSub
delta/1 -> AssignSub/1   becomes             EplAllReduce ->
                                    delta/1 /                \ AssignSub/1
"""

from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of, rewire
from epl.passes.row_lists import add_rows


def merge_state(program, plan):
    """One all-reduce for each group of changes; additions to rows are gathered, so that each copy makes all of them."""
    graph = program.graph
    if not plan.state:
        return program
    edit = graph.editor()
    for group in plan.state:
        if group.how == "rows":
            _gather_rows(graph, edit, plan, group)
            continue
        mean = group.how == "mean"
        reduce_op, scale = ("sum", 1.0 / plan.num_copies(group.values[0])) if mean else (group.how, 1.0)
        edit.add(all_reduce_node(plan, group.name, group.values, group.dtype, scale, reduce_op))
        for index, consumer in enumerate(group.consumers):
            rewire(edit, plan, [consumer], "%s:%d" % (group.name, index) if index else group.name, group.shard_rank)
    return program.with_graph(edit.finish())


def _gather_rows(graph, edit, plan, group):
    for name, tensor, consumer in zip(group.gathered, group.values, group.consumers):
        dtype = dtype_of(graph, tensor)
        # A single index is a scalar.
        add_rows(
            edit,
            name,
            dtype,
            tensor,
            lambda n, d, of=tensor, called=name: all_gather_node(plan, called, of, d, n),
        )
        rewire(edit, plan, [consumer], name)
