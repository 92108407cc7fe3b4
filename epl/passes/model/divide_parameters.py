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

import logging
from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, make_node, set_attr
from epl.passes.nodes import with_originals
from epl.plan.facts.analysis import analyse
from epl.plan.layout.stages import used_taskgraphs
from epl.plan.plan import mesh_of
from epl.plan.zero.parameters import LEVELS, find_divisible, plan_segments

_LOG = logging.getLogger("epl")
_MIB = 1 << 20


def divide_parameters(program, target):
    """Adds the segments, by which plans know what is divided; nothing with one copy of the model."""
    zero = target.config.zero
    if zero.level not in LEVELS or not program.apply_calls or program.role is not None:
        return program
    if mesh_of(used_taskgraphs(program), target.config, target.cluster).copies.size == 1:
        return program
    analysis = analyse(program)
    found = find_divisible(program, analysis)
    if found.whole:
        first = next(iter(found.whole))
        others = " and %d other parameters stay" % (len(found.whole) - 1) if len(found.whole) > 1 else " stays"
        _LOG.warning("zero.level: '%s'%s whole on every device: %s.", first, others, found.whole[first])
    segments = plan_segments(program, analysis, found.reads, zero.level, zero.segment_mb * _MIB)
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
