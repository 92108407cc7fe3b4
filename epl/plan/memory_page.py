"""A web page that shows the memory of a step: stacked areas, one for each kind, and on touching them the tensors."""

import html
import json

from epl.plan.memory import KINDS

_COLOURS = ("#4c78a8", "#72b7b2", "#9d9d9d", "#f2cf5b", "#e45756", "#f58518", "#54a24b", "#b279a2")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 260, 70, 24
_POINTS = 800
_MIB = 2.0**20
_STYLE = """
body { font-family: sans-serif; margin: 2em; color: #222; background: #fff; }
.legend span { display: inline-block; margin-right: 1em; }
.legend i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.3em; }
.chart { cursor: crosshair; max-width: 100%; height: auto; }
.at { min-height: 13em; font-size: 0.9em; }
.at td { padding-right: 1em; } .at td:first-child { text-align: right; }
line.cursor { stroke: #000; stroke-width: 1; visibility: hidden; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } line.cursor { stroke: #fff; }
  svg text { fill: #ddd; } svg line.axis { stroke: #ddd; } }
"""
_SCRIPT = """
const mib = size => (size / 1048576).toFixed(2) + " MiB";
const text = (row, words) => { const cell = row.insertCell(); cell.textContent = words; };
document.querySelectorAll("section").forEach(section => {
  const data = JSON.parse(section.querySelector("script").textContent);
  const chart = section.querySelector("svg"), cursor = section.querySelector(".cursor");
  const at = section.querySelector(".at");
  const show = index => {
    const point = data.points[index];
    const x = data.left + data.width * index / Math.max(1, data.points.length - 1);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
    at.textContent = "";
    const head = at.appendChild(document.createElement("p"));
    head.textContent = mib(point.total) + " at operation " + (point.place + 1) + ", " + point.name;
    const table = at.appendChild(document.createElement("table"));
    data.tensors.filter(t => t[3] <= point.place && point.place < Math.max(t[4], t[3] + 1)).slice(0, 10).forEach(t => {
      const row = table.insertRow(); text(row, mib(t[2])); text(row, data.kinds[t[1]]); text(row, t[0]);
    });
  };
  chart.addEventListener("mousemove", event => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    const part = Math.min(1, Math.max(0, (x - data.left) / data.width));
    show(Math.round(part * (data.points.length - 1)));
  });
  if (data.points.length) show(data.peak);
});
"""


def memory_page(devices, title):
    """The page.

    Args:
      devices: dict of device to epl.plan.memory.DeviceMemory.
      title: heading.

    Returns:
      HTML with inline SVG, style and script; nothing is loaded from elsewhere.
    """
    legend = "".join(
        '<span><i style="background:%s"></i>%s</span>' % (colour, kind) for kind, colour in zip(KINDS, _COLOURS)
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>%s</title>' % html.escape(title),
        "<style>%s</style></head><body><h1>%s</h1>" % (_STYLE, html.escape(title)),
        '<p class="legend">%s</p>' % legend,
    ]
    for device, memory in devices.items():
        parts.extend(_section(device, memory))
    parts.append("<script>%s</script></body></html>" % _SCRIPT)
    return "\n".join(parts) + "\n"


def _section(device, memory):
    lasting = [memory.lasting.get(kind, 0) for kind in KINDS]
    points = [
        (place, memory.points[place][0], [a + b for a, b in zip(lasting, memory.points[place][1])])
        for place in chosen([sum(point[1]) for point in memory.points])
    ] or [(0, "nothing runs", lasting)]
    peak = max(range(len(points)), key=lambda i: sum(points[i][2]))
    highest = sum(points[peak][2])
    top = max(highest, 1) * 1.05
    yield "<section><h2>%s: peak %.1f MiB</h2>" % (html.escape(device), memory.peak_bytes / _MIB)
    yield '<svg class="chart" viewBox="0 0 %d %d" width="%d">' % (_LEFT + _WIDTH + 10, _HEIGHT + _BOTTOM, _WIDTH)
    below = [0] * len(points)
    for number, colour in enumerate(_COLOURS):
        above = [size + point[2][number] for size, point in zip(below, points)]
        if above != below:
            yield '<polygon fill="%s" points="%s"/>' % (colour, _outline(below, above, top))
        below = above
    y = _HEIGHT * (1 - highest / top)
    yield '<line class="axis" stroke="#222" stroke-dasharray="4 3" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (
        _LEFT,
        _LEFT + _WIDTH,
        y,
        y,
    )
    yield '<text font-size="12" text-anchor="end" x="%d" y="%.1f">peak %.1f</text>' % (_LEFT - 4, y + 4, highest / _MIB)
    yield '<line class="cursor" y1="0" y2="%d" x1="0" x2="0"/>' % _HEIGHT
    yield '<text font-size="12" x="%d" y="%d">operations in the order in which they run; MiB</text></svg>' % (
        _LEFT,
        _HEIGHT + _BOTTOM - 6,
    )
    data = {
        "left": _LEFT,
        "width": _WIDTH,
        "peak": peak,
        "kinds": KINDS,
        "points": [{"place": place, "name": name, "total": sum(sizes)} for place, name, sizes in points],
        "tensors": [[name, KINDS.index(kind), size, made, ended] for name, kind, size, made, ended in memory.tensors],
    }
    # "</" would end the script's element.
    text = json.dumps(data, sort_keys=True).replace("</", "<\\/")
    yield '<div class="at"></div><script type="application/json">%s</script></section>' % text


def _outline(below, above, top):
    last = max(1, len(below) - 1)

    def corner(index, size):
        return "%.1f,%.1f" % (_LEFT + _WIDTH * index / float(last), _HEIGHT * (1 - size / float(top)))

    there = [corner(index, size) for index, size in enumerate(above)]
    return " ".join(there + [corner(index, below[index]) for index in reversed(range(len(below)))])


def chosen(totals):
    """Places of at most _POINTS of a row of totals: of each run of neighbours the highest."""
    width = max(1, -(-len(totals) // _POINTS))
    return [
        max(range(begin, min(begin + width, len(totals))), key=lambda place: totals[place])
        for begin in range(0, len(totals), width)
    ]
