"""The web page of a Comparison: the table of steps, the first operation that differs, every tensor of every step."""

import html

from epl.plan.report import web
from epl.verify import report
from epl.verify.comparison import DIFFERENT, EQUAL

_STYLE = "td.different { color: %s; font-weight: 600; }" % web.RED


def page(comparison, title):
    """The HTML of the page.

    Args:
      comparison: the Comparison.
      title: what was compared, as plain text.
    """
    parts = [("Verdict", _verdict(comparison)), ("Steps", _steps(comparison))]
    if comparison.first is not None:
        parts.insert(1, ("First operation", _first(comparison.first)))
    parts.append(("Tensors", _tensors(comparison)))
    return web.report("%s against one device" % title, parts, style=_STYLE)


def _verdict(comparison):
    lines = ["<p><b>%s</b></p>" % html.escape(comparison.verdict)]
    told = ["not compared, as it differs between two runs on one device: %s" % race for race in comparison.races]
    lines += ["<p>%s</p>" % html.escape(text) for text in told + list(comparison.notes)]
    return "\n".join(lines)


def _steps(comparison):
    kinds = report.KINDS
    rows = []
    for number, step in enumerate(comparison.steps):
        worst = report.worst_of(step)
        cells = [report.cell(report.worst_of(step, kind)) for kind in kinds]
        rows.append([str(number)] + cells + [worst.verdict if worst else EQUAL])
    return web.table(("step",) + kinds + ("verdict",), rows) + "<p>%s</p>" % html.escape(report.UNITS)


def _first(first):
    rows = [
        ("operation", "%s (%s)" % (first.operation, first.type)),
        ("where", "%s of step %d, %s" % (first.part, first.step, first.where)),
        ("made at", "; ".join(first.lines)),
        ("copies and parts by", ", ".join(first.passes)),
    ]
    rows += [("under the strategy", "%s: %s" % each) for each in first.there]
    rows.append(("perhaps", first.guess))
    values = [(str(place), str(here), str(there)) for place, here, there in first.difference.worst]
    table = web.table(("", ""), [row for row in rows if row[1]])
    return table + web.table(("element", "one device", "under the strategy"), values)


def _tensors(comparison):
    """Of each tensor the step in which it differs most, the worst first."""
    largest = {}
    for number, step in enumerate(comparison.steps):
        for each in step:
            if each.name not in largest or each.ratio > largest[each.name][1].ratio:
                largest[each.name] = number, each
    rows = []
    for number, each in sorted(largest.values(), key=lambda pair: -pair[1].ratio):
        mark = ' class="different"' if each.verdict == DIFFERENT else ""
        cells = (each.name, str(number), "%.2e" % each.largest, "%.2e" % each.unit, "%.3g" % each.ratio)
        rows.append("<tr>%s</tr>" % "".join("<td%s>%s</td>" % (mark, html.escape(cell)) for cell in cells))
    head = "".join("<th>%s</th>" % text for text in ("tensor", "step", "largest", "explained", "times"))
    return '<div class="wide"><table><tr>%s</tr>%s</table></div>' % (head, "\n".join(rows))
