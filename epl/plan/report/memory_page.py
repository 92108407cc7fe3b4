"""A web page that shows the memory of a step: stacked areas, one for each kind, and on touching them the tensors.

What is estimated and what was measured are drawn alike: over the operations in their order, or over time.
"""

import html
import json
import math

from epl.plan.cost.device_memory import KINDS
from epl.plan.report import web
from epl.plan.text import bytes_text

_COLOURS = (web.BLUE, web.TEAL, web.GREY, web.YELLOW, web.RED, web.ORANGE, web.GREEN, web.PURPLE)  # of KINDS
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 940, 260, 100, 24
_FONT = 12  # pixels
_POINTS = 800
_UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))
_TALLER = 3  # times the highest peak, up to which the scale is drawn to show what a device has
STYLE = """
.chart { cursor: crosshair; width: 100%; min-width: 640px; max-width: 1050px; height: auto; }
.at { min-height: 13em; font-size: .9em; overflow-x: auto; }
.at td:first-child { text-align: right; }
svg line.cursor { stroke: var(--text); stroke-width: 1; visibility: hidden; }
"""
SCRIPT = """
const units = [["GiB", 1073741824], ["MiB", 1048576], ["KiB", 1024]];
const bytes = size => {
  const unit = units.find(each => size >= each[1]);
  return unit ? (size / unit[1]).toFixed(1) + " " + unit[0] : size + " bytes";
};
const text = (row, words) => { const cell = row.insertCell(); cell.textContent = words; };
document.querySelectorAll("section.memory").forEach(section => {
  const data = JSON.parse(section.querySelector("script").textContent);
  const chart = section.querySelector("svg"), cursor = section.querySelector(".cursor");
  const at = section.querySelector(".at");
  const show = index => {
    const point = data.points[index];
    const x = data.left + data.width * point.at / data.end;
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    at.textContent = "";
    const head = at.appendChild(document.createElement("p"));
    const when = data.timed ? (point.at / 1000).toFixed(3) + " ms" : "operation " + (point.place + 1);
    head.textContent = bytes(point.total) + " at " + when + ", " + point.name;
    const table = at.appendChild(document.createElement("table"));
    data.tensors.filter(t => t[3] <= point.place && point.place < Math.max(t[4], t[3] + 1)).slice(0, 10).forEach(t => {
      const row = table.insertRow(); text(row, bytes(t[2])); text(row, data.kinds[t[1]]); text(row, t[0]);
    });
  };
  chart.addEventListener("mousemove", event => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    const when = data.end * (x - data.left) / data.width;
    let index = data.points.length - 1;
    while (index > 0 && data.points[index].at > when) index--;
    show(index);
  });
  if (data.points.length) show(data.peak);
});
"""


def drawn(memory):
    """What the page shows of an epl.plan.cost.device_memory.DeviceMemory, as what json takes, however long the step is.

    Returns:
      dict of "peak_bytes"; "timed", whether "at" is microseconds or an operation's place; "end" of the step in these;
      "points", dicts of "place", "at", "name", "sizes" in bytes by KINDS and "total"; "peak", the place in "points";
      "tensors", lists of name, number of kind, bytes, first and last place.
    """
    lasting = [memory.lasting.get(kind, 0) for kind in KINDS]
    points, times = memory.points or (("nothing runs", (0,) * len(KINDS)),), memory.times
    shown = []
    for place in chosen([sum(sizes) for _, sizes in points]):
        name, live = points[place]
        sizes = [size + there for size, there in zip(lasting, live)]
        at = times[place] if times else place
        shown.append({"place": place, "at": at, "name": name, "sizes": sizes, "total": sum(sizes)})
    return {
        "peak_bytes": memory.peak_bytes,
        "timed": bool(times),
        "end": max(1, times[-1] if times else len(points)),
        "points": shown,
        "peak": max(range(len(shown)), key=lambda index: shown[index]["total"]),
        "tensors": [[name, KINDS.index(kind), size, made, ended] for name, kind, size, made, ended in memory.tensors],
    }


def memory_page(devices, title, capacity=None):
    """The page.

    Args:
      devices: dict of device to a dict of caption ("estimated", "measured") to what `drawn` gives. All charts have one
        scale of bytes.
      title: heading.
      capacity: bytes that each device has; None where that is not known. A line shows them, unless they are so many
        that little would be seen of the step.

    Returns:
      HTML with inline SVG, style and script; nothing is loaded from elsewhere.
    """
    return web.document(title, part(devices, capacity), SCRIPT, STYLE)


