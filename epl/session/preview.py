"""Plans a script for any cluster without its devices: runs it up to its first session run and prints the plan."""

import argparse
import json
import os
import runpy
import sys

from epl.capture.record import make_model
from epl.env import Env
from epl.errors import EplError
from epl.plan.plan import make_plan
from epl.plan.table import plan_table
from epl.session.hooks import PREVIEW, Preview

_NO_RUN = 3
_REFUSED = 2


def main(argv=None):
    """`python -m epl.plan --num_workers 64 --gpu_per_worker 8 script.py [arguments]`.

    Returns:
      The exit status: 0, 2 when the plan is refused, 3 when the script ends without running a session.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if not os.path.isfile(options.script):
        parser.error("there is no script '%s' in %s" % (options.script, os.getcwd()))
    os.environ.update(_environment(options))
    sys.argv = [options.script] + options.arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    try:
        runpy.run_path(options.script, run_name="__main__")
    except Preview as preview:
        return _print(preview.graph, options)
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return _REFUSED
    print(
        "%s ended without running a session, so there is nothing to plan. The script must call epl.init() and then "
        "train." % options.script,
        file=sys.stderr,
    )
    return _NO_RUN


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m epl.plan",
        description="Runs a training script up to its first session run and prints how it would be laid out on "
        "a cluster. "
        "Needs no devices and no other worker.",
    )
    parser.add_argument("--num_workers", type=_positive, default=1, help="worker processes (default: 1)")
    parser.add_argument("--gpu_per_worker", type=_positive, default=1, help="devices of each worker (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--rows", type=_positive, default=16, help="devices to list before the rest is summed up (default: 16)"
    )
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("%s is not a whole number of at least 1" % text)
    return value


def _environment(options):
    hosts = ["127.0.0.1:%d" % (20000 + i) for i in range(options.num_workers)]
    return {
        PREVIEW: "1",
        "EPL_GPU_PER_WORKER": str(options.gpu_per_worker),
        "EPL_DEVICE": "gpu",
        "EPL_JOB_TOKEN": "preview",
        "TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}),
    }


def _print(graph, options):
    env = Env.get()
    try:
        model = make_model(graph)
        plan = make_plan(model, env.config, env.cluster)
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return _REFUSED
    print(plan.to_json() if options.json else plan_table(plan, model, options.rows))
    return 0
