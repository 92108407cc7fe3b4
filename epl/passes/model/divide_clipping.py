r"""Lets the owner of a variable alone clip its gradient, and adds up what owners say of all (zero.level).

    grad w -> L2Loss -> Pack -> Sum -> scale -> Mul   becomes   grad w -> L2Loss -> AddN -> scale -> Mul
                                                                (owner)             (all)           (owner)

What concerns one variable becomes part of the optimizer's update of it, which takes the gradient itself: a
reduce-scatter brings that to the owner alone. `epl.passes.sync.join_sums` joins the parts of a sum.
"""

import logging
from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, set_attr
from epl.passes.leave_out import become
from epl.plan.facts.analysis import analyse
from epl.plan.facts.clipping import find_clipping
from epl.plan.layout.stages import used_taskgraphs
from epl.plan.plan import mesh_of
from epl.plan.zero.zero import STATE
from epl.program.program import RowSum

_LOG = logging.getLogger("epl")


def divide_clipping(program, target):
    """The program whose owners clip; the same program where nothing is clipped after it is aggregated, or where all
    copies have to have whole gradients for it."""
    config = target.config
    if config.zero.level in ("", STATE) or not config.communication.clip_after_allreduce or program.role is not None:
        return program
    if program.scaled or program.short or program.partitioned is not None or program.merge_points is not None:
        return program
    if any(call.between is not None for call in program.apply_calls):
        return program
    used = used_taskgraphs(program)
    if len(used) > 1 or mesh_of(used, config, target.cluster).copies.size == 1:
        return program
    analysis = analyse(program)
    for call in program.apply_calls:
        found = find_clipping(program, analysis, call)
        if found is not None:
            program = _divided(program, found)
    return program


def _divided(program, clipping):
    edit, sums = program.graph.editor(), []
    for name in clipping.members:
        _belong(edit.node(name), clipping.call)
    for each in clipping.sums:
        node = edit.node(each.joined)
        controls = [text for text in node.input if text[0] == "^"]
        become(node, "AddN", list(each.parts) + controls, N=len(each.parts), T=Type(each.dtype))
        _belong(node, clipping.call)
        for name in each.between:
            become(edit.node(name), "NoOp", [])
        sums.append(RowSum(each.joined, each.parts, each.dtype))
    calls = [
        replace(call, gradients=clipping.gradients) if call.index == clipping.call else call
        for call in program.apply_calls
    ]
    return replace(program.with_graph(edit.finish()), apply_calls=calls, row_sums=program.row_sums + tuple(sums))


def _belong(node, call):
    """Makes a node one of an optimizer's."""
    set_attr(node, tags.PHASE, tags.APPLY)
    set_attr(node, tags.APPLY_CALL, call)
