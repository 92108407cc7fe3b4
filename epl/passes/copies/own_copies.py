"""Lets what one copy of the model computes for all (zero.level) take that copy's own of what it needs.

w   -> update                w   -> (nothing)
w/1                becomes   w/1 -> update         where instance 1 makes the update

Where the devices of a copy divide tensors (epl.split), there is an update for each of them.
"""

from epl.graph.index import node_of
from epl.plan.names import clone_name, clone_tensor


def own_copies(program, plan):
    """Nothing to do for what instance 0 computes."""
    graph, cloned, zero = program.graph, plan.analysis.cloned, plan.zero
    if zero is None or len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    for name in graph.in_order(zero.owners):
        for lane in range(zero.lanes if name in cloned else 1):
            instance = zero.instance_of(name, lane)
            for position, text in enumerate(graph.nodes[name].input if instance != lane else ()):
                if node_of(text) in cloned and not plan.is_owned(node_of(text)):
                    edit.set_input(clone_name(name, lane), position, clone_tensor(text, instance))
    for instance in plan.mesh.instances[zero.lanes :] if zero.lanes > 1 else ():
        _take_from_lane(graph, edit, plan, instance.index)
    return program.with_graph(edit.finish())


def _take_from_lane(graph, edit, plan, instance):
    """Lets an instance take what has an owner from the update of its own part."""
    lane = instance % plan.zero.lanes
    for name in graph.in_order(plan.zero.owners) if lane else ():
        for consumer, position in graph.consumers.get(name, ()):
            if consumer in plan.analysis.cloned and not plan.is_owned(consumer):
                text = clone_tensor(graph.nodes[consumer].input[position], lane)
                edit.set_input(clone_name(consumer, instance), position, text)
