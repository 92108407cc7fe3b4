"""What vectors consist of that are made of several tensors, as exchanges of groups and of parts are: spans of Values.

A span is (Value, first element, element after the last one), of the tensor's elements in the order of memory; the Value
is None for elements that nobody looks at. A VECTOR is a term whose attributes are its spans.
"""

from epl.audit.compared_values import VECTOR, Value


def length(spans):
    """The number of elements."""
    return sum(end - begin for _, begin, end in spans)


def joined(spans):
    """The same spans, where those that follow one another in a tensor are one."""
    found = []
    for value, begin, end in spans:
        if begin == end:
            continue
        if found and found[-1][0] == value and (value is None or found[-1][2] == begin):
            begin, end = found[-1][1], found[-1][2] + end - begin
            found.pop()
        found.append((value, begin, end))
    return tuple(found)


def cut(spans, begin, end):
    """The spans of the elements from `begin` to before `end`."""
    found, passed = [], 0
    for value, first, last in spans:
        start, stop = max(begin - passed, 0), min(end - passed, last - first)
        if start < stop:
            found.append((value, first + start, first + stop))
        passed += last - first
    return joined(found)


def aligned(all_spans):
    """Several vectors of equal length, cut where any of them has a border: a list of their spans at each place."""
    borders = {0}
    for spans in all_spans:
        passed = 0
        for _, begin, end in spans:
            passed += end - begin
            borders.add(passed)
    borders = sorted(borders)
    return [
        [each for spans in all_spans for each in cut(spans, begin, end)] for begin, end in zip(borders, borders[1:])
    ]


def vector(terms, spans, count=None):
    """The Value of a vector; of one that is a whole tensor of `count` elements that tensor's."""
    spans = joined(spans)
    if len(spans) == 1 and spans[0][0] is not None and spans[0][1:] == (0, count):
        return spans[0][0]
    shares = {value.share for value, _, _ in spans if value is not None}
    return Value(terms.number(VECTOR, spans), shares.pop() if len(shares) == 1 else None)
