"""A web page that shows what is divided over devices: the model as blocks, what travels between them as arcs."""

import collections
import html
import re

from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.facts.names import PREFIX
from epl.plan.report.exchanges_table import why
from epl.plan.text import bytes_text

_GRADIENT = re.compile(r"^(?:.*/)?gradients(?:_\d+)?/")
_MOST_BLOCKS = 40
_LEFT, _BAR, _ROW, _GAP, _LABELS = 230, 260, 22, 10, 120  # pixels
_LANE, _LANES, _TOP = 34, 12, 10
_COLOURS = collections.OrderedDict(
    [("whole", "#9d9d9d"), ("0", "#4c78a8"), ("1", "#54a24b"), ("2", "#72b7b2"), ("further", "#b279a2")]
    + [("partial", "#f58518"), ("routed", "#eeca3b"), ("by row", "#d67195")]
)
_WORDS = collections.OrderedDict(
    [("whole", "whole on each device"), ("0", "parts of dimension 0"), ("1", "parts of dimension 1")]
    + [("2", "parts of dimension 2"), ("further", "parts of a further dimension"), ("partial", "sums to be added up")]
    + [("routed", "rows where their part of a table is"), ("by row", "entries of a device's rows of the batch")]
)
_PHASES = {tags.FORWARD: "#e45756", tags.BACKWARD: "#7a5cc4", tags.APPLY: "#b8860b", tags.SAVE: "#777777"}
_STYLE = """
body { font-family: sans-serif; margin: 2em; color: #222; background: #fff; }
.legend span { display: inline-block; margin-right: 1em; }
.legend i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.3em; }
.wide { overflow-x: auto; }
td, th { text-align: left; padding: 0.2em 1em 0.2em 0; vertical-align: top; }
td:not(:last-child), th { white-space: nowrap; }
svg text { font-size: 12px; fill: #222; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } svg text { fill: #ddd; } }
"""


def placements_page(program, exchanges, title):
    """The page.

    Args:
      program: a compiled epl.program.program.Program whose `partitioned` is not None.
      exchanges: its epl.plan.exchange.exchanges.Exchanges.
      title: heading.

    Returns:
      HTML with inline SVG and style; nothing is loaded from elsewhere.
    """
    blocks = blocks_of(program)
    legend = [(_COLOURS[kind], words) for kind, words in _WORDS.items()]
    legend += [(colour, "exchanged, " + phase) for phase, colour in _PHASES.items()]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>%s</title>' % html.escape(title),
        "<style>%s</style></head><body><h1>%s</h1>" % (_STYLE, html.escape(title)),
        '<p class="legend">%s</p>'
        % "".join('<span><i style="background:%s"></i>%s</span>' % (colour, words) for colour, words in legend),
        '<div class="wide">%s</div>' % _picture(program, blocks, exchanges),
        _table(program, exchanges),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def scope_of(name, depth):
    """The first parts of a node's name; of a gradient those of the operation that it belongs to."""
    parts = _GRADIENT.sub("", name).split("/")
    if _GRADIENT.match(name):
        ends = [place for place, part in enumerate(parts) if part.endswith("_grad")]
        if ends:
            parts = parts[: ends[0]] + [parts[ends[0]][: -len("_grad")]]
    return "/".join(parts[:depth])


class Blocks(object):
    """The model in blocks.

    Attributes:
      depth: how many parts of a name make a block's.
      kinds: name of a block to a Counter of where its tensors lie, in the order of the model.
    """

    def __init__(self, depth, kinds):
        self.depth, self.kinds = depth, kinds
        self._place = {name: place for place, name in enumerate(kinds)}

    def place(self, name):
        """The place of the block of a node; None where the model has none for it."""
        return self._place.get(scope_of(name, self.depth))


def blocks_of(program):
    """The Blocks of a training step's forward pass: as deep in scopes as at most 40 of them allow."""
    done = program.partitioned
    graph = program.source.graph
    kinds = collections.defaultdict(list)
    for tensor, placement in done.placements.items():
        kinds[node_of(tensor)].append(_kind(placement))
    step = graph.ancestors(program.plan.analysis.writes)
    nodes = [name for name in graph.nodes if name in step and _is_shown(graph.nodes[name])]
    nodes.sort(key=graph.creation_index.__getitem__)
    found = Blocks(1, {})
    for depth in (1, 2, 3):
        counts = collections.OrderedDict()
        for name in nodes:
            counts.setdefault(scope_of(name, depth), collections.Counter()).update(kinds.get(name, ["whole"]))
        if depth > 1 and len(counts) > _MOST_BLOCKS:
            break
        found = Blocks(depth, counts)
    return found


