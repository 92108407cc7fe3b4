"""A value over the time of a run, as a picture."""

import html
import math

from epl.plan.report import web
from epl.report.figures import duration

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1000, 180, 70, 24, 8


def curve(name, seconds, values, from_zero):
    """The HTML of a chart.

    Args:
      name: what is drawn, with its unit.
      seconds: where each value stands, rising.
      values: numbers; None or what is not finite leaves a gap.
      from_zero: whether the axis begins at zero.
    """
    good = [value for value in values if value is not None and math.isfinite(value)]
    if not good:
        return ""
    low, high = (0.0 if from_zero else min(good)), max(good)
    if high <= low:
        low, high = (low - 0.5 * abs(low) - 0.5, high + 0.5 * abs(high) + 0.5) if not from_zero else (0.0, high or 1.0)
    begin, end = seconds[0], max(seconds[-1], seconds[0] + 1e-9)

    def x(when):
        return _LEFT + (when - begin) / (end - begin) * (_WIDTH - _LEFT - 8)

    def y(value):
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    lines, line = [], []
    for when, value in zip(seconds, values):
        if value is None or not math.isfinite(value):
            lines, line = lines + [line], []
        else:
            line.append("%.1f,%.1f" % (x(when), y(value)))
    drawn = [
        '<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>' % (web.BLUE, " ".join(points))
        for points in lines + [line]
        if points
    ]
    for value in (low, (low + high) / 2, high):
        at = y(value)
        drawn.append('<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>' % (_LEFT, at, _WIDTH - 8, at))
        drawn.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (_LEFT - 8, at + 4, "%.4g" % value))
    for when in (begin, (begin + end) / 2, end):
        anchor = {begin: "start", end: "end"}.get(when, "middle")
        drawn.append(
            '<text x="%.1f" y="%d" text-anchor="%s">%s</text>' % (x(when), _HEIGHT - 6, anchor, duration(when))
        )
    return (
        '<h3>%s</h3><div class="wide"><svg viewBox="0 0 %d %d" width="100%%" role="img" aria-label="%s">%s</svg></div>'
        % (
            html.escape(name),
            _WIDTH,
            _HEIGHT,
            html.escape(name),
            "".join(drawn),
        )
    )
