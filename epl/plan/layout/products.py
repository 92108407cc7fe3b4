"""Which einsums turn what comes of the product, and do not where their operands are swapped."""

from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import used_taskgraphs


def plan_products(program, target):
    """dict of einsum to its equation with the operands in the better order; None where nothing is split.

    Elsewhere they stay as they are: a product of swapped matrices may be rounded otherwise.
    """
    del target
    if not is_split(used_taskgraphs(program)):
        return None
    graph = program.graph
    found = {name: swapped(graph.nodes[name].attr["equation"].s.decode()) for name in graph.find("Einsum".__eq__)}
    return {name: equation for name, equation in found.items() if equation is not None} or None


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
