"""Makes of the copies of a partitioned program those of its devices, each with a part of its own.

What differs are some attributes: where a device's part begins, how large it is where parts differ by one. And data is
read once for all devices of a model replica in this worker, each of which takes its part of it.
"""

from epl.graph.index import format_input, parse_input
from epl.plan.facts.names import clone_name
from epl.rules import effects

# Each run gives something else, so that the devices of a replica take one result.
READ_ONCE = effects.DIFFERING - effects.RANDOM - effects.COLLECTIVES


def fill_shards(program, plan):
    """Fills in what differs by device; the instances of a replica take the data of the first of them."""
    if program.partitioned is None:
        return program
    graph, edit = program.graph, program.graph.editor()
    for instance in plan.mesh.instances:
        for name, (key, values) in program.partitioned.per_shard.items():
            for copy in program.micro_batches.copies(name):
                own = clone_name(copy, instance.index)
                if own in graph.nodes:
                    edit.node(own).attr[key].ParseFromString(values[instance.shard])
    first_of = {}
    for instance in plan.mesh.instances:
        first_of.setdefault(instance.data, instance.index)
    for name in graph.find(READ_ONCE.__contains__):
        if name not in plan.analysis.cloned:
            continue
        for instance in plan.mesh.instances:
            first = first_of[instance.data]
            if first != instance.index:
                _take_from(graph, edit, clone_name(name, instance.index), clone_name(name, first))
    return program.with_graph(edit.finish())


def _take_from(graph, edit, own, other):
    for consumer, position in graph.consumers.get(own, ()):
        index = parse_input(graph.nodes[consumer].input[position]).index
        edit.set_input(consumer, position, format_input(other, index))