def part(devices, capacity=None):
    """What `memory_page` shows below its heading, for a page that shows more; it needs SCRIPT and STYLE."""
    charts = [each for charts in devices.values() for each in charts.values()]
    points = [point for each in charts for point in each["points"]]
    used = [any(point["sizes"][number] for point in points) for number in range(len(KINDS))]
    highest = max([1] + [each["points"][each["peak"]]["total"] for each in charts])
    parts = [web.legend([(colour, kind) for kind, colour, there in zip(KINDS, _COLOURS, used) if there])]
    drawn_capacity = capacity if capacity is not None and capacity <= _TALLER * highest else None
    if capacity is not None and drawn_capacity is None:
        parts.append("<p>Each device has %s, which is above the charts.</p>" % bytes_text(capacity))
    top = 1.05 * max(highest, drawn_capacity or 0)
    for device, charts in devices.items():
        parts.append("<h2>%s</h2>" % html.escape(device))
        for caption, each in charts.items():
            parts.extend(_section(caption, each, top, drawn_capacity))
    return "\n".join(parts)


def _section(caption, data, top, capacity):
    points, highest = data["points"], data["points"][data["peak"]]["total"]
    unit, factor = next(each for each in _UNITS if top >= each[1])
    yield '<section class="memory"><h3>%s: peak %s</h3>' % (html.escape(caption), bytes_text(data["peak_bytes"]))
    yield '<div class="wide"><svg class="chart" viewBox="0 0 %d %d">' % (_LEFT + _WIDTH + 10, _HEIGHT + _BOTTOM)
    below = [0] * len(points)
    for number, colour in enumerate(_COLOURS):
        above = [size + point["sizes"][number] for size, point in zip(below, points)]
        if above != below:
            yield '<polygon fill="%s" points="%s"/>' % (colour, _outline(data, below, above, top))
        below = above
    y = _HEIGHT * (1 - highest / top)
    for size in scale(top / factor):
        at = _HEIGHT * (1 - size * factor / top)
        yield _line("grid", at)
        if abs(at - y) > _FONT:
            text = "%g %s" % (size, unit) if size else "0"
            yield '<text text-anchor="end" x="%d" y="%.1f">%s</text>' % (_LEFT - 4, at + 4, text)
    yield _line("axis", y, dashed=True)
    yield '<text text-anchor="end" x="%d" y="%.1f">peak %s</text>' % (_LEFT - 4, y + 4, bytes_text(highest))
    if capacity is not None:
        at = _HEIGHT * (1 - capacity / top)
        yield _line("axis", at)
        yield '<text text-anchor="end" x="%d" y="%.1f">the device has %s</text>' % (
            (_LEFT + _WIDTH, at + _FONT + 2, bytes_text(capacity))
        )
    yield '<line class="cursor" y1="0" y2="%d" x1="0" x2="0"/>' % _HEIGHT
    axis = (
        "time, %.4g ms in all" % (data["end"] / 1000.0)
        if data["timed"]
        else "operations in the order in which they run"
    )
    yield '<text x="%d" y="%d">%s</text></svg></div>' % (_LEFT, _HEIGHT + _BOTTOM - 6, axis)
    told = {key: value for key, value in data.items() if key != "points"}
    told["points"] = [{key: point[key] for key in ("place", "at", "name", "total")} for point in points]
    told.update(left=_LEFT, width=_WIDTH, kinds=KINDS)
    # "</" would end the script's element.
    text = json.dumps(told, sort_keys=True).replace("</", "<\\/")
    yield '<div class="at"></div><script type="application/json">%s</script></section>' % text


def _line(kind, at, dashed=False):
    return '<line class="%s"%s x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (
        (kind, ' stroke-dasharray="4 3"' if dashed else "", _LEFT, _LEFT + _WIDTH, at, at)
    )


def scale(top):
    """The numbers to write beside an axis from 0 to `top`, which is above 0: three to ten round ones."""
    step = 10.0 ** math.floor(math.log10(top))
    step = next(step / part for part in (1, 2, 5, 10) if top * part / step >= 3)
    return [number * step for number in range(int(top / step) + 1)]


def _outline(data, below, above, top):
    """The corners of an area: what is there stays until the next point."""
    starts = [point["at"] for point in data["points"]]

    def corner(when, size):
        return "%.1f,%.1f" % (_LEFT + _WIDTH * when / float(data["end"]), _HEIGHT * (1 - size / float(top)))

    def edge(sizes):
        ends = starts[1:] + [data["end"]]
        return [corner(when, size) for start, end, size in zip(starts, ends, sizes) for when in (start, end)]

    return " ".join(edge(above) + edge(below)[::-1])


def chosen(totals):
    """Places of at most _POINTS of a row of totals: of each run of neighbours the highest."""
    width = max(1, -(-len(totals) // _POINTS))
    return [
        max(range(begin, min(begin + width, len(totals))), key=lambda place: totals[place])
        for begin in range(0, len(totals), width)
    ]
