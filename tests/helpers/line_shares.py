"""Which cases of a test run on which TensorFlow line, where each case runs on one of them.

Like the fields of a chess board: where a test has several parameters, every value of each runs on both lines. The first
line has fewer cases than the second where that goes without leaving a value out: TensorFlow 1.15 makes graphs in nearly
twice the time.
"""

import collections
import os

# Folders whose tests start processes, or train the same model in several ways.
_DEAR = ("multiproc", "numerics")


def share_of(cases, line):
    """The cases of one test that a line runs: about a third of them on line 0, or half.

    Args:
      cases: list of tuples, for each case its values of the test's parameters, which can be sorted; in an order that is
        the same for both lines.
      line: 0 or 1.

    Returns:
      The places of these cases in the list. One that is alone runs on both lines; every other one on one of them, and
      each line runs some.
    """
    if len(cases) == 1:
        return [0]
    halves, thirds = (_coloured(cases, colours) for colours in (2, 3))
    several = len(cases[0]) > 1
    chosen = halves if several and _on_both(cases, halves) - _on_both(cases, thirds) else thirds
    return [place for place in range(len(cases)) if (place in chosen) == (line == 0)]


def _coloured(cases, colours):
    """The places of the cases of the first of so many colours, as neighbours on a board have different ones."""
    ranks = [{value: rank for rank, value in enumerate(sorted(set(values)))} for values in zip(*cases)]
    found = [sum(rank[value] for rank, value in zip(ranks, case)) % colours for case in cases]
    if 0 not in found or len(set(found)) == 1:  # some values may have no case left
        found = [place % colours for place in range(len(cases))]
    return {place for place, colour in enumerate(found) if colour == 0}


def _on_both(cases, chosen):
    """{(parameter, value)} of those that have a chosen case and another one."""
    here, there = (
        {item for place, case in enumerate(cases) if (place in chosen) == wanted for item in enumerate(case)}
        for wanted in (True, False)
    )
    return here & there


def divided(items, line):
    """The test items that a line runs of those that both could run.

    Of a module whose tests are dear, as those that start processes or are marked either_line, the tests with one case
    are shared out like the cases of a test.

    Args:
      items: of pytest, of tests with parameters or without.
      line: 0 or 1.
    """
    tests, singles = collections.OrderedDict(), collections.OrderedDict()
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in list(tests.items()):
        if len(cases) == 1 and _is_dear(cases[0]):
            singles.setdefault(name.partition("::")[0], []).extend(tests.pop(name))
    found = []
    for cases in tests.values():
        places = share_of([_values(item) for item in cases], line)
        found.extend(cases[place] for place in places)
    for cases in singles.values():
        places = share_of([(item.nodeid,) for item in cases], line)
        found.extend(cases[place] for place in places)
    return found


def _is_dear(item):
    return os.path.basename(os.path.dirname(str(item.fspath))) in _DEAR or item.get_closest_marker("either_line")


def _values(item):
    """The identifiers of an item's parameters, one for each that varies by itself.

    Not their indices, which are others in the pytest of each line. pytest has no public name for them one by one.
    """
    return tuple(item.callspec._idlist) if hasattr(item, "callspec") else ()
