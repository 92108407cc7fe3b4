"""Lets what one instance computes for all (zero.level) take that instance's copies of what it needs.

w   -> update                w   -> (nothing)
w/1                becomes   w/1 -> update         where instance 1 makes the update
"""

from epl.graph.index import node_of
from epl.plan.names import clone_tensor


def own_copies(program, plan):
    """Nothing to do for what instance 0 computes."""
    graph, cloned = program.graph, plan.analysis.cloned
    if plan.zero is None or len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    for name in graph.in_order(plan.zero.owners):
        instance = plan.zero.instance_of(name)
        for position, text in enumerate(graph.nodes[name].input if instance else ()):
            if node_of(text) in cloned:
                edit.set_input(name, position, clone_tensor(text, instance))
    return program.with_graph(edit.finish())
