"""Divides a model replica's batch over the instances that compute it (device_count above 1).

    next -> model                 next -> share 0 -> model
    next/1 -> model/1   becomes        -> share 1 -> model/1

The instances of a replica that are in this worker use one `next`; the copies of the others are left without consumers.
Where `next` gives this worker's rows alone (epl.plan.input.batch_parts), only these instances divide them.
"""

from epl.graph.index import format_input, parse_input
from epl.graph.node_defs import Type, make_node
from epl.graph.types import HANDLES
from epl.passes.nodes import tagged
from epl.plan.facts.names import PREFIX, clone_name
from epl.plan.layout.rows import weights_of
from epl.rules import effects


def share_batches(program, plan):
    """Puts an EplBatchShare between each output of a data source and its consumers; nothing to do for one share."""
    graph = program.graph
    if plan.mesh.num_shards == 1 or plan.mesh.split or plan.mesh.whole:
        return program
    edit = graph.editor()
    sources = [n for n in graph.in_order(plan.analysis.cloned) if graph.nodes[n].op in effects.SOURCES]
    for name in sources:
        first_of = {}
        span = plan.mesh.span(plan.stage(name))
        for instance in plan.instances_with(name) if plan.mesh.num_shards > span else ():
            first = first_of.setdefault(instance.data, instance.index)
            _share(graph, edit, plan, name, instance, first)
    return program.with_graph(edit.finish())


def _share(graph, edit, plan, name, instance, first):
    source = clone_name(name, instance.index)
    chosen = clone_name(name, first)
    index_of_share, weights = _place(plan, name, instance)
    made = {}
    for consumer, position in graph.consumers.get(source, ()):
        index = parse_input(graph.nodes[consumer].input[position]).index
        if index < 0 or len(weights) == 1 or not _divisible(graph.nodes[source], index):
            edit.set_input(consumer, position, format_input(chosen, index))
            continue
        if index not in made:
            node = make_node(
                "EplBatchShare",
                "%s_share/%s_%d" % (PREFIX, source, index),
                [format_input(chosen, index)],
                graph.nodes[source].device,
                T=Type(_output_type(graph.nodes[source], index)),
                index=index_of_share,
                weights=weights,
                what="output %d of '%s'" % (index, name),
            )
            made[index] = edit.add(tagged(node, "batch_share")).name
        edit.set_input(consumer, position, made[index])


def _place(plan, name, instance):
    """(which share an instance takes of what a source gives, the weights of all shares)."""
    if plan.data.parts:
        here = [each.index for each in plan.instances_with(name) if each.data == instance.data]
        return here.index(instance.index), [1] * len(here)
    stage = plan.stage(name)
    return instance.shard // plan.mesh.span(stage), list(weights_of(plan.mesh, stage))


_TYPE_LISTS = ("output_types", "component_types", "dtypes")


def _output_type(node, index):
    for key in _TYPE_LISTS:
        if key in node.attr:
            return node.attr[key].list.type[index]
    return 7  # readers give strings


def _divisible(node, index):
    """False for scalars and for handles."""
    if _output_type(node, index) in HANDLES:
        return False
    for key in ("output_shapes", "shapes"):
        shapes = node.attr[key].list.shape if key in node.attr else ()
        if index < len(shapes):
            return shapes[index].unknown_rank or len(shapes[index].dim) > 0
    return True
