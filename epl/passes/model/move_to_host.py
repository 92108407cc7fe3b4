r"""Moves parameters to the host, and gives the device copies of them when it needs them (`offload.level`).

    w -> read -> MatMul -> ...               w -> read -> copy  --> MatMul -> ...
             \                  becomes         |     \     ^(control: what the layer before begins with)
              -> MatMul (of dx)                 |      --> copy --> MatMul (of dx)
    w <- update                                 w <- update

w, its update and its reads get the tag HOST, by which they are placed. The copies are of a type that TensorFlow's own
optimizer leaves alone; it takes Identity out of a graph.
"""

import logging

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node, set_attr
from epl.passes.nodes import dtype_of
from epl.plan.facts.names import PREFIX
from epl.plan.memory.offload import TO_DEVICE

_LOG = logging.getLogger("epl")


def offload(program, plan):
    """Tags what is to lie and run on the host, and adds the copies, as an epl.plan.memory.offload.Offload says."""
    graph = program.graph
    edit = graph.editor()
    for name in graph.in_order(plan.host):
        set_attr(edit.node(name), tags.HOST, True)
        if plan.of_state:  # there is no kernel for what lies in two places
            edit.node(name).attr.pop(tags.LAYER_WISE, None)
    for name in add_copies(graph, edit, plan.copies, "%s_offload" % PREFIX):
        set_attr(edit.node(name), tags.ROLE, TO_DEVICE)
    if program.apply_calls and plan.of_state:
        _LOG.info("%d variables of optimizers lie in host memory, where updates are computed.", len(plan.variables))
    elif program.apply_calls:
        _LOG.info(
            "%d variables lie in host memory; a step copies %d tensors of them to the device.",
            len(plan.variables),
            len(plan.copies),
        )
    return program.with_graph(edit.finish())


def add_copies(graph, edit, copies, prefix, sources=None):
    """Copies tensors from the host to the devices on which operations take them; returns the names of the added nodes.

    Args:
      graph: the Graph that `edit` changes.
      edit: an epl.graph.index.Editor.
      copies: epl.plan.memory.offload.Copies.
      prefix: of the names of nodes.
      sources: dict of canonical tensor name to the node that has it on the host; default: the tensors are there.
    """
    added = []
    for number, copy in enumerate(copies):
        source = copy.tensor if sources is None else sources[copy.tensor]
        waits = () if copy.after is None else ("^" + copy.after,)
        name = "%s/%d/%s" % (prefix, number, node_of(copy.tensor))
        node = edit.add(on_host(graph, name, source, copy.tensor, copy.users[0][0], waits))
        for user, position in copy.users:
            edit.set_input(user, position, node.name)
        added.append(node.name)
    return added


def on_host(graph, name, source, tensor, like, waits=()):
    """A node on the host that hands on a tensor.

    Args:
      graph: the Graph that has the tensor.
      name: of the node.
      source: what it takes.
      tensor: canonical name of a tensor of the same type.
      like: a node whose phase and TaskGraph it has.
      waits: control inputs.
    """
    node = make_node("PreventGradient", name, (source,) + tuple(waits), T=Type(dtype_of(graph, tensor)))
    set_attr(node, tags.HOST, True)
    set_attr(node, tags.PHASE, tags.phase(graph.nodes[like]))
    if tags.TASKGRAPH in graph.nodes[like].attr:
        set_attr(node, tags.TASKGRAPH, graph.nodes[like].attr[tags.TASKGRAPH].i)
    return node
