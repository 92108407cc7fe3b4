r"""Lets the owner of a variable alone clip its gradient, and adds up what owners say of all (zero.level).

    grad w -> L2Loss -> Pack -> Sum -> scale -> Mul   becomes   grad w -> L2Loss -> AddN -> scale -> Mul
                                                                (owner)             (all)           (owner)

What concerns one variable becomes part of the optimizer's update of it, which takes the gradient itself: a
reduce-scatter brings that to the owner alone. `epl.passes.sync.join_sums` joins the parts of a sum.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.node_defs import Type, become, set_attr
from epl.program.program import RowSum


def divide_clipping(program, clippings):
    """The program whose owners clip, as some epl.plan.facts.clipping.Clippings say."""
    for clipping in clippings:
        program = _divided(program, clipping)
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
