"""Where the time of a training step goes, by device: a bar each, and the figures."""

from epl.plan.report import web
from epl.plan.report.timeline_page import seconds
from epl.report.stacked_bars import stacked

# (what, colour, words): the order in which they stand. They add up to the step.
KINDS = (
    ("compute", web.TEAL, "computing"),
    ("data", web.YELLOW, "waiting for data"),
    ("communication", web.ORANGE, "exchanges, and waiting for others in them, while nothing is computed"),
    ("bubble", "", "bubble: waiting for other stages"),
    ("rest", web.GREY, "the rest: nothing runs on the device"),
)
_HEADS = {"communication": "exposed communication", "rest": "the rest", "data": "waiting for data"}


def part(workers):
    """The HTML of it, of workers that have told."""
    rows = [
        ("worker %d %s" % (each["worker"], device), times)
        for each in workers
        for device, times in each["step_times"]["devices"]
    ]
    cells = []
    for name, times in rows:
        whole = sum(times.values())
        parts = ["%s, %.0f %%" % (seconds(times[kind]), 100 * times[kind] / (whole or 1.0)) for kind, _, _ in KINDS]
        cells.append([name, seconds(whole)] + parts)
    head = ["device", "a step"] + [_HEADS.get(kind, kind) for kind, _, _ in KINDS]
    note = "<p>The mean of %d steps, which were traced and took a little longer than others.</p>"
    shown = stacked(KINDS, rows, seconds)
    return shown + web.table(head, cells) + note % workers[0]["step_times"]["steps"]
