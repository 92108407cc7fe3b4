"""What is shown of a Comparison: lines for people, and JSON."""

from epl.verify.comparison import EQUAL

KINDS = ("loss", "gradient", "variable")

UNITS = "A difference is the largest of all elements; (x n) says how many times as large as rounding explains it is."


def lines(comparison):
    """Lines of text: a table with a row for each step, and what differs."""
    yield "step  " + "".join("%-34s" % kind for kind in KINDS) + "verdict"
    for number, step in enumerate(comparison.steps):
        cells = ["%-34s" % cell(worst_of(step, kind)) for kind in KINDS]
        worst = worst_of(step)
        yield "%-6d%s%s" % (number, "".join(cells), worst.verdict if worst else EQUAL)
    yield UNITS
    for race in comparison.races:
        yield "not compared, as it differs between two runs on one device: %s" % race
    for note in comparison.notes:
        yield note
    number, worst = first_difference(comparison)
    if worst is not None:
        yield "step %d is the first that differs; most of all the %s, of worker %d:" % (
            number,
            worst.name,
            worst.worker,
        )
        for place, here, there in worst.worst:
            yield "  %s: %s on one device, %s under the strategy" % (place, here, there)
    if comparison.first is not None:
        yield from first_lines(comparison.first)
    yield "verdict: %s" % comparison.verdict


def first_lines(first):
    """Lines of text about a FirstOperation."""
    yield "the first operation that differs: '%s' (%s), %s of step %d, %s" % (
        first.operation,
        first.type,
        first.part,
        first.step,
        first.where,
    )
    if first.lines:
        yield "  made at %s" % "; ".join(first.lines[:3])
    if first.passes:
        yield "  its copies and parts are made by: %s" % ", ".join(first.passes)
    for text, what in first.there:
        yield "  %s: %s" % (text, what)
    for place, here, there in first.difference.worst:
        yield "  %s: %s on one device, %s under the strategy" % (place, here, there)
    if first.guess:
        yield "  perhaps %s" % first.guess


def first_difference(comparison):
    """(step, Difference) of the first step that is different: what differs most; (None, None) where none is."""
    for number, step in enumerate(comparison.steps):
        worst = worst_of(step)
        if worst is not None and worst.verdict == "different":
            gradients = [d for d in step if d.verdict == "different" and d.kind != "variable"]
            return number, max(gradients or [worst], key=lambda d: d.ratio)
    return None, None


def to_dict(comparison):
    """The same as plain data for JSON."""
    return {
        "verdict": comparison.verdict,
        "races": comparison.races,
        "notes": comparison.notes,
        "first": None if comparison.first is None else _first(comparison.first),
        "steps": [[_difference(each) for each in step] for step in comparison.steps],
    }


def _difference(d):
    return {
        "kind": d.kind,
        "name": d.name,
        "largest": _finite(d.largest),
        "unit": d.unit,
        "expected": d.expected,
        "ratio": _finite(d.ratio),
        "verdict": d.verdict,
        "worker": d.worker,
        "copy": d.copy,
        "worst": [[place, _finite(here), _finite(there)] for place, here, there in d.worst],
    }


def _first(first):
    found = {
        key: getattr(first, key) for key in ("step", "part", "operation", "type", "lines", "passes", "where", "guess")
    }
    return dict(found, there=first.there, difference=_difference(first.difference))


def _finite(value):
    """JSON has no numbers for infinity and the like."""
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)


def worst_of(step, kind=None):
    """The Difference of a step, of a kind or of all, that is the most of what rounding explains; None for none."""
    return max((d for d in step if kind in (None, d.kind)), key=lambda d: d.ratio, default=None)


def cell(difference):
    """A difference as a table shows it."""
    if difference is None:
        return "-"
    if not difference.largest:
        return "0"
    return "%.1e (x %.2g)" % (difference.largest, difference.ratio)
