"""What a tensor is, as data: a term over the tensors of the single-device graph, and of which share of the batch.

A term is a number that stands for an operation with what it takes, so that equal numbers are equal formulas. A share is
what one copy of the model computes of one micro-batch; None is what does not depend on data, or is of the whole batch.
"""

import collections
from fractions import Fraction

# A term of a share of the batch; share None: the same in all copies.
Value = collections.namedtuple("Value", "term share")

# Kinds of terms beside operations.
SOURCE, VARIABLE, SUM, UNKNOWN = "source", "variable", "sum", "unknown"
AFTER, VECTOR = "after", "vector"  # a variable after a write to it; elements of several tensors, see element_spans.py

# Operations that give the same whatever the order of what they take.
UNORDERED = frozenset("Add AddV2 AddN Mul Maximum Minimum".split())


class Terms(object):
    """Terms by number. A term is (kind or operation type, attributes, terms of the inputs)."""

    def __init__(self):
        self._numbers = {}
        self.formulas = []
        self._origins = {}

    def number(self, kind, what, inputs=()):
        """The number of a term."""
        if kind in UNORDERED:
            inputs = tuple(sorted(inputs))
        formula = (kind, what, inputs)
        if formula not in self._numbers:
            self._numbers[formula] = len(self.formulas)
            self.formulas.append(formula)
        return self._numbers[formula]

    def note(self, term, tensor):
        """Notes that the single-device graph has a term, as a tensor (the first one counts)."""
        self._origins.setdefault(term, tensor)

    def origin(self, term):
        """The tensor of the single-device graph that is a term; None where it has none."""
        return self._origins.get(term)

    def kind(self, term):
        return self.formulas[term][0]

    def below(self, terms):
        """All terms of which some are made, themselves included."""
        stack, found = list(terms), set()
        while stack:
            term = stack.pop()
            if term not in found:
                found.add(term)
                kind, what, inputs = self.formulas[term]
                stack.extend(inputs)
                if kind in (SUM, VECTOR):
                    stack.extend(each[0].term for each in what if each[0] is not None)
        return found

    def items(self, value):
        """dict of Value to its factor, of which sum a Value is."""
        kind, what, _ = self.formulas[value.term]
        return dict(what) if kind == SUM else {value: Fraction(1)}

    def sum(self, items):
        """The Value of a sum: dict of Value to its factor. A sum of one, once, is that."""
        items = {value: factor for value, factor in items.items() if factor}
        if len(items) == 1 and next(iter(items.values())) == 1:
            return next(iter(items))
        ordered = tuple(sorted(items.items(), key=lambda item: (item[0].term, str(item[0].share))))
        return Value(self.number(SUM, ordered), None)

    def added(self, values, factor=1):
        """The sum of Values, sums among them, times a factor."""
        found = collections.Counter()
        for value in values:
            for each, times in self.items(value).items():
                found[each] += times * Fraction(factor)
        return self.sum(found)

    def unknown(self, reason, where):
        """The Value of a tensor of which nothing is known."""
        return Value(self.number(UNKNOWN, (reason, where)), None)


def near(number):
    """The fraction that a floating-point number stands for, of a small denominator."""
    return Fraction(number).limit_denominator(1 << 16)
