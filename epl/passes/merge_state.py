r"""Merges what instances do to moving averages, counters and metrics' totals, so that their copies stay the same.

delta   -> AssignSub                delta   \                / AssignSub
delta/1 -> AssignSub/1   becomes             EplAllReduce ->
                                    delta/1 /                \ AssignSub/1
"""

from epl.passes.nodes import all_reduce_node, rewire


def merge_state(graph, plan):
    """One all-reduce for each group of changes."""
    if not plan.state:
        return graph
    edit = graph.editor()
    for group in plan.state:
        scale = 1.0 / plan.layout.num_instances if group.mean else 1.0
        edit.add(all_reduce_node(plan, group.name, group.values, group.dtype, scale, group.slot, group.tag))
        for index, consumer in enumerate(group.consumers):
            rewire(edit, plan, [consumer], "%s:%d" % (group.name, index) if index else group.name)
    return edit.finish()
