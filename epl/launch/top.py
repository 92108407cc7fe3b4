"""`epl-top`: what each worker of a job is doing, and which one the others wait for; of a job that runs, or hangs.

It reads what the workers keep in files (epl.launch.board), so the job needs no option and notices nothing; only a
worker that is late is asked for its Python stacks.
"""

import argparse
import os
import sys
import time

from epl.errors import EplError
from epl.launch import diagnosis, jobs, stacks
from epl.launch.flight import write_timeline
from epl.launch.time_shares import shares_of, shares_text
from epl.version import __version__

_FIRST_LOOK_S = 1.0  # from the first look to the second, without which there are no rates
_COLUMNS = ("worker", "pid", "step", "steps/s", "memory", "others", "data", "link", "for", "at")

DESCRIPTION = """\
Shows what each worker of a job is doing that epl-launch has started on this machine: its step, steps a second, memory,
how much it waits for others and for data, what its collectives carry, and what it is at, and for how long. Names the
worker that the others wait for, with the line of Python that it is in."""


def main(argv=None):
    """Returns the exit status: 0; 2: there is no such job, or several."""
    options = _parser().parse_args(argv)
    try:
        job = jobs.choose(jobs.running(), options.job)
        if options.flight:
            write_timeline(options.flight, job.paths)
            sys.stdout.write("wrote %s, for https://ui.perfetto.dev or chrome://tracing\n" % options.flight)
            return 0
        _watch(job, options)
    except EplError as error:
        sys.stderr.write("epl-top: error: %s\n" % error)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="epl-top", description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("job", nargs="?", help="process id of its epl-launch, or its folder of logs (default: the only job there is)")
    add("--once", action="store_true", help="print it once; without this it is shown anew until Ctrl-C")
    add("--stacks", action="store_true", help="show the Python stacks of all workers, too")
    add("--interval", type=_seconds, default=2.0, metavar="S", help="seconds from one look to the next (default 2)")
    add("--flight", metavar="FILE", help="write the last 1,000 events of each worker as a timeline (JSON) instead")
    add("--version", action="version", version="epl-top %s" % __version__)
    return parser


def _seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value < 0.1:
        raise argparse.ArgumentTypeError("%r must be a number of seconds, at least 0.1" % text)
    return value


def _watch(job, options):
    again = not options.once and sys.stdout.isatty()
    before = _look(job.paths)
    time.sleep(_FIRST_LOOK_S)
    while True:
        after = _look(job.paths)
        text = "\n".join(page(job, before, after, options.stacks)) + "\n"
        sys.stdout.write(("\x1b[H\x1b[2J" if again else "") + text)
        sys.stdout.flush()
        if options.once or not any(look.process.state for look in after.values()) and not os.path.isdir(job.folder):
            return
        before = after
        time.sleep(options.interval)


def _look(paths):
    now = time.monotonic()
    found = {worker: diagnosis.look(path, now) for worker, path in sorted(paths.items())}
    return {worker: look for worker, look in found.items() if look is not None}


def page(job, before, after, all_stacks=False):
    """What is shown of two looks at a job, as lines.

    Args:
      job: a jobs.Found.
      before, after: dicts of worker to its diagnosis.Look.
      all_stacks: with the Python stacks of all workers.
    """
    found = diagnosis.verdicts(before, after)
    coming = sorted(set(job.paths) - set(after))
    lines = ["epl-launch %d: %s here. Logs: %s" % (job.launcher, _workers(sorted(job.paths)), job.folder)]
    if coming:
        lines.append("%s not come to epl.init() yet" % (_workers(coming) + (" has" if len(coming) == 1 else " have")))
    lines += _table([_COLUMNS] + [_row(before.get(w), after[w], found[w]) for w in sorted(after)])
    asked = {}
    late = diagnosis.late(before, after, found)
    for worker in after if all_stacks else late[:3]:
        if found[worker].what not in (diagnosis.GONE, diagnosis.STOPPED, diagnosis.ENDED):
            asked[worker] = stacks.ask(after[worker].seen, job.paths[worker])
    lines += [""] + [_of_late(after[worker], found[worker], asked.get(worker)) for worker in late]
    if not late:
        lines.append(_nobody_late(before, after, found))
    for worker, of_worker in asked.items() if all_stacks else ():
        lines += ["", "worker %d:" % worker] + stacks.text(of_worker, int(after[worker].seen.thread))
    return lines


def _of_late(look, verdict, found):
    """A sentence about a worker that the others wait for."""
    seconds = "" if verdict.what == diagnosis.GONE else " for %.1f s" % verdict.since_s
    text = "late: worker %d, %s%s" % (verdict.worker, verdict.text, seconds)
    if found is None:
        return text
    if not found:
        return text + "; it does not tell its Python stacks"
    beside = verdict.what in (diagnosis.DATA, diagnosis.COMPUTES)
    where = stacks.place(found, int(look.seen.thread), beside)
    return text if where is None else "%s, at %s" % (text, stacks.place_text(where))


def _nobody_late(before, after, found):
    waiting = [verdict for verdict in found.values() if verdict.what == diagnosis.WAITS]
    if waiting and len(waiting) == len(found) and max(v.since_s for v in waiting) > diagnosis.STILL_S:
        return "all workers here wait, at different things or for workers of another machine"
    shares = shares_text(
        {worker: look.seen for worker, look in after.items()}, {worker: look.seen for worker, look in before.items()}
    )
    return "nobody is late" + (": %s" % shares if shares else "")


def _row(before, now, verdict):
    seen = now.seen
    rate = shares = link = None
    if before is not None and before.seen.pid == seen.pid:
        seconds = now.at - before.at
        rate = (seen.steps - before.seen.steps) / seconds
        shares = shares_of({0: seen}, {0: before.seen})
        link = (now.link[1] - before.link[1]) / seconds
    return (
        str(verdict.worker),
        str(seen.pid),
        "{:,}".format(seen.step) if seen.steps else "-",
        "-" if rate is None else "%.3g" % rate,
        "%.0f MB" % (now.process.memory / 1e6),
        _percent(shares, "others"),
        _percent(shares, "data"),
        "-" if link is None else "%.1f MB/s" % (link / 1e6),
        "%.1f s" % verdict.since_s,
        verdict.text,
    )


def _percent(shares, name):
    return "%.0f %%" % (100 * shares[name]) if shares and name in shares else "-"


def _table(rows):
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]


def _workers(indices):
    if len(indices) == 1:
        return "worker %d" % indices[0]
    return "workers %s" % ", ".join(map(str, indices))


if __name__ == "__main__":
    sys.exit(main())
