"""The page of a run: what was started and how it ended, its course, where time went, the last steps, the plan.

A page is made of a dict (epl.launch.run_record.RunRecord.write says of what), so it can be made again, and tested, by
itself.
"""

import html
import os
import time

from epl.plan.report import memory_page, web
from epl.plan.text import bytes_text
from epl.report.curves import curve
from epl.report.figures import duration
from epl.report.step_bars import part as step_part
from epl.report.time_bars import part as shares_part
from epl.report.tracks import part as tracks_part


def page(facts):
    """The HTML of the page."""
    parts = [("Run", _run(facts))]
    if facts["warnings"]:
        parts.append(("Warnings", _warnings(facts["warnings"])))
    if len(facts["curve"]) > 1:
        parts.append(("Course", _course(facts)))
    workers = [each for each in facts["by_worker"] if each["steps"]]
    if workers:
        parts.append(("Where time went", shares_part(workers)))
    timed = [each for each in workers if each["step_times"]]
    if timed:
        parts.append(("Where a step's time goes", step_part(timed)))
    if any(each["last_steps"] for each in workers):
        parts.append(("The last steps", tracks_part(workers)))
    if any(each["phases"] for each in facts["by_worker"]):
        parts.append(("Until the first step", _start(facts)))
    parts += [(heading, body) for heading, body in facts["parts"]]
    return web.report("Run of %s" % _name(facts["command"]), parts, memory_page.SCRIPT, memory_page.STYLE)


def _name(command):
    scripts = [os.path.basename(word) for word in command if word.endswith((".py", ".sh"))]
    return scripts[0] if scripts else command[0]


def _run(facts):
    rows = [
        ("command", " ".join(facts["command"])),
        ("workers", "%d with %s" % (facts["workers"], facts["devices"])),
        ("started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["started"]))),
        ("took", duration(facts["seconds"])),
    ]
    trained = [each for each in facts["by_worker"] if each["steps"]]
    if trained:
        first = trained[0]
        rows.append(("came to step", "{:,}".format(first["step"])))
        spent = first["last_step_at"] - first["first_step_at"]
        if first["steps"] > 1 and spent > 0:
            rate = (first["steps"] - 1) / spent
            rows.append(("steps a second", "%.4g" % rate))
            if first["rows"]:
                rows.append(("samples a second", "{:,.0f}".format(rate * first["rows"] * facts["workers"])))
        if first["loss"] is not None:
            rows.append(("last loss", "%.6g" % first["loss"]))
        sent = sum(each["collective_bytes"] for each in trained)
        if sent:
            rows.append(("in collectives", "%s of tensors, all workers" % bytes_text(sent)))
    rows += [("attempt" if len(facts["attempts"]) > 1 else "end", text) for text in facts["attempts"]]
    shown = web.table(("what", ""), rows)
    if facts["cause"]:
        shown += "<h3>Why it failed</h3><pre>%s</pre>" % html.escape("\n".join(facts["cause"]))
    return shown


def _warnings(warnings):
    return web.table(("times", "what EPL warned of"), [("%d" % count, text) for text, count in warnings])


def _course(facts):
    points = facts["curve"]
    seconds = [point[0] for point in points]
    charts = [curve("steps a second", seconds, [point[2] for point in points], True)]
    losses = [point[3] for point in points]
    if sum(loss is not None for loss in losses) > 1:
        charts.append(curve("loss", seconds, losses, False))
    return "".join(charts)


def _start(facts):
    rows = []
    for each in facts["by_worker"]:
        for phase in each["phases"]:
            if phase["end"] is not None:
                at = max(0.0, phase["begin"] - facts["began"])
                rows.append(
                    ("%d" % each["worker"], phase["name"], "%.2f" % at, "%.2f" % (phase["end"] - phase["begin"]))
                )
    return web.table(("worker", "was at", "from second", "seconds"), rows)
