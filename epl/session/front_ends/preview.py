"""Plans a script for any cluster without its devices: runs it up to its first session run and prints the plan."""

import argparse
import dataclasses
import html
import json
import os
import runpy
import sys

from epl import tf_compat
from epl.audit.audited_job import audit_job, audit_table, is_wrong
from epl.capture.record import make_program
from epl.cluster.machine import machine
from epl.compiler import compile as compile_program
from epl.env import Env
from epl.errors import EplError
from epl.plan.estimate.estimate import estimate
from epl.plan.input.batch_rows import data_set_rows
from epl.plan.report import memory_page, placements_page, web
from epl.plan.report.estimate_table import estimate_facts, estimate_table
from epl.plan.report.exchanges_table import exchanges_table, facts
from epl.plan.report.plan_table import plan_table
from epl.plan.report.schedule_page import schedule_page, schedule_part
from epl.program.files import write
from epl.search.search import is_wanted, machine_for, search
from epl.search.shown import table
from epl.session.estimated_job import estimate_job, job_charts, job_table
from epl.session.estimated_program import DEFAULT_BATCH, estimate_exchanges
from epl.session.front_ends.searched import show_search
from epl.session.front_ends.written import written
from epl.session.hooks import PREVIEW, NotStarted, Preview, watch_plan
from epl.version import __version__

_NO_RUN = 3
EXAMPLES = """\
examples:
  python -m epl.plan --gpu_per_worker 4 train.py --lr 0.1
                                        how train.py would be laid out on one process with four devices
  python -m epl.plan --num_workers 64 --gpu_per_worker 8 --rows 4 train.py
  EPL_PIPELINE_NUM_MICRO_BATCH=8 python -m epl.plan --gpu_per_worker 2 --timeline schedule.html train.py
                                        the schedule of a pipeline as a picture
  python -m epl.plan --gpu_per_worker 2 --placements split.html train.py
                                        what epl.split divides, and what is exchanged for it, as a picture
  python -m epl.plan --memory memory.html --batch 64 train.py
                                        what memory a step will need, by kind, and a picture of it (a name.html)
  python -m epl.plan --gpu_per_worker 4 --report report.html train.py
                                        all of these on one page
  python -m epl.plan --search --num_workers 4 --gpu_per_worker 8 --machine A100 --batch 512 train.py
                                        the best plans for 32 devices, and run.yaml with the keys of the best
  python -m epl.plan --num_workers 2 --audit train.py
                                        whether all variables are updated as on one device, from the graphs alone"""
_REFUSED = 2
_WRONG = 4


def main(argv=None):
    """`python -m epl.plan --num_workers 64 --gpu_per_worker 8 script.py [arguments]`.

    Returns:
      The exit status: 0, 2 when the plan is refused or a file cannot be written, 3 when the script runs
      none of EPL's sessions, 4 when --audit finds an update that is not one device's.
    """
    command = parser()
    options = command.parse_args(_with_memory_file(sys.argv[1:] if argv is None else argv))
    if not os.path.isfile(options.script):
        command.error("there is no script '%s' in %s" % (options.script, os.getcwd()))
    if not _is_python(options.script):
        command.error(
            "'%s' is no Python script. Give the one that it starts, with its arguments: train.py" % options.script
        )
    os.environ.update(_environment(options))
    sys.argv = [options.script] + options.arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    watch_plan()
    try:
        runpy.run_path(options.script, run_name="__main__")
    except Preview as preview:
        return show_search(preview.graph, options) if options.search else show(preview.graph, options)
    except NotStarted:
        print(
            "%s runs a session, or computes gradients, without epl.init() or before it, as it would on one device, so "
            "there is nothing to plan; it was ended there. Write epl.init() right after the imports, before the model "
            "is built." % options.script,
            file=sys.stderr,
        )
        return _NO_RUN
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return _REFUSED
    print(
        "%s ended without running a session, so there is nothing to plan. The script must call epl.init() and then "
        "train." % options.script,
        file=sys.stderr,
    )
    return _NO_RUN


