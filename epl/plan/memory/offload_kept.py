"""Which tensors of the forward pass wait for the backward pass in host memory (`gradient_checkpoint.offload`)."""

from dataclasses import dataclass
from typing import Tuple

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.plan.cost.own_bytes import own_sizes
from epl.plan.facts.analysis import analyse
from epl.plan.memory.forward import Forward
from epl.plan.memory.offload import Copy, copies
from epl.rules import effects, tensors

# Smaller ones, as a part of the largest, are not worth an operation each.
_SMALLEST = 64
_NEVER = effects.PLACEHOLDERS | tensors.SHAPE_ONLY | {"Const"}


@dataclass(frozen=True)
class Kept:
    """Tensors that wait on the host.

    Attributes:
      tensors: canonical names, in the order in which they are made.
      copies: the Copies that the backward pass gets; each waits until the layer whose turn comes before has what it
        computes with.
    """

    tensors: Tuple[str, ...]
    copies: Tuple[Copy, ...]


def plan_kept(program, target):
    """The Kept of a program, whose recomputation, if it has any, is there already; None where
    gradient_checkpoint.offload does not ask for one.

    What stays on the device: parameters, and what is made of them alone; what is kept in loops and branches; what the
    first layer of the backward pass takes, as its turn comes at once.
    """
    if not target.config.gradient_checkpoint.offload or not program.computed:
        return None
    analysis = analyse(program)
    graph, bytes_of, inside = program.graph, own_sizes(program), analysis.in_control_flow
    waiting = Forward(graph, analysis, program.stateful).from_data - inside
    sizes, host = {}, {name for name, node in graph.nodes.items() if tags.HOST in node.attr}
    for name, node in graph.nodes.items():
        if tags.phase(node) != tags.BACKWARD or name in host:
            continue
        for text in node.input:
            producer = node_of(text)
            if text[0] != "^" and producer in waiting and _may_wait(graph, producer, host):
                sizes[producer] = max(sizes.get(producer, 0), bytes_of(canonical_tensor(text)))
    least = max(sizes.values(), default=0) / float(_SMALLEST)
    sizes = {name: size for name, size in sizes.items() if size > least}
    found = [c for c in copies(graph, sizes, host, inside, (tags.BACKWARD,)) if c.after is not None]
    tensors = {copy.tensor for copy in found}
    order = sorted(tensors, key=lambda tensor: (graph.creation_index[node_of(tensor)], tensor))
    return Kept(tuple(order), tuple(found))


def _may_wait(graph, name, host):
    node = graph.nodes[name]
    return tags.phase(node) == tags.FORWARD and name not in host and node.op not in _NEVER
