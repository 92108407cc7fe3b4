"""`python -m epl.verify`: runs a program under its strategy and compares it with one device."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from epl import tf_compat
from epl.errors import EplError, VerifyError
from epl.launch import options as launcher
from epl.session.recorded import FOLDER, STEPS, TRACED
from epl.verify.comparison import DIFFERENT, LIMIT, compare_steps
from epl.verify.first_operation import first_operation
from epl.verify.joined import read_steps
from epl.verify.one_device import OneDevice
from epl.verify.report import first_difference, lines, to_dict
from epl.verify.verified_page import page

DIFFERENT_STATUS, USAGE_STATUS = 1, 2

QUIET = "EPL_VERIFY_QUIET"  # set: the level of TensorFlow's log is this command's own
_USAGE = (
    "python -m epl.verify [--steps N] [--json FILE] [--html FILE] [options of epl-launch] script.sh|script.py "
    "[its arguments]"
)


def main(argv=None):
    """Exit status: 0 where all is equal up to rounding, 1 where not, 2 where it could not be compared."""
    parser = argparse.ArgumentParser(prog="python -m epl.verify", usage=_USAGE, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="training steps (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write all that was found to a file")
    parser.add_argument("--html", metavar="FILE", help="write a page with all that was found")
    parser.add_argument("--timeout_s", type=float, default=3600, metavar="S", help="for the job (default 3600)")
    options, rest = _split(parser, sys.argv[1:] if argv is None else list(argv))
    folder = tempfile.mkdtemp(prefix="epl-verify-")
    try:
        comparison = verify(rest, options.steps, folder, options.timeout_s)
    except EplError as error:
        sys.stderr.write("epl.verify: error: %s\n" % error)
        return USAGE_STATUS
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in lines(comparison):
        print(line)
    if options.json:
        with open(options.json, "w") as stream:
            json.dump(to_dict(comparison), stream, indent=1)
    if options.html:
        with open(options.html, "w") as stream:
            stream.write(page(comparison, os.path.basename(launcher.parse(rest).script)))
    return DIFFERENT_STATUS if comparison.verdict == DIFFERENT else 0


def _split(parser, arguments):
    """(own options, the launcher's arguments): own ones stand before the script, among the launcher's."""
    end = launcher.place_of_script(arguments, beside=("--steps", "--json", "--html", "--timeout_s"))
    own, rest = parser.parse_known_args(arguments[:end])
    if own.steps < 1:
        parser.error("--steps %d: at least one training step is needed" % own.steps)
    return own, rest + arguments[end:]


def verify(launch, steps, folder, timeout_s):
    """The Comparison of a job with one device.

    Args:
      launch: arguments of epl-launch.
      steps: number of training steps.
      folder: an empty one, for what is recorded.
      timeout_s: seconds that the job may take.

    Raises:
      VerifyError: the job has failed, or cannot be compared.
      LaunchError: wrong arguments.
    """
    asked = launcher.parse(launch)
    if asked.machine_list is not None:
        raise VerifyError(
            "--machine_list: what workers record has to lie on this machine. Leave it out: as many workers run here, "
            "and compute the same."
        )
    found, graph_def = _recorded(launch, asked.num_workers, folder, timeout_s, {STEPS: str(steps)})
    one_device = OneDevice(graph_def, found)
    comparison = compare_steps(one_device, found)
    comparison.notes += list(_notes(found, steps, one_device)) + list(_expected(comparison, found[0].layout["rounded"]))
    number, _ = first_difference(comparison)
    if number is not None:
        again = os.path.join(folder, "again")
        os.mkdir(again)
        _look_for_first(comparison, number, (launch, asked.num_workers, again, timeout_s))
    return comparison


def _look_for_first(comparison, number, job):
    """Runs a job again up to the first step that is different, of which it records all tensors this time."""
    try:
        found, graph_def = _recorded(*job, {STEPS: str(number + 1), TRACED: str(number)})
    except VerifyError as error:
        comparison.notes.append(
            "the first operation that differs was not found, as a second run has failed: %s" % error
        )
        return
    if len(found) <= number:
        comparison.notes.append("the first operation that differs was not found: a second run has ended before it.")
        return
    comparison.first = first_operation(OneDevice(graph_def, found[number:]), found[number], number)
    if comparison.first is None:
        comparison.notes.append(
            "the first operation that differs was not found: in a second run nothing differed in step %d." % number
        )


def _recorded(launch, workers, folder, timeout_s, asked):
    """(RecordedSteps, GraphDef of the program) of a run of the job; `asked`: variables of the environment."""
    environ = dict(os.environ, **{FOLDER: folder})
    environ.update(asked)
    if environ.pop(QUIET, None):  # what TensorFlow prints here is nobody's wish for the job
        del environ["TF_CPP_MIN_LOG_LEVEL"]
    command = [sys.executable, "-m", "epl.launch"] + launch
    try:
        status = subprocess.run(command, env=environ, timeout=timeout_s).returncode
    except subprocess.TimeoutExpired:
        raise VerifyError(
            "the job has not ended after %g seconds. Give it more (--timeout_s), or fewer steps (--steps)." % timeout_s
        ) from None
    ended = all(os.path.exists(os.path.join(folder, "done.worker-%d" % index)) for index in range(workers))
    if status and not ended:
        raise VerifyError(
            "the job under the strategy has failed (status %d), see above; there is nothing to compare." % status
        )
    graph_def = tf_compat.GraphDef()
    found = read_steps(folder, workers)
    with open(os.path.join(folder, "graph"), "rb") as stream:
        graph_def.ParseFromString(stream.read())
    return found, graph_def


def _expected(comparison, rounded):
    if rounded:
        differences = [each for step in comparison.steps for each in step]
        sizes = [
            "%s %.1e" % (kind, LIMIT * max(each.expected for each in differences if each.kind == kind))
            for kind in sorted({each.kind for each in differences})
        ]
        yield "numbers are rounded by design (%s), which explains differences of up to: %s" % (
            ", ".join("%s to %s" % pair for pair in sorted(rounded.items())),
            ", ".join(sizes),
        )


def _notes(found, steps, one_device):
    if len(found) < steps:
        yield "the program took %d training steps, not %d: its data, or its loop, ended." % (len(found), steps)
    if one_device.in_parts:
        yield (
            "one device computed the batch in the parts that the copies of the model had, and averaged their "
            "gradients: %s." % one_device.in_parts
        )
    outside = sorted({name for step in found for name in step.outside})
    if outside:
        yield "what these gave depends on more than the program; one device was given the same: %s" % ", ".join(outside)
    strategies = found[0].layout["strategies"]
    if strategies:
        yield "strategies in force: %s" % ", ".join(strategies)
