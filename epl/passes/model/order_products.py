r"""Swaps the operands of einsums that would have to turn what comes of the product.

    dy, x -> Einsum "egch,egcm->emh"      becomes      x, dy -> Einsum "egcm,egch->emh"

The kernel multiplies matrices, which gives what only the left operand has before what only the right one has, and turns
that around where the other order is asked for: for as large a tensor as a layer's gradient that takes as long as the
product itself. `tf.gradients` asks for it in the gradient of each right operand. The sums are of the same products.
"""

from epl.graph.node_defs import set_attr


def order_products(program, equations):
    """The Program whose einsums have their operands in another order: a dict of their names to their equations."""
    edit = program.graph.editor()
    for name, equation in equations.items():
        first, second = list(program.graph.nodes[name].input)[:2]
        edit.set_input(name, 0, second)
        edit.set_input(name, 1, first)
        set_attr(edit.node(name), "equation", equation)
    return program.with_graph(edit.finish())
