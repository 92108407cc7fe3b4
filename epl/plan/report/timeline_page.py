"""A pipeline schedule as a picture."""

import html

from epl.plan.cost.cost import cut_bytes, stage_costs
from epl.plan.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, schedule
from epl.plan.pipeline.simulate import simulate
from epl.plan.report import web
from epl.plan.text import bytes_text

_KINDS = ((FORWARD, "forward"), (BACKWARD, "backward"), (WEIGHT, "gradients of weights"))
_COLOURS = {FORWARD: "#5b95e0", BACKWARD: web.GREEN, WEIGHT: web.YELLOW}
_WIDTH, _MAX_WIDTH, _LABEL, _ROW, _GAP, _AXIS = 960, 12000, 120, 30, 8, 26  # pixels
_ONE_SCALE = 4  # times as long
_NARROWEST = 18  # pixels of the shortest action, as long as the picture does not get wider than _MAX_WIDTH


def estimated_timeline(graph, costs, stage_of, num_stages, strategy, num_micro_batch, num_chunks=1, link=None):
    """The Timeline that a schedule would have if operations took as long as estimated.

    Args:
      graph: the graph of `costs`.
      costs: what epl.plan.cost.cost.forward_costs returned.
      stage_of: dict of operation to stage.
      num_stages: stages over all devices, a multiple of num_chunks.
      strategy, num_micro_batch: `pipeline.strategy` and `pipeline.num_micro_batch`.
      num_chunks: stages per device.
      link: the epl.cluster.machine.Link between stages; None: that within a worker.
    """
    link = link or costs.machine.worker
    order = schedule(strategy, num_stages // num_chunks, num_micro_batch, num_chunks)
    stages = stage_costs(graph, costs, stage_of, num_stages)
    split = any(action.kind == WEIGHT for actions in order for action in actions)
    durations = {
        FORWARD: [stage.forward_s for stage in stages],
        BACKWARD: [stage.backward_s + (0 if split else stage.weight_s) for stage in stages],
        WEIGHT: [stage.weight_s for stage in stages],
    }
    crossing = cut_bytes(graph, costs, stage_of, num_stages)

    def transfer(begin, end):
        return link.latency_s + crossing[min(begin, end)] / link.bytes_per_s

    return simulate(order, durations, transfer, [stage.activation_bytes for stage in stages])


def part(timeline, stage_names=None, measured=None, notes=()):
    """The picture of a schedule, stages down and time across, as a part of a web page.

    Args:
      timeline: an epl.plan.pipeline.simulate.Timeline, in seconds.
      stage_names: per stage, a name for people.
      measured: another Timeline, of a run, that is drawn below on the same scale; None for none.
      notes: sentences at the end.

    Returns:
      HTML with inline SVG, for epl.plan.report.web.
    """
    names = stage_names or ["stage %d" % i for i in range(timeline.num_stages)]
    tracks = [("Estimated", timeline)] + ([("Measured", measured)] if measured is not None else [])
    used = {slot.action.kind for _, track in tracks for slots in track.slots for slot in slots}
    items = [(_COLOURS[kind], text) for kind, text in _KINDS if kind in used]
    parts = [web.legend(items + [("", "idle (bubble)")]), "<p>Numbers are micro-batches, counted from 0.</p>"]
    scales = _scales([track for _, track in tracks])
    for (heading, track), scale in zip(tracks, scales):
        parts.extend(_track(heading, track, names, scale))
    if len(set(scales)) > 1:
        parts.append("<p>The two pictures have a scale each, as one takes more than %d times as long.</p>" % _ONE_SCALE)
    parts.extend("<p>%s</p>" % html.escape(note) for note in notes)
    return "\n".join(parts)


def _track(heading, timeline, names, scale):
    """The lines of one picture with its table."""
    yield "<h2>%s: %s, bubble %.1f %%</h2>" % (heading, seconds(timeline.makespan), 100 * timeline.bubble)
    yield '<div class="wide">%s</div>' % _picture(heading, timeline, scale)
    yield _table(timeline, names)


def _scales(timelines):
    """Pixels of a second for each picture: the same, unless one takes so much longer that the other would vanish."""
    spans = [timeline.makespan or 1 for timeline in timelines]
    own = [_width_of(timeline) / span for timeline, span in zip(timelines, spans)]
    if max(spans) > _ONE_SCALE * min(spans):
        return own
    return [min(max(own), _MAX_WIDTH / max(spans))] * len(own)


def _width_of(timeline):
    """Pixels of a picture in which the shortest action has room for its number, up to a limit."""
    lengths = [slot.end - slot.start for slots in timeline.slots for slot in slots if slot.end > slot.start]
    if not lengths:
        return _WIDTH
    return min(_MAX_WIDTH, max(_WIDTH, _NARROWEST * (timeline.makespan or 1) / min(lengths)))


def _picture(heading, timeline, scale):
    """Args: `scale`: pixels of a second, the same for all that a page compares."""
    begin = min((slots[0].start for slots in timeline.slots if slots), default=0)
    width = (timeline.makespan or 1) * scale
    height = len(timeline.slots) * (_ROW + _GAP)
    parts = [
        '<svg width="%d" height="%d" role="img" aria-label="%s schedule">'
        % (width + _LABEL + 30, height + _AXIS, heading)
    ]
    for device, slots in enumerate(timeline.slots):
        top = device * (_ROW + _GAP)
        stages = sorted({slot.action.stage for slot in slots})
        parts.append('<text x="0" y="%d" class="label">%s</text>' % (top + _ROW * 0.65, _stages(stages)))
        parts.append('<rect class="idle" x="%d" y="%d" width="%.1f" height="%d"/>' % (_LABEL, top, width, _ROW))
        for slot in slots:
            left, wide = _LABEL + (slot.start - begin) * scale, (slot.end - slot.start) * scale
            parts.append(_box(slot, stages.index(slot.action.stage), left, wide, top, begin))
    parts.extend(_axis(timeline.makespan, scale, height))
    parts.append("</svg>")
    return "\n".join(parts)


def _box(slot, chunk, left, wide, top, begin):
    kind, stage, micro_batch = slot.action
    about = "%s, stage %d, micro-batch %d: %s to %s" % (
        dict(_KINDS)[kind],
        stage,
        micro_batch,
        seconds(slot.start - begin),
        seconds(slot.end - begin),
    )
    text = str(micro_batch)
    box = (
        '<g><title>%s</title><rect class="%s" fill="%s" x="%.2f" y="%d" width="%.2f" height="%d" fill-opacity="%.2f"/>'
    ) % (
        about,
        kind,
        _COLOURS[kind],
        left,
        top,
        wide,
        _ROW,
        max(0.4, 1 - 0.25 * chunk),  # the chunks of a device can be told apart by their shade
    )
    if wide >= 7 * len(text) + 2:
        box += '<text class="number" x="%.2f" y="%d">%s</text>' % (left + wide / 2, top + _ROW * 0.67, text)
    return box + "</g>"


def _stages(stages):
    if not stages:
        return "no stage"
    return ("stage " if len(stages) == 1 else "stages ") + ", ".join(str(stage) for stage in stages)


def _axis(makespan, scale, top):
    """Ticks at round times."""
    yield '<line class="axis" x1="%d" x2="%.1f" y1="%d" y2="%d"/>' % (_LABEL, _LABEL + makespan * scale, top, top)
    step = _round_step(makespan, makespan * scale / 110)
    for i in range(int(makespan / step) + 1 if step else 0):
        x = _LABEL + i * step * scale
        yield '<line class="axis" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (x, x, top, top + 5)
        yield '<text class="tick" x="%.1f" y="%d">%s</text>' % (x, top + 19, seconds(i * step))


def _round_step(span, most):
    """The smallest of 1, 2, 5, 10, 20, … (times any power of ten) that fits at most `most` times into the span."""
    if span <= 0:
        return 0
    step = 1e-12
    while True:
        for factor in (1, 2, 5):
            if span / (step * factor) <= most:
                return step * factor
        step *= 10


def _table(timeline, names):
    """Per stage what it does and keeps; per device how long it idles."""
    device_of = {slot.action.stage: d for d, slots in enumerate(timeline.slots) for slot in slots}
    times = {}
    for slots in timeline.slots:
        for slot in slots:
            count, spent = times.get(slot.action[:2], (0, 0))
            times[slot.action[:2]] = (count + 1, spent + slot.end - slot.start)
    kinds = [(kind, text) for kind, text in _KINDS if any(k == kind for k, _ in times)]
    head = ["stage", "name", "device"] + [text for _, text in kinds]
    head += ["device idle", "most micro-batches alive"]
    head += ["most activations on the device"] if timeline.peak_bytes is not None else []
    rows = []
    for stage in range(timeline.num_stages):
        device = device_of[stage]
        cells = [str(stage), str(names[stage]), str(device)]
        for kind, _ in kinds:
            count, spent = times.get((kind, stage), (0, 0))
            cells.append(seconds(spent / count) if count else "")
        cells += ["%.1f %%" % (100 * timeline.idle[device]), str(timeline.peak_live[stage])]
        cells += [bytes_text(timeline.peak_bytes[device])] if timeline.peak_bytes is not None else []
        rows.append(cells)
    return web.table(head, rows)


def seconds(value):
    """A time for people: "0 s", "12.5 µs", "3 ms"."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * (1 - 1e-9):  # what was added up from parts may be a little less
            return "%.4g %s" % (value / size, unit)
    return "%.3g ns" % (value / 1e-9) if value > 1e-12 else "0 s"  # less is what rounding leaves
