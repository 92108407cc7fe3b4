r"""What users have said about where tensors lie (`epl.shard`, `epl.whole`), as marks for the partition.

    product -> softmax      becomes      product -> Identity, which lies as was said -> softmax

The node takes any placement that the tensor can have, so that a hint always holds; what makes the tensor is chosen so
that it leaves it in that placement, if that costs no more.
"""

from dataclasses import dataclass
from typing import Dict

from epl.graph import tags
from epl.graph.build import Type, make_node
from epl.graph.index import Graph, format_input, parse_input
from epl.program.placement import WHOLE, Placement, sharded
from epl.rules import effects


@dataclass(frozen=True)
class Hints:
    """The hints of a graph.

    Attributes:
      graph: with a node behind each tensor of a hint.
      nodes: that node to the tensor.
      tensors: each such tensor to its Placement.
      variables: the same of variables.
    """

    graph: Graph
    nodes: Dict[str, str]
    tensors: Dict[str, Placement]
    variables: Dict[str, Placement]


def hints_of(graph, dtype_of):
    """The Hints of a tagged graph.

    Args:
      graph: the Graph.
      dtype_of: function from a canonical tensor name to its DataType number.
    """
    edit, found = graph.editor(), Hints(graph, {}, {}, {})
    for name, node in graph.nodes.items():
        for index, dim in tags.places_of(node).items():
            tensor, placement = format_input(name, index), WHOLE if dim is None else sharded(dim)
            if node.op in effects.VARIABLES:
                found.variables[name] = placement
                continue
            found.tensors[tensor] = placement
            found.nodes[_put(graph, edit, node, index, dtype_of(tensor))] = tensor
    return Hints(edit.finish(), found.nodes, found.tensors, found.variables) if found.nodes else found


def _put(graph, edit, node, index, dtype):
    """Adds the node behind an output."""
    tensor = format_input(node.name, index)
    placed = make_node("Identity", placed_name(tensor), [tensor], node.device, T=Type(dtype))
    tags.inherit(placed, node)
    edit.add(placed)
    for consumer, position in graph.consumers.get(node.name, ()):
        if graph.inputs[consumer][position].index == index:
            edit.set_input(consumer, position, placed.name)
    return placed.name


def placed_name(tensor):
    """The node that holds a tensor in its placement."""
    node, index = parse_input(tensor)
    return "epl_placed/%d/%s" % (index, node)