def _is_python(path):
    """Whether a file may be a Python program, by its name or by what is in it."""
    if path.endswith(".py"):
        return True  # where it cannot be compiled, Python's own message says why
    with open(path, "rb") as file:
        source = file.read()
    try:
        compile(source, path, "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def parser():
    """The command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m epl.plan",
        description="Runs a training script up to its first session run and prints how it would be laid out on "
        "a cluster. "
        "Needs no devices and no other worker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version="epl.plan of EPL %s" % __version__)
    made.add_argument("--num_workers", type=_positive, default=1, help="worker processes (default: 1)")
    made.add_argument("--gpu_per_worker", type=_positive, default=1, help="devices of each worker (default: 1)")
    made.add_argument(
        "--machine",
        metavar="NAME|FILE",
        help="for which devices and links the step is estimated: nominal, V100, A100, H100, H200, CPU, or a file "
        "(docs/search.md; default: cluster.machine)",
    )
    made.add_argument("--json", action="store_true", help="print the plan as JSON")
    made.add_argument(
        "--rows", type=_positive, default=16, help="devices to list before the rest is summed up (default: 16)"
    )
    made.add_argument(
        "--timeline", metavar="FILE", help="write a web page with a picture of the schedule, from estimated costs"
    )
    made.add_argument(
        "--memory",
        metavar="FILE",
        nargs="?",
        const="",
        help="print what memory a training step needs on each device, and write a web page with a picture of it",
    )
    made.add_argument(
        "--placements",
        metavar="FILE",
        help="write a web page with a picture of what epl.split divides, and of what the devices exchange for it",
    )
    made.add_argument(
        "--report",
        metavar="FILE",
        help="write one web page with all of it: the plan, the schedule, memory, and what is divided and exchanged",
    )
    made.add_argument(
        "--save",
        metavar="FILE",
        help="write the program with its plan, by which epl.compiler.rewritten makes the graph elsewhere",
    )
    made.add_argument(
        "--audit",
        action="store_true",
        help="show of each variable that the graphs of all workers update it as one device would, or where not; "
        "ends with status 4 where one does not",
    )
    made.add_argument(
        "--batch",
        type=_positive,
        help="rows of a micro-batch, for sizes and times, where the program leaves them open (default: those that its "
        "tf.data sets make, where that is a constant, else %d)" % DEFAULT_BATCH,
    )
    made.add_argument(
        "--search",
        action="store_true",
        help="look for the plan of which a step takes least: print the best, and write a file of keys for epl-launch "
        "(docs/search.md); --batch counts the rows of a step over all devices then",
    )
    made.add_argument(
        "--memory_limit_mb", type=_above_zero, help="of --search: MiB of a device (default: what the machine has)"
    )
    made.add_argument("--amp", action="store_true", help="of --search: 16 bits may be chosen, which change numbers")
    made.add_argument("--run_file", metavar="FILE", default="run.yaml", help="of --search (default: run.yaml)")
    made.add_argument(
        "--pareto", metavar="FILE", help="of --search: write a web page with a picture of time over memory"
    )
    made.add_argument("script", help="a Python script")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return made


def _with_memory_file(arguments):
    """The command's arguments, where what follows --memory and is no page belongs to the rest: the script, say."""
    arguments = list(arguments)
    for place, text in enumerate(arguments):
        if text.endswith(".py"):
            break  # the script; what follows is its own
        if text == "--memory":
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            if not following.endswith((".html", ".htm")):
                arguments[place] = "--memory="
            break
    return arguments


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("%s is not a whole number of at least 1" % text)
    return value


def _above_zero(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("%s is not a number above 0" % text)
    return value


def _environment(options):
    hosts = ["127.0.0.1:%d" % (20000 + i) for i in range(options.num_workers)]
    return {
        PREVIEW: "1",
        "EPL_GPU_PER_WORKER": str(options.gpu_per_worker),
        "EPL_DEVICE": os.environ.get("EPL_DEVICE") or "gpu",  # the cluster may be another one than this machine's
        "EPL_JOB_TOKEN": "preview",
        "TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}),
    }


def show(graph, options):
    """Prints the plan of a tf.Graph and writes what the options ask for; returns the exit status."""
    env = Env.get()
    try:
        captured, config, chosen = make_program(graph), env.config, None
        if is_wanted(captured, config, env.cluster):
            rows = config.auto.batch or DEFAULT_BATCH * env.cluster.total_gpu_num  # as at the first run
            chosen = search(captured, config, env.cluster, machine_for(config, env.cluster), rows)
            config = config.replaced(chosen.best.values)
        program = compile_program(captured, config, env.cluster)
        picture, schedule = None, None
        if options.timeline:
            picture = schedule_page(program, config.pipeline, options.script, batch=options.batch)
        if options.report and program.apply_calls:
            schedule = schedule_part(program, config.pipeline, batch=options.batch)
        memory, batch = [], options.batch or data_set_rows(captured.graph) or DEFAULT_BATCH
        if options.memory is not None or options.report:
            memory = estimate_job(captured, program, config, env.cluster, batch, options.rows)
        exchanges = estimate_exchanges(program, batch)
        on = machine(options.machine) if options.machine else None
        estimated = estimate(program.source, env.cluster, on, batch) if program.apply_calls else None
        audited = _audited(captured, config, env.cluster) if options.audit else None
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return _REFUSED
    if options.save and not _saved(program.source, options.save):
        return _REFUSED
    pages = [("--timeline", options.timeline, picture)]
    capacity = on.device.memory_bytes if on is not None else None
    if options.memory:
        title = "Memory of a training step of %s" % os.path.basename(options.script)
        charts = job_charts(memory, env.cluster.worker_num)
        pages.append(("--memory", options.memory, memory_page.memory_page(charts, title, capacity)))
    if options.placements:
        if program.partitioned is None:
            print("--placements: no tensor of this program is divided over devices; use epl.split.", file=sys.stderr)
            return _REFUSED
        title = "What is divided in %s over %d devices" % (os.path.basename(options.script), program.partitioned.shards)
        pages.append(("--placements", options.placements, placements_page.placements_page(program, exchanges, title)))
    if options.report:
        costs = estimate_table(estimated) if estimated is not None else ""
        page = _report(program, costs, schedule, memory, capacity, exchanges, options)
        pages.append(("--report", options.report, page))
    for option, path, page in pages:
        if page is not None and not written(option, path, page):
            return _REFUSED
    if options.json:
        summary = dict(program.plan.summary(), **facts(program, exchanges))
        summary["estimate"] = estimate_facts(estimated) if estimated is not None else None
        if audited is not None:
            summary["audit"] = [dataclasses.asdict(finding) for finding in audited]
        print(json.dumps(summary, indent=2, sort_keys=True))
    else:
        if chosen is not None:
            print(table(chosen, options.rows))
        print(plan_table(program.plan, program, options.rows))
        if estimated is not None:
            print(estimate_table(estimated))
        told = exchanges_table(program, exchanges, options.rows)
        if told:
            print(told)
    if program.automatic is not None and not options.json:
        print(program.automatic.table())
    if options.memory is not None:
        print(job_table(memory, env.cluster.worker_num, options.rows))
        print("Where the program leaves open how many rows a micro-batch has, it counts as %d (--batch)." % batch)
    if audited is not None and not options.json:
        print(audit_table(audited, options.rows))
    return _WRONG if audited is not None and is_wrong(audited) else 0


def _audited(captured, config, cluster):
    """The Findings about the graphs of all workers."""
    compiled = lambda worker: compile_program(captured, config, cluster.with_index(worker))  # noqa: E731
    return audit_job(captured, config, cluster, compiled)


def _report(program, costs, schedule, memory, capacity, exchanges, options):
    """The page of all that is known of a plan."""
    worker_num = Env.get().cluster.worker_num
    parts = [("Plan", _text("\n".join(filter(None, [plan_table(program.plan, program, options.rows), costs]))))]
    if schedule is not None:
        parts.append(("Schedule: " + schedule[0], schedule[1]))
    charts = memory_page.part(job_charts(memory, worker_num), capacity)
    parts.append(("Memory", _text(job_table(memory, worker_num, options.rows)) + charts))
    if program.partitioned is not None:
        parts.append(("What is divided, and what is exchanged", placements_page.part(program, exchanges)))
    elif exchanges:
        parts.append(("What is exchanged", placements_page.exchanges_part(program, exchanges)))
    title = "Plan of %s" % os.path.basename(options.script)
    return web.report(title, parts, memory_page.SCRIPT, memory_page.STYLE)


def _text(lines):
    return "<pre>%s</pre>" % html.escape(lines)


def _saved(program, path):
    """Writes a Program with its plan; whether that was possible."""
    try:
        write(path, program, tf_compat.GraphDef)
    except OSError as error:
        print("--save %s cannot be written: %s" % (path, error.strerror), file=sys.stderr)
        return False
    return True
