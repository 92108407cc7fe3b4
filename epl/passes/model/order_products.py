r"""Swaps the operands of einsums that would have to turn what comes of the product.

    dy, x -> Einsum "egch,egcm->emh"      becomes      x, dy -> Einsum "egcm,egch->emh"

The kernel multiplies matrices, which gives what only the left operand has before what only the right one has, and turns
that around where the other order is asked for: for as large a tensor as a layer's gradient that takes as long as the
product itself. `tf.gradients` asks for it in the gradient of each right operand. The sums are of the same products.
"""

from epl.graph.build import set_attr
from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import used_taskgraphs


def order_products(program, target):
    """The Program whose einsums have their operands in the better order, where something is split.

    Elsewhere they stay as they are: a product of swapped matrices may be rounded otherwise.
    """
    if not is_split(used_taskgraphs(program)):
        return program
    graph, edit = program.graph, None
    for name in graph.find("Einsum".__eq__):
        equation = swapped(graph.nodes[name].attr["equation"].s.decode())
        if equation is None:
            continue
        edit = edit or graph.editor()
        first, second = list(graph.nodes[name].input)[:2]
        edit.set_input(name, 0, second)
        edit.set_input(name, 1, first)
        set_attr(edit.node(name), "equation", equation)
    return program.with_graph(edit.finish()) if edit else program


def swapped(equation):
    """An einsum's equation with its operands the other way round, if that spares it to turn the output; else None.

    >>> swapped("egch,egcm->emh")
    'egcm,egch->emh'
    """
    left, _, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or "." in equation:
        return None
    of_left, of_right = [
        [output.find(label) for label in mine if label in output and label not in others]
        for mine, others in (terms, terms[::-1])
    ]
    if not of_left or not of_right or max(of_right) > min(of_left):
        return None
    return "%s,%s->%s" % (terms[1], terms[0], output)
