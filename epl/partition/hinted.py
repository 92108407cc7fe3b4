r"""What users have said about where tensors lie (`epl.shard`, `epl.whole`), as marks for the partition.

    product -> softmax      becomes      product -> Identity, which lies as was said -> softmax

The node takes any placement that the tensor can have, so that a hint always holds; what makes the tensor is chosen so
that it leaves it in that placement, if that costs no more.
"""

from dataclasses import dataclass
from typing import Dict

from epl.graph import tags
from epl.graph.index import format_input, parse_input
from epl.program.placement import WHOLE, Placement, sharded
from epl.rules import effects


@dataclass(frozen=True)
class Hints:
    """The hints of a graph.

    Attributes:
      nodes: the node that stands behind each tensor of a hint to the tensor, in order.
      tensors: each such tensor to its Placement.
      variables: the same of variables.
    """

    nodes: Dict[str, str]
    tensors: Dict[str, Placement]
    variables: Dict[str, Placement]


def hints_of(graph):
    """The Hints of a tagged graph, whether or not it has their nodes."""
    found = Hints({}, {}, {})
    for name, node in graph.nodes.items():
        for index, dim in tags.places_of(node).items():
            tensor, placement = format_input(name, index), WHOLE if dim is None else sharded(dim)
            if node.op in effects.VARIABLES:
                found.variables[name] = placement
                continue
            found.tensors[tensor] = placement
            found.nodes[placed_name(tensor)] = tensor
    return found


def placed_name(tensor):
    """The node that holds a tensor in its placement."""
    node, index = parse_input(tensor)
    return "epl_placed/%d/%s" % (index, node)
