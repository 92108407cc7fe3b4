"""The last steps of all workers on one clock, with the collectives in them."""

import html

from epl.plan.report import web
from epl.plan.text import bytes_text

_WIDTH, _LEFT, _STEP, _LINE, _GAP = 1000, 90, 16, 7, 14
_MOST = 400  # collectives of a worker that are drawn


def part(workers):
    """The HTML of it."""
    shown = [each for each in workers if each["last_steps"]]
    begin = min(each["last_steps"][0]["begin"] for each in shown)
    end = max(
        event["end"] or event["begin"] for each in shown for event in each["last_steps"] + each["last_collectives"]
    )
    scale = (_WIDTH - _LEFT) / max(end - begin, 1e-9)
    drawn, top = [], 0
    for each in shown:
        drawn.append('<text x="0" y="%d">worker %d</text>' % (top + 12, each["worker"]))
        for step in each["last_steps"]:
            drawn.append(_bar(step, begin, end, scale, top, _STEP - 2, web.BLUE, "step %d" % step["number"]))
        rows = []  # until when each line of collectives is taken
        for event in each["last_collectives"][-_MOST:]:
            row = next((i for i, until in enumerate(rows) if until <= event["begin"]), len(rows))
            rows[row : row + 1] = [event["end"] or end]
            words = "%s, %s" % (event["name"] or "collective", bytes_text(event["bytes"]))
            drawn.append(_bar(event, begin, end, scale, top + _STEP + row * _LINE, _LINE - 1, web.ORANGE, words))
        top += _STEP + max(1, len(rows)) * _LINE + _GAP
    drawn.append('<text x="%d" y="%d">0</text>' % (_LEFT, top + 4))
    drawn.append('<text x="%d" y="%d" text-anchor="end">%.1f ms</text>' % (_WIDTH, top + 4, 1e3 * (end - begin)))
    legend = web.legend([(web.BLUE, "a training step"), (web.ORANGE, "a collective: waiting for others, or at work")])
    label = "the last steps of all workers"
    return (
        '%s<div class="wide"><svg viewBox="0 0 %d %d" width="100%%" role="img" aria-label="%s"><g>%s</g></svg></div>'
        % (
            legend,
            _WIDTH,
            top + 10,
            label,
            "".join(drawn),
        )
    )


def _bar(event, begin, end, scale, top, height, colour, words):
    until = end if event["end"] is None else event["end"]
    left, wide = _LEFT + max(0.0, event["begin"] - begin) * scale, max(0.5, (until - event["begin"]) * scale)
    took = "under way" if event["end"] is None else "%.3f ms" % (1e3 * (until - event["begin"]))
    return '<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s: %s</title></rect>' % (
        left,
        top,
        wide,
        height,
        colour,
        html.escape(words),
        took,
    )