def _is_shown(node):
    made_by_a_pass = node.name.startswith(PREFIX + "_")
    return node.op not in ("Const", "NoOp") and not made_by_a_pass and tags.phase(node) == tags.FORWARD


def _kind(placement):
    if placement.kind != "sharded":
        return placement.kind
    return str(placement.dim) if str(placement.dim) in _COLOURS else "further"


def _picture(program, blocks, exchanges):
    width = _LEFT + _BAR + _LANES * _LANE + _LABELS
    height = _TOP + max(1, len(blocks.kinds)) * (_ROW + _GAP)
    parts = ['<svg width="%d" height="%d" role="img" aria-label="placements">' % (width, height)]
    for place, (name, counts) in enumerate(blocks.kinds.items()):
        parts.extend(_block(name, counts, _TOP + place * (_ROW + _GAP)))
    for number, (ends, rows) in enumerate(_arcs(blocks, exchanges).items()):
        parts.append(_arc(program, ends, rows, number % _LANES))
    return "\n".join(parts + ["</svg>"])


def _block(name, counts, top):
    total, left = float(sum(counts.values())), float(_LEFT)
    about = ", ".join("%d tensors: %s" % (counts[kind], words) for kind, words in _WORDS.items() if counts[kind])
    shown = name if len(name) <= 30 else name[:14] + "…" + name[-15:]
    yield '<g class="block"><title>%s: %s</title>' % (html.escape(name), about)
    yield '<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (_LEFT - 8, top + _ROW * 0.65, html.escape(shown))
    for kind, colour in _COLOURS.items():
        wide = _BAR * counts[kind] / total
        if wide:
            yield '<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/>' % (left, top, wide, _ROW, colour)
        left += wide
    yield "</g>"


def _arcs(blocks, exchanges):
    """(place of the block that has a tensor, place of that which wants it, phase) to the Exchanges between them."""
    found = collections.OrderedDict()
    for each in exchanges:
        begin, end = blocks.place(node_of(each.tensor)), blocks.place(each.wanted_by or node_of(each.tensor))
        begin, end = end if begin is None else begin, begin if end is None else end
        if begin is not None:
            found.setdefault((begin, end, each.phase), []).append(each)
    return found


def _arc(program, ends, rows, lane):
    begin, end, phase = ends
    middle = [_TOP + place * (_ROW + _GAP) + _ROW / 2.0 for place in (begin, end)]
    if begin == end:
        middle = [middle[0] - 8, middle[0] + 8]
    x, far = _LEFT + _BAR, _LEFT + _BAR + (lane + 1) * _LANE
    size = sum(each.num_bytes * each.times for each in rows)
    about = "\n".join("%s, %s: %s" % (e.operation, bytes_text(e.num_bytes), why(program, e)) for e in rows)
    return (
        '<g class="arc"><title>%s</title><path fill="none" stroke="%s" stroke-width="2" '
        'd="M%d %.1f C%d %.1f %d %.1f %d %.1f"/><circle cx="%d" cy="%.1f" r="4" fill="%s"/>'
        '<text x="%d" y="%.1f">%s</text></g>'
        % (
            (html.escape(about), _PHASES[phase], x, middle[0], far, middle[0], far, middle[1], x, middle[1])
            + (x, middle[1], _PHASES[phase], x + (lane + 1) * _LANE * 0.75 + 4, sum(middle) / 2 + 4)
            + (bytes_text(int(size)),)
        )
    )


def _table(program, exchanges):
    rows = ["<tr><th>phase</th><th>exchange</th><th>axis</th><th>of each device</th><th>times</th><th>why</th></tr>"]
    for each in exchanges:
        axis = "%s (%d)" % (each.axis, each.devices)
        cells = each.phase, each.operation, axis, bytes_text(each.num_bytes), "%g" % each.times, why(program, each)
        rows.append("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(text) for text in cells))
    return '<div class="wide"><table>%s</table></div>' % "\n".join(rows)
