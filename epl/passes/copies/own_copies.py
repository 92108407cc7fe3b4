"""Lets what one copy of the model computes for all (zero.level) take that copy's own of what it needs.

w   -> update                w   -> (nothing)
w/1                becomes   w/1 -> update         where instance 1 makes the update

Where the devices of a copy divide tensors (epl.split), there is an update for each of them; where groups of a worker's
copies each have all of the state (zero.degree), one in each group.
"""

from epl.graph.index import node_of
from epl.plan.facts.names import clone_name, clone_tensor


def own_copies(program, plan):
    """Nothing to do for what instance 0 computes."""
    graph, cloned, zero = program.graph, plan.analysis.cloned, plan.zero
    if zero is None or len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    for name in graph.in_order(zero.owners):
        for number in range(zero.num_owned if name in cloned else 1):
            instance = zero.instance_of(name, number)
            for position, text in enumerate(graph.nodes[name].input if instance != number else ()):
                if node_of(text) in cloned and not plan.is_owned(node_of(text)):
                    edit.set_input(clone_name(name, number), position, clone_tensor(text, instance))
    for instance in plan.mesh.instances if zero.num_owned > 1 else ():
        taken = instance.index if instance.index < zero.num_owned else 0  # as it was cloned
        if zero.number_for(instance.index) != taken:
            _take_own(graph, edit, plan, instance.index)
    return program.with_graph(edit.finish())


def _take_own(graph, edit, plan, instance):
    """Lets an instance take what has an owner from the update of its own part, or in its own group."""
    cloned, number = plan.analysis.cloned, plan.zero.number_for(instance)
    for name in graph.in_order(cloned.intersection(plan.zero.owners)):
        for consumer, position in graph.consumers.get(name, ()):
            if consumer in cloned and not plan.is_owned(consumer):
                text = clone_tensor(graph.nodes[consumer].input[position], number)
                edit.set_input(clone_name(consumer, instance), position, text)
