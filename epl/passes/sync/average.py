r"""Adds a node whose run gives all copies of the model the averages of their variables (local_sgd).

    v   -> read   \                 / Assign(v)
                    EplAllReduce ->              -> average_name()
    v/1 -> read/1 /                 \ Assign(v/1)

The model's own steps do not wait for it; sessions run it after some of them.
"""

from epl.graph.build import make_node
from epl.passes.nodes import all_reduce_node, assign_node, read_node
from epl.plan.names import average_name, clone_name


def average_variables(program, plan):
    """One all-reduce for each group of variables, and average_name(), which waits until all copies are set."""
    if plan.local_sgd is None:
        return program
    graph = program.graph
    edit = graph.editor()
    waits = []
    for group in plan.local_sgd.groups:
        waits.extend(_average(graph, edit, plan, group))
    edit.add(make_node("NoOp", average_name(), ["^" + name for name in waits], plan.mesh.host_device))
    return program.with_graph(edit.finish())


def _average(graph, edit, plan, group):
    """Names of the assignments of a group's averages."""

    def read(variable, instance):
        return clone_name("%s/read/%s" % (group.name, variable), instance)

    copies = [(v, i.index, graph.nodes[clone_name(v, i.index)]) for v in group.variables for i in plan.mesh.instances]
    for variable, instance, holder in copies:
        edit.add(read_node(holder, read(variable, instance), group.dtype))
    scale = 1.0 / plan.mesh.copies.size
    edit.add(all_reduce_node(plan, group.name, group.variables, group.dtype, scale, group.slot, group.tag, of=read))
    assigned = []
    for variable, instance, holder in copies:
        place = group.variables.index(variable)
        value = "%s:%d" % (group.name, place) if place else group.name
        name = clone_name("%s/assign/%s" % (group.name, variable), instance)
        assigned.append(edit.add(assign_node(holder, name, value, group.dtype)).name)
    return assigned
