"""A web page that shows what is divided over devices: the model as blocks, what travels between them as arcs."""

import collections
import html
import math
import re

from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.facts.names import PREFIX
from epl.plan.report import web
from epl.plan.report.exchanges_table import why
from epl.plan.text import bytes_text

_GRADIENT = re.compile(r"^(?:.*/)?gradients(?:_\d+)?/")
_MOST_BLOCKS = 40
_LEFT, _BAR, _ROW, _GAP = 230, 260, 22, 10  # pixels
_LANE, _LANES, _TOP = 34, 12, 10
_LETTER, _LINE = 6.5, 14  # pixels of a letter, and from one line of text to the next
_THINNEST, _WIDEST = 1.5, 7.0  # pixels of an arc
_COLOURS = collections.OrderedDict(
    [("whole", web.GREY), ("0", web.BLUE), ("1", web.GREEN), ("2", web.TEAL), ("further", web.PURPLE)]
    + [("partial", web.ORANGE), ("routed", web.YELLOW), ("ragged", web.PINK)]
)
_WORDS = collections.OrderedDict(
    [("whole", "whole on each device"), ("0", "parts of dimension 0"), ("1", "parts of dimension 1")]
    + [("2", "parts of dimension 2"), ("further", "parts of a further dimension"), ("partial", "sums to be added up")]
    + [("routed", "rows where their part of a table is"), ("ragged", "entries of a device's rows of the batch")]
)
_PHASES = {tags.FORWARD: web.RED, tags.BACKWARD: "#7a5cc4", tags.APPLY: "#b8860b", tags.SAVE: "#777777"}


def placements_page(program, exchanges, title):
    """The page.

    Args:
      program: a compiled epl.program.program.Program whose `partitioned` is not None.
      exchanges: its epl.plan.exchange.exchanges.Exchanges.
      title: heading.

    Returns:
      HTML with inline SVG and style; nothing is loaded from elsewhere.
    """
    return web.document(title, part(program, exchanges))


def part(program, exchanges):
    """What `placements_page` shows below its heading, for a page that shows more."""
    blocks = blocks_of(program)
    kinds = {kind for counts in blocks.kinds.values() for kind in counts}
    arcs = _arcs(blocks, exchanges)
    phases = {phase for _, _, phase in arcs}
    legend = [(_COLOURS[kind], words) for kind, words in _WORDS.items() if kind in kinds]
    legend += [(colour, "exchanged, " + phase) for phase, colour in _PHASES.items() if phase in phases]
    return "\n".join(
        [
            web.legend(legend),
            "<p>A block's colours are its tensors, by number. Arcs lead from what is exchanged to what wants it; the "
            "wider, the more bytes.</p>",
            '<div class="wide">%s</div>' % _picture(program, blocks, arcs),
            exchanges_part(program, exchanges),
        ]
    )


def exchanges_part(program, exchanges):
    """What each device exchanges in a step, as a table."""
    rows = []
    for each in exchanges:
        axis = "%s (%d)" % (each.axis, each.devices)
        rows.append(
            (each.phase, each.operation, axis, bytes_text(each.num_bytes), "%g" % each.times, why(program, each))
        )
    return web.table(("phase", "exchange", "axis", "of each device", "times", "why"), rows)


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


def _picture(program, blocks, arcs):
    height = _TOP + max(1, len(blocks.kinds)) * (_ROW + _GAP)
    most = max([1] + [_bytes_of(rows) for rows in arcs.values()])
    drawn, labels = [], []
    for ends, rows in arcs.items():
        label = _room_for(ends, bytes_text(_bytes_of(rows)), labels)
        labels.append(label)
        drawn.append(_arc(program, ends, rows, label, most))
    width = max([_LEFT + _BAR] + [label.x + label.wide for label in labels]) + 10
    parts = ['<svg width="%d" height="%d" role="img" aria-label="placements">' % (width, height)]
    for place, (name, counts) in enumerate(blocks.kinds.items()):
        parts.extend(_block(name, counts, _TOP + place * (_ROW + _GAP)))
    texts = ['<text class="label-on" x="%d" y="%.1f">%s</text>' % (each.x, each.y, each.text) for each in labels]
    return "\n".join(parts + drawn + texts + ["</svg>"])


# Where an arc's text stands, and how wide it is, in pixels; the lane is how far out the arc goes.
_Label = collections.namedtuple("_Label", "text x y wide lane")


def _room_for(ends, text, others):
    """The _Label of an arc: in the first lane in which it covers none of the others, or else in the last."""
    y, wide = sum(_middles(*ends[:2])) / 2 + 4, _LETTER * len(text)
    for lane in range(_LANES):
        label = _Label(text, _LEFT + _BAR + (lane + 1) * _LANE * 0.75 + 6, y, wide, lane)
        if not any(
            abs(y - other.y) < _LINE and label.x < other.x + other.wide + 4 and other.x < label.x + wide + 4
            for other in others
        ):
            break
    return label


def _middles(begin, end):
    """Where an arc begins and ends, in pixels from the top."""
    middle = [_TOP + place * (_ROW + _GAP) + _ROW / 2.0 for place in (begin, end)]
    return middle if begin != end else [middle[0] - 8, middle[0] + 8]


def _bytes_of(rows):
    return int(sum(each.num_bytes * each.times for each in rows))


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


def _arc(program, ends, rows, label, most):
    (first, last), phase = _middles(*ends[:2]), ends[2]
    x, far = _LEFT + _BAR, _LEFT + _BAR + (label.lane + 1) * _LANE
    wide = _THINNEST + (_WIDEST - _THINNEST) * math.log1p(_bytes_of(rows)) / math.log1p(most)
    about = "\n".join("%s, %s: %s" % (e.operation, bytes_text(e.num_bytes), why(program, e)) for e in rows)
    return (
        '<g class="arc"><title>%s</title><path fill="none" stroke="%s" stroke-width="%.1f" stroke-opacity="0.8" '
        'd="M%d %.1f C%d %.1f %d %.1f %d %.1f"/><circle cx="%d" cy="%.1f" r="4" fill="%s"/>'
        "</g>"
        % (
            (html.escape(about), _PHASES[phase], wide, x, first, far, first, far, last, x, last)
            + (x, last, _PHASES[phase])
        )
    )
