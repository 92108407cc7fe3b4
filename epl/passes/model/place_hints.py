"""Puts a node behind each tensor of which users have said where it lies (epl.partition.hinted)."""

from epl.graph import tags
from epl.graph.index import parse_input
from epl.graph.node_defs import Type, make_node
from epl.passes.nodes import dtype_of, with_originals


def place_hints(program, hinted):
    """The program with the nodes, for an epl.plan.layout.shards.Hinted."""
    program, nodes = with_originals(program, hinted.again), hinted.hints.nodes
    graph, edit = program.graph, program.graph.editor()
    for name, tensor in nodes.items():
        producer, index = parse_input(tensor)
        near = graph.nodes[producer]
        placed = make_node("Identity", name, [tensor], near.device, T=Type(dtype_of(graph, tensor)))
        tags.inherit(placed, near)
        edit.add(placed)
        for consumer, position in graph.consumers.get(producer, ()):
            if graph.inputs[consumer][position].index == index:
                edit.set_input(consumer, position, name)
    return with_originals(program.with_graph(edit.finish()), nodes) if nodes else program
