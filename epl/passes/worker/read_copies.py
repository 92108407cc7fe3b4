"""Adds a node that reads each copy that this worker has of the variables that are compared with their other copies."""

from epl.graph import types
from epl.passes.nodes import read_node
from epl.plan.facts.names import clone_name, read_name


def read_copies(program, plan):
    """A node read_name(v, i) for each compared variable v and local copy i; nothing where none is compared."""
    graph, compared = program.graph, plan.compared
    if not compared:
        return program
    edit = graph.editor()
    for variable in sorted(compared):
        for instance in plan.mesh.instances:
            holder = graph.nodes.get(clone_name(variable, instance.index))
            if holder is not None:
                edit.add(
                    read_node(holder, read_name(variable, instance.index), types.base(plan.variables[variable].dtype))
                )
    return program.with_graph(edit.finish())
