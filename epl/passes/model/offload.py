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
from epl.graph.build import Type, make_node, set_attr
from epl.graph.index import format_input, parse_input
from epl.plan.analysis import analyse
from epl.plan.names import PREFIX
from epl.plan.offload import plan_offload

_LOG = logging.getLogger("epl")


def offload(program, target):
    """Tags what is to lie and run on the host, and adds the copies.

    Raises:
      UnsupportedError: see epl.plan.offload.plan_offload.
    """
    level = target.config.offload.level
    if not level:
        return program
    graph = program.graph
    plan = plan_offload(program, level, analyse(program).in_control_flow)
    edit = graph.editor()
    for name in graph.in_order(plan.host):
        set_attr(edit.node(name), tags.HOST, True)
    for number, copy in enumerate(plan.copies):
        made, users = _copy(graph, number, copy), [user for user, _ in copy.users]
        set_attr(made, tags.PHASE, tags.phase(graph.nodes[users[0]]))
        if tags.TASKGRAPH in graph.nodes[users[0]].attr:
            set_attr(made, tags.TASKGRAPH, graph.nodes[users[0]].attr[tags.TASKGRAPH].i)
        edit.add(made)
        for user, position in copy.users:
            edit.set_input(user, position, made.name)
    if program.apply_calls:
        _LOG.info(
            "%d variables lie in host memory; a step copies %d tensors of them to the device.",
            len(plan.variables),
            len(plan.copies),
        )
    return program.with_graph(edit.finish())


def _copy(graph, number, copy):
    name, index = parse_input(copy.tensor)
    node = graph.nodes[name]
    dtype = next(node.attr[key].type for key in ("DstT", "dtype", "T") if key in node.attr)
    inputs = [format_input(name, index)] + ([] if copy.after is None else ["^" + copy.after])
    made = make_node("PreventGradient", "%s_offload/%d/%s" % (PREFIX, number, name), inputs, T=Type(dtype))
    set_attr(made, tags.HOST, True)
    return made
