r"""Computes gradients a second time, from what the forward pass has kept, to compare them with (`check_gradients`).

    y  ----------\                          y  ----------\
    y' -> dx      (nobody takes it)  becomes  y' -> dx     -> dx''

y' is computed again, y kept from the forward pass; dx and dx'' are what a session compares in its first step. Updates
wait for dx'', which is made of the variables as they are before. Where devices divide tensors, updates wait for
nodes that hand on both, whole.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node, set_attr
from epl.partition.table import ROWS_OF_COPY
from epl.passes.node_copies import Template
from epl.passes.nodes import dtype_of, with_originals
from epl.plan.memory.checked_gradients import checked_name


def check_gradients(program, checks):
    """Adds the copies of an epl.plan.memory.checked_gradients.GradientChecks; `program.checked` says of what."""
    graph, edit = program.graph, program.graph.editor()
    inside = frozenset(name for name, _ in checks.copies)
    originals = {checked_name(name): name for name in inside}
    for name, inputs in checks.copies:
        edit.add(Template(graph.nodes[name], inside).copy(checked_name, list(inputs)))
    for wait in checks.waits:
        join = make_node("NoOp", wait.name, ["^" + name for name in wait.after])
        set_attr(join, tags.PHASE, tags.BACKWARD)
        if wait.taskgraph is not None:
            set_attr(join, tags.TASKGRAPH, wait.taskgraph)
        edit.add(join)
        for write in wait.writes:
            edit.node(write).input.append("^" + wait.name)
    for each in checks.checked:
        for name, tensor in zip(each.whole, (each.tensor, each.without)):
            op = ROWS_OF_COPY if each.tensor in checks.rows else "Identity"
            node = make_node(op, name, [tensor], T=Type(dtype_of(graph, each.tensor)))
            tags.inherit(node, graph.nodes[node_of(each.tensor)], (tags.TASKGRAPH, tags.PHASE))
            edit.add(node)
            originals[name] = each.tensor
    program = with_originals(program, originals)
    return replace(program.with_graph(edit.finish()), checked=checks.checked)
