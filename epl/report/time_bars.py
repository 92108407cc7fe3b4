"""Where the time between the first and the last training step went, by worker: a bar each, and the figures."""

from epl.plan.report import web
from epl.report.stacked_bars import stacked

# (what, colour, words): the order in which they stand, which adds up to the whole.
KINDS = (
    ("devices", web.TEAL, "a step's operations and collectives"),
    ("others", web.RED, "waiting until the others had come to the step"),
    ("data", web.YELLOW, "waiting for data (measured with io.stats)"),
    ("program", web.GREY, "the program's own Python, between two steps"),
)


def seconds_of(worker):
    """{kind: seconds} of a worker's facts; the sum is the time that it has trained."""
    others, data = worker["waited_others_s"] or 0.0, worker["waited_data_s"] or 0.0
    rest = max(0.0, worker["in_steps_s"] - others - data)
    return {"devices": rest, "others": others, "data": data, "program": worker["in_program_s"] or 0.0}


def part(workers):
    """The HTML of it."""
    found = [(each, seconds_of(each)) for each in workers]
    bars = [("worker %d" % each["worker"], seconds) for each, seconds in found]
    picture = stacked(KINDS, bars, "{:.2f} s".format)
    rows = []
    for each, seconds in found:
        whole = sum(seconds.values()) or 1.0
        cells = ["%d" % each["worker"], "{:,}".format(each["steps"]), "%.2f s" % whole]
        cells += ["%.2f s, %.0f %%" % (seconds[kind], 100 * seconds[kind] / whole) for kind, _, _ in KINDS]
        rows.append(cells + ["%.2f s" % each["in_collectives_s"]])
    head = ("worker", "steps", "in all", "devices", "others", "data", "program", "of devices: in collectives")
    note = "<p>Collectives may go on beside operations, and several at a time; their seconds are added up.</p>"
    return picture + web.table(head, rows) + note
