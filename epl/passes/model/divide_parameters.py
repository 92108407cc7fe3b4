r"""Lets what computes with parameters take them from where they come in segments (`zero.level` "v2" and "v3").

                                              ,-> segment of the forward pass  -> MatMul
    w -> read -> MatMul -> ...                |
             \                  becomes  w -> read
              -> MatMul (of dx)               |
                                              '-> segment of the backward pass -> MatMul (of dx)

At "v2" there is one segment for both. Segments of what lies in host memory (`offload.level`) lie there too, before the
copies that devices get:

    w -> read -> segment -> copy -> MatMul

Once there are copies of the model, segments become collectives. The nodes are of a type that TensorFlow's own
optimizer leaves alone; it takes Identity out of a graph.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.node_defs import Type, make_node, set_attr
from epl.passes.nodes import with_originals


def divide_parameters(program, segments):
    """Adds the nodes of epl.plan.zero.parameters.Segments, by which plans know what is divided."""
    edit, originals = program.graph.editor(), {}
    for segment in segments:
        for name, read, users in zip(segment.nodes, segment.reads, segment.users):
            waits = () if segment.after is None else ("^" + segment.after,)
            node = make_node("PreventGradient", name, (read,) + waits, T=Type(segment.dtype))
            near = program.graph.nodes[users[0][0]]
            set_attr(node, tags.PHASE, tags.phase(near))
            if tags.TASKGRAPH in near.attr:
                set_attr(node, tags.TASKGRAPH, near.attr[tags.TASKGRAPH].i)
            if tags.HOST in program.graph.nodes[read].attr:
                set_attr(node, tags.HOST, True)
            edit.add(node)
            originals[name] = read
            for user, position in users:
                edit.set_input(user, position, name)
    program = with_originals(program.with_graph(edit.finish()), originals)
    return replace(program, segments=segments)
