"""What is shown of a Comparison: lines for people, and JSON."""

from epl.verify.comparison import EQUAL

_KINDS = ("loss", "gradient", "variable")


def lines(comparison):
    """Lines of text: a table with a row for each step, and what differs."""
    yield "step  " + "".join("%-34s" % kind for kind in _KINDS) + "verdict"
    for number, step in enumerate(comparison.steps):
        cells = ["%-34s" % _cell(_worst(step, kind)) for kind in _KINDS]
        worst = _worst(step)
        yield "%-6d%s%s" % (number, "".join(cells), worst.verdict if worst else EQUAL)
    yield "A difference is the largest of all elements; (x n) says how many times as large as rounding explains it is."
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
    yield "verdict: %s" % comparison.verdict


def first_difference(comparison):
    """(step, Difference) of the first step that is different: what differs most; (None, None) where none is."""
    for number, step in enumerate(comparison.steps):
        worst = _worst(step)
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
        "steps": [
            [
                {
                    "kind": d.kind,
                    "name": d.name,
                    "largest": _finite(d.largest),
                    "unit": d.unit,
                    "ratio": _finite(d.ratio),
                    "verdict": d.verdict,
                    "worker": d.worker,
                    "worst": [[place, _finite(here), _finite(there)] for place, here, there in d.worst],
                }
                for d in step
            ]
            for step in comparison.steps
        ],
    }


def _finite(value):
    """JSON has no numbers for infinity and the like."""
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)


def _worst(step, kind=None):
    return max((d for d in step if kind in (None, d.kind)), key=lambda d: d.ratio, default=None)


def _cell(difference):
    if difference is None:
        return "-"
    if not difference.largest:
        return "0"
    return "%.1e (x %.2g)" % (difference.largest, difference.ratio)
