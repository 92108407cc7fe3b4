"""Which cases of a test run on which TensorFlow line, where each line runs about half of them.

Like the fields of a chess board: where a test has several parameters, every value of each runs on both lines.
"""

import collections


def half_of(cases, line):
    """The cases of one test that a line runs.

    Args:
      cases: list of tuples, for each case its values of the test's parameters as numbers; in an order that is the same
        for both lines.
      line: 0 or 1.

    Returns:
      The places of these cases in the list. One that is alone runs on both lines; every other one on one of them, and
      each line runs some.
    """
    if len(cases) == 1:
        return [0]
    ranks = [
        {value: rank for rank, value in enumerate(sorted(set(values)))} for values in zip(*cases)
    ]  # some values may have no case left
    colours = [sum(rank[value] for rank, value in zip(ranks, case)) % 2 for case in cases]
    if len(set(colours)) == 1:
        colours = [place % 2 for place in range(len(cases))]
    return [place for place, colour in enumerate(colours) if colour == line]


def divided(items, line):
    """The test items that a line runs of those that both could run.

    Args:
      items: of pytest, of tests with parameters or without.
      line: 0 or 1.
    """
    tests = collections.OrderedDict()
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found = []
    for cases in tests.values():
        places = half_of([_values(item) for item in cases], line)
        found.extend(cases[place] for place in places)
    return found


def _values(item):
    """The numbers of an item's parameters, one for each that varies by itself."""
    if not hasattr(item, "callspec"):
        return ()
    indices = item.callspec.indices
    together = [_together(mark) for mark in item.iter_markers("parametrize")]
    names = {each[0] for each in together}.union(indices).difference(*[each[1:] for each in together])
    return tuple(indices[name] for name in sorted(names) if name in indices)


def _together(mark):
    """Names that a parametrize mark gives values at once."""
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
