"""Sparse gradients of several shares of the batch, whose rows follow one another.

A ROWS is a term whose attributes are (Value, factor) pairs in their order: of one tensor, the values or the indices of
a sparse gradient, what each share has of it, times a factor.
"""

from fractions import Fraction

from epl.audit.compared_values import SUM, Value

ROWS = "rows"


def gathered(terms, values, sparse):
    """The (Value, factor) pairs of several Values, in their order; None where these are not all of one tensor.

    Args:
      terms: the Terms.
      values: Values, ROWS among them.
      sparse: the terms of values and indices of one device's sparse gradients.
    """
    parts = []
    for value in values:
        kind, what, _ = terms.formulas[value.term]
        is_scaled = kind == SUM and len(what) == 1
        parts.extend(what if kind == ROWS or is_scaled else [(value, Fraction(1))])
    found = {value.term for value, _ in parts}
    return tuple(parts) if len(found) == 1 and found <= set(sparse) else None


def rows(terms, parts, factor=1):
    """The Value of (Value, factor) pairs, times a factor."""
    return Value(terms.number(ROWS, tuple((value, known * Fraction(factor)) for value, known in parts)), None)


def are_of_all(parts, shares):
    """Whether these are the rows of each share once, in the order of the shares: where values and indices both are,
    they belong together. Of what is the same in all shares each has the same."""
    found = [value.share for value, _ in parts]
    return found == sorted(shares) or len(found) == len(shares) and set(found) == {None}
