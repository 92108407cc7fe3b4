"""What a search has found, for people: a table, facts for JSON, a file of keys, and a picture of time over memory."""

import html
import math
from dataclasses import asdict

import yaml

from epl.plan.report import web
from epl.plan.report.estimate_table import estimate_facts
from epl.plan.report.timeline_page import seconds
from epl.plan.text import bytes_text, columns
from epl.search.search import values_of

_HEAD = ("", "layout", "options", "a step", "computing", "exchanges", "bubble", "memory", "why not")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 420, 90, 46, 24
_COLOURS = ((web.GREEN, "chosen"), (web.BLUE, "no other is faster in less memory"), (web.GREY, "others"))
_TOO_LARGE = (web.RED, "does not fit")


def table(found, most=None):
    """A Found as text.

    Args:
      found: an epl.search.search.Found.
      most: plans to list; None: all that were made.
    """
    rows = "" if found.total_rows is None else " of %d rows" % found.total_rows
    limit = "" if found.limit_bytes is None else ", %s a device" % bytes_text(found.limit_bytes)
    lines = [
        "Plans for %s%s, a step%s; layout is data x stage x shard. %d were looked at, %d of them made:"
        % (found.machine, limit, rows, found.num_choices, len(found.plans))
    ]
    lines += columns([_HEAD] + [_cells(found, number) for number in range(len(found.plans[:most]))])
    if len(found.plans[:most]) < len(found.plans):
        lines.append("  … and %d others (--rows)" % (len(found.plans) - most))
    return "\n".join(lines)


def facts(found, config):
    """The same as a dict that can be saved as JSON."""
    plans = [
        {
            "layout": plan.choice.layout,
            "choice": asdict(plan.choice),
            "values": values_of(plan, config),
            "estimate": estimate_facts(plan.estimate) if plan.estimate is not None else None,
            "why_not": found.why_not(plan),
        }
        for plan in found.plans
    ]
    return {
        "machine": found.machine,
        "limit_bytes": found.limit_bytes,
        "rows": found.total_rows,
        "choices": found.num_choices,
        "plans": plans,
    }


def run_file(found, config, command):
    """The text of a file for `epl-launch --config` that has the keys of the best plan, and those that are set anyway.

    Args:
      found, config: the Found, and the epl.Config for which it was looked for.
      command: how the job is started, for the first line.
    """
    own = config.to_dict()
    values = {name: own[name] for name in sorted(config.given)}
    values.update(values_of(found.best, config))
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    step = seconds(found.best.estimate.step_s)
    head = "# %s\n# %s: %s, %s a step by estimate for %s.\n" % (
        command,
        found.best.choice.layout,
        found.best.choice.options,
        step,
        found.machine,
    )
    return head + (yaml.safe_dump(values, default_flow_style=False) if values else "{}\n")


def page(found, title):
    """A web page: plans as points, seconds a step over bytes of the fullest device, and their table."""
    made = [plan for plan in found.plans if plan.refused is None]
    kinds = _COLOURS + ((_TOO_LARGE,) if not all(map(found.fits, made)) else ())
    rows = [_cells(found, number) for number in range(len(found.plans))]
    body = [web.legend(kinds), '<div class="wide">%s</div>' % _picture(found, made), web.table(_HEAD, rows)]
    return web.document(title, "\n".join(body))


def _cells(found, number):
    plan = found.plans[number]
    place = str(number + 1)
    if plan.refused is not None:
        return (place, plan.choice.layout, plan.choice.options, "-", "-", "-", "-", "-", found.why_not(plan))
    cost = plan.estimate
    stage = cost.slowest
    times = (cost.step_s, stage.compute_s, stage.communication_s, stage.bubble_s)
    shown = tuple(seconds(float("%.4g" % each)) for each in times)
    return (place, plan.choice.layout, plan.choice.options) + shown + (bytes_text(plan.peak_bytes), found.why_not(plan))


def _picture(found, made):
    """SVG. Both axes begin at zero, and go to what is largest."""
    per = _units(found)
    most_s = max(plan.row_s for plan in made) * per * 1.05
    most_bytes = max([plan.peak_bytes for plan in made]) * 1.05
    wide, high = _WIDTH - _LEFT - 20, _HEIGHT - _BOTTOM - _TOP
    floor = _TOP + high

    def across(num_bytes):
        return _LEFT + wide * num_bytes / most_bytes

    def up(row_s):
        return floor - high * row_s * per / most_s

    parts = ['<svg width="%d" height="%d" role="img" aria-label="time over memory">' % (_WIDTH, _HEIGHT)]
    for number in _ticks(most_s):
        y = floor - high * number / most_s
        parts.append('<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>' % (_LEFT, y, _LEFT + wide, y))
        parts.append('<text x="6" y="%.1f">%s</text>' % (y + 4, html.escape(seconds(number))))
    for number in _ticks(most_bytes):
        x = across(number)
        parts.append('<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>' % (x, _TOP, x, floor))
        parts.append('<text class="tick" x="%.1f" y="%d">%s</text>' % (x, floor + 18, bytes_text(int(number))))
    parts.append('<path class="axis" fill="none" d="M%d %d V%d H%d"/>' % (_LEFT, _TOP, floor, _LEFT + wide))
    below = _LEFT + wide // 2, floor + 38
    parts.append('<text class="tick" x="%d" y="%d">bytes of the fullest device</text>' % below)
    parts.append('<text x="6" y="14">seconds a step</text>')
    if found.limit_bytes is not None and found.limit_bytes < most_bytes:
        x = across(found.limit_bytes)
        parts.append(
            '<line class="axis" stroke-dasharray="4 3" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>' % (x, _TOP, x, floor)
        )
    front = [plan for plan in found.pareto if found.fits(plan)]
    if len(front) > 1:
        line = " ".join("%.1f,%.1f" % (across(plan.peak_bytes), up(plan.row_s)) for plan in front)
        parts.append('<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>' % (web.BLUE, line))
    for plan in reversed(made):
        colour = _colour(found, plan, front)
        x, y = across(plan.peak_bytes), up(plan.row_s)
        number = found.plans.index(plan) + 1
        told = "%d: %s, %s" % (number, plan.choice.layout, plan.choice.options)
        parts.append('<g><circle cx="%.1f" cy="%.1f" r="6" fill="%s"/>' % (x, y, colour))
        parts.append("<title>%s</title>" % html.escape(told))
        parts.append('<text class="label-on" x="%.1f" y="%.1f">%d</text></g>' % (x + 8, y - 6, number))
    return "\n".join(parts + ["</svg>"])


def _units(found):
    """Rows of a step, or micro-batches of a copy where these are not known."""
    best = found.best
    return best.estimate.step_s / best.row_s


def _colour(found, plan, front):
    if plan is found.best:
        return web.GREEN
    if not found.fits(plan):
        return web.RED
    return web.BLUE if any(plan is each for each in front) else web.GREY


def _ticks(most):
    """Some four round numbers from 0 up to `most`."""
    step = 10 ** math.floor(math.log10(most / 4)) if most > 0 else 1.0
    step *= next(each for each in (1, 2, 5, 10) if most / (step * each) <= 5)
    return [step * number for number in range(int(most / step) + 1)]
