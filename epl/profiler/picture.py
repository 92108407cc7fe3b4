"""Pictures of measurements, as SVG: any browser shows them, and nothing has to be installed to draw them."""

import math
from xml.sax.saxutils import escape

IDLE = "idle"  # nothing runs on the device

_COLOURS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    "communication": "#54a24b",
    "apply": "#b279a2",
    "other": "#9d9d9d",
    IDLE: "#e3e3e3",
}
# Text on colours: a white rim keeps it legible.
_RIM = 'paint-order="stroke" stroke="white" stroke-width="3" stroke-linejoin="round"'
_TICKS = 8  # of the time axis, about
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 900, 180, 90, 50, 60
_LINE = 14  # from one line of text to the next
_MIB = 2.0**20


def memory_picture(devices, title):
    """One chart for each device: bytes over time, coloured by phase, with the peak and the variables marked.

    Args:
      devices: dict of name to {"peak", "variables", "points"}, as epl.profiler.memory_profiler_hook makes it.
      title: text above.

    Returns:
      The text of an SVG file.
    """
    height = _TOP + len(devices) * (_HEIGHT + _GAP) + 20
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
        % (_LEFT + _WIDTH + 30, height),
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="%d" y="20" font-size="16">%s</text>' % (_LEFT, escape(title)),
    ]
    for place, (phase, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 120 * place
        parts.append('<rect x="%d" y="28" width="10" height="10" fill="%s"/>' % (x, colour))
        parts.append('<text x="%d" y="38">%s</text>' % (x + 15, phase))
    last = max([each["points"][-1][0] for each in devices.values() if each["points"]] + [1])
    for number, (name, each) in enumerate(devices.items()):
        parts.extend(_chart(name, each, last, _TOP + 20 + number * (_HEIGHT + _GAP)))
    return "\n".join(parts + ["</svg>", ""])


def _chart(name, each, last, top):
    points = each["points"]
    bottom = top + _HEIGHT
    highest = max([each["peak"], 1]) * 1.05

    def x(when):
        return _LEFT + _WIDTH * when / float(last)

    def y(size):
        return bottom - _HEIGHT * size / highest

    for (when, size, phase), following in zip(points, points[1:] + [[last, 0, ""]]):
        width = x(following[0]) - x(when) + 0.5  # under the next one, so that nothing shines through between them
        yield '<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>' % (
            x(when),
            y(size),
            width,
            bottom - y(size),
            _COLOURS.get(phase, _COLOURS["other"]),
        )
    beside = y(each["peak"])  # where the words go; those of the second line stay below those of the first
    for label, size, dash in (("peak", each["peak"], ""), ("variables", each["variables"], "4 3")):
        beside = y(size) if label == "peak" else max(y(size), beside + _LINE)
        yield '<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="black" stroke-dasharray="%s"/>' % (
            _LEFT,
            _LEFT + _WIDTH,
            y(size),
            y(size),
            dash,
        )
        yield '<text x="%d" y="%.1f" text-anchor="end">%.1f MiB</text>' % (_LEFT - 5, beside + 4, size / _MIB)
        yield '<text x="%d" y="%.1f" text-anchor="end" %s>%s</text>' % (_LEFT + _WIDTH - 3, beside - 4, _RIM, label)
    yield '<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="black"/>' % (_LEFT, _LEFT + _WIDTH, bottom, bottom)
    yield '<text x="%d" y="%d" font-size="14">%s</text>' % (_LEFT, top - 5, escape(name))
    for when in ticks(last / 1000.0):
        yield '<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black"/>' % (
            x(when * 1000),
            x(when * 1000),
            bottom,
            bottom + 4,
        )
        yield '<text x="%.1f" y="%d" text-anchor="middle">%g</text>' % (x(when * 1000), bottom + 16, when)
    yield '<text x="%d" y="%d" text-anchor="end">ms</text>' % (_LEFT - 12, bottom + 16)


def ticks(last):
    """Round numbers from 0 to at most `last`, evenly apart: about _TICKS of them."""
    rough = last / float(_TICKS)
    ten = 10.0 ** math.floor(math.log10(rough))
    step = next(ten * factor for factor in (1, 2, 5, 10) if ten * factor >= rough)
    return [round(number * step, 6) for number in range(int(last / step + 1e-9) + 1)]
