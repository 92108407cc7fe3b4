"""Command line of `epl-launch`."""

import argparse
import difflib
import os
import re
import shutil
import sys

from epl.errors import LaunchError
from epl.launch.machines import read_machines
from epl.version import __version__

DESCRIPTION = """\
Starts worker processes that all run the same script, each with its share of this machine's devices and cores, and
shows their output. When one fails, all end. Options of the script follow its name and are passed on unchanged."""

EXAMPLES = """\
examples:
  epl-launch --num_workers 2 train.py --lr 0.1      two processes, one device each
  epl-launch --num_workers 1 --gpu_per_worker 4 run.sh
                                                    one process that trains on four devices
  epl-launch --gpus 0,1,2,3 train.py                a process for each of these GPUs
  epl-launch --config run.yaml --num_workers 2 train.py
                                                    configuration keys from a file
  epl-launch --num_workers 8 --ips 10.0.0.1,10.0.0.2 train.py
                                                    on each of two machines: four processes here, four there"""


def _at_least(minimum):
    def integer(text):
        value = int(text) if text.isdigit() else minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError("%r must be an integer >= %d" % (text, minimum))
        return value

    return integer


def _gpu_names(text):
    names = [name.strip() for name in text.split(",")]
    if not all(re.match(r"^(\d+|(GPU|MIG)-[\w/-]+)$", name) for name in names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError('%r must be different numbers of GPUs, such as "0,1"' % text)
    return names


def _parser():
    parser = argparse.ArgumentParser(
        prog="epl-launch",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="epl-launch [options] script.sh|script.py [arguments of the script]",
    )
    add = parser.add_argument
    add("--version", action="version", version="epl-launch %s" % __version__)
    add(
        "--num_workers",
        type=_at_least(1),
        metavar="N",
        help="workers on all machines together (default: one for each GPU of --gpus, else one for each machine)",
    )
    add(
        "--gpu_per_worker",
        type=_at_least(1),
        metavar="M",
        help="devices of each worker: GPUs, or CPU devices where there are none (default 1; the share of --gpus)",
    )
    add(
        "--gpus",
        type=_gpu_names,
        metavar="LIST",
        help='GPUs of this machine that the workers divide, such as "0,1" (default: those of CUDA_VISIBLE_DEVICES, '
        "or all)",
    )
    add(
        "--config",
        metavar="FILE",
        help="YAML file of configuration keys, as epl.Config.to_yaml writes it (default: EPL_... variables only)",
    )
    add(
        "--write_config",
        metavar="FILE",
        help="write such a file to begin with: the keys that people set most, each with its meaning; start nothing",
    )
    add(
        "--doctor",
        action="store_true",
        help="look at all that a job needs of this machine, an all-reduce between two workers included, or between all "
        "of --machine_list; folders for checkpoints may follow in the place of the script",
    )
    add(
        "--machine_list",
        "--ips",
        metavar="LIST",
        help='machines over which the workers are divided evenly: "ip[:port],...", '
        "or a file with one a line. Run epl-launch with the same list on each (default: this machine alone)",
    )
    add(
        "--machine_rank",
        type=_at_least(0),
        metavar="R",
        help="this machine's place in the list, from 0 (default: the one whose address is this machine's)",
    )
    add(
        "--device",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="auto: GPUs if there are enough for all workers, else CPU devices (default)",
    )
    add(
        "--bind",
        choices=("auto", "none"),
        default="auto",
        help="auto: give each worker cores of its own if there is one for each (default)",
    )
    add(
        "--bind_address",
        metavar="IP",
        help="address at which worker 0 listens for the others, where it is not the one in --machine_list because "
        "addresses are translated; 0.0.0.0: all of its machine (default: its address in the list)",
    )
    add(
        "--log_dir",
        metavar="DIR",
        help="where each worker's output is kept as worker-<index>.log (default: a new "
        "directory for temporary files, removed if all goes well)",
    )
    add(
        "--stdin",
        action="store_true",
        help="give each worker what comes from standard input, to its end, as its own (default: theirs is empty)",
    )
    add(
        "--tf1",
        action="store_true",
        help="the script was written for TensorFlow 1: `import tensorflow` gives that of 2.15 as version 1, tf.contrib "
        "included (docs/tf1_on_tf2.md)",
    )
    add(
        "--progress",
        choices=("auto", "line", "plain", "off"),
        default="auto",
        help="how far the job is: a line that is kept up to date on a terminal, and else one every 30 seconds "
        "(auto, default); always the one (line) or the other (plain); or nothing (off)",
    )
    add(
        "--report",
        metavar="FILE",
        help="write a page of the run, however it ends: its course, where time went, its last steps, warnings, the "
        "plan",
    )
    add(
        "--verbose",
        action="store_true",
        help="show what all workers print, and tables of EPL's; without it what the first one prints, and errors of "
        "all. The logs have everything",
    )
    add(
        "--max_restarts",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="how often the job starts again, from its last checkpoint, when a worker fails (default 0; "
        "docs/restarts.md)",
    )
    add(
        "--min_workers",
        type=_at_least(1),
        metavar="N",
        help="start again without a worker that has died two times one after another, with at least so many "
        "(default: always with all)",
    )
    add(
        "--notice_s",
        type=_at_least(0),
        default=0,
        metavar="S",
        help="seconds that workers have after SIGTERM to save and to end by themselves (default 0: they are ended)",
    )
    add(
        "--verify",
        type=_at_least(1),
        metavar="N",
        help="compare N training steps with one device, and end (docs/verify.md)",
    )
    add("--debug", action="store_true", help="show what is started with which variables, and more after a failure")
    return parser


def parse(arguments):
    """Options of the launcher with the two more attributes `script` (a path) and `script_arguments` (a list); with
    --doctor instead `folders` and `for_workers`, the launcher's other options, two lists.

    Raises:
      LaunchError: unknown option, wrong value, missing or unusable script (which --write_config and --doctor need not).
      SystemExit: `--help`.
    """
    parser = _parser()
    parser.error = _raise
    split = _place_of_script(arguments, parser)
    # Only the launcher's own part goes to argparse, which would reorder and eat parts of the script's.
    options = parser.parse_args(arguments[:split])
    rest = arguments[split:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if options.tf1 and sys.version_info < (3, 9):
        raise LaunchError(
            "--tf1 is for TensorFlow 2.15, which needs Python 3.9 to 3.11; this is Python %d.%d, whose TensorFlow 1.15 "
            "runs the script as it is. Leave --tf1 out." % sys.version_info[:2]
        )
    if options.doctor:
        options.folders, options.for_workers = rest, [each for each in arguments[:split] if each != "--doctor"]
    if options.write_config or options.doctor:
        return options
    if not rest:
        raise LaunchError("no script is given. Usage: epl-launch --num_workers N --gpu_per_worker M script.sh")
    options.script, options.script_arguments = rest[0], rest[1:]
    if options.machine_rank is not None and options.machine_list is None:
        raise LaunchError("--machine_rank needs --machine_list, which says which machines there are.")
    if options.gpus and options.device == "cpu":
        raise LaunchError("--gpus names GPUs, but --device cpu asks for none. Leave one of them out.")
    script_command(options.script)
    if options.report is not None and not os.path.isdir(os.path.dirname(os.path.abspath(options.report))):
        raise LaunchError("--report %s: there is no such folder. Make it, or name another." % options.report)
    _set_numbers(options)
    _check_restarts(options)
    return options


def _check_restarts(options):
    if options.max_restarts and options.machine_list is not None:
        raise LaunchError(
            "--max_restarts is for jobs on one machine: launchers of several machines do not agree on attempts in this "
            "version. Leave it out, and start the command again on all machines; training goes on from the checkpoint."
        )
    if options.min_workers is not None and not options.max_restarts:
        raise LaunchError(
            "--min_workers is of use together with --max_restarts N, which says how often to start again."
        )
    if options.min_workers is not None and options.min_workers > options.num_workers:
        raise LaunchError(
            "--min_workers %d is more than the %d of --num_workers. Give at most as many."
            % (options.min_workers, options.num_workers)
        )


def _set_numbers(options):
    """How many workers with how many devices, as far as the command line leaves it open."""
    machines = len(read_machines(options.machine_list)) if options.machine_list is not None else 1
    if not options.gpus:
        options.num_workers = options.num_workers or machines
        options.gpu_per_worker = options.gpu_per_worker or 1
        return
    options.device = "gpu"
    here = len(options.gpus)
    if options.num_workers is None:
        options.num_workers = machines * (here // (options.gpu_per_worker or 1) or 1)
    if options.gpu_per_worker is None:
        options.gpu_per_worker = here * machines // options.num_workers or 1
    if options.num_workers * options.gpu_per_worker != here * machines:
        raise LaunchError(
            "--gpus names %d GPU%s%s, but %d worker%s with %d each use %d. Name as many as are used, or leave "
            "--num_workers or --gpu_per_worker out."
            % (
                here,
                "" if here == 1 else "s",
                " on each of %d machines" % machines if machines > 1 else "",
                options.num_workers,
                "" if options.num_workers == 1 else "s",
                options.gpu_per_worker,
                options.num_workers * options.gpu_per_worker,
            )
        )


def _raise(message):
    raise LaunchError(message)


def place_of_script(arguments, beside=()):
    """Index of the script among arguments; `beside`: names of options with a value that may stand among the launcher's.

    Raises:
      LaunchError: unknown option.
    """
    parser = _parser()
    for name in beside:
        parser.add_argument(name)
    return _place_of_script(arguments, parser)


def _place_of_script(arguments, parser):
    """Index of the first argument that is neither an option of the launcher nor its value."""
    known = {name: action for action in parser._actions for name in action.option_strings}
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        name, equals, _ = arguments[index].partition("=")
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_"), [key.replace("-", "_") for key in known], n=1)
            hint = " Did you mean %s?" % " or ".join("--" + key.lstrip("_") for key in near) if near else ""
            raise LaunchError(
                "unknown option %s.%s Options of the script stand after its name; `epl-launch --help` "
                "lists those of epl-launch." % (name, hint)
            )
        index += 1 if equals or known[name].nargs == 0 else 2
    return min(index, len(arguments))


def script_command(script):
    """Command that runs `script`: [program, script].

    Raises:
      LaunchError: there is no such file, or it is neither a .sh nor a .py.
    """
    if not os.path.isfile(script):
        problem = "does not exist"
        if os.path.isdir(script):
            problem = "is a directory"
        elif os.path.islink(script):
            problem = "is a link to %s, which does not exist" % os.readlink(script)
        raise LaunchError("script %s %s.%s" % (script, problem, _nearest_scripts(script)))
    if script.endswith(".py"):
        return [sys.executable, script]
    if not script.endswith(".sh"):
        raise LaunchError("script %s must be a shell script (.sh) or a Python program (.py)." % script)
    bash = shutil.which("bash")
    if bash is None:
        raise LaunchError("there is no bash on PATH to run %s. Install it, or give a .py script." % script)
    return [bash, script]


def _is_script(folder, entry):
    return entry.endswith((".sh", ".py")) and os.path.isfile(os.path.join(folder, entry))


def _nearest_scripts(script):
    folder, name = os.path.split(script)
    try:
        there = sorted(entry for entry in os.listdir(folder or ".") if _is_script(folder, entry))
    except OSError:
        return " There is no directory %s either." % folder
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
    if not near:
        return ""
    return " Did you mean %s?" % " or ".join(os.path.join(folder, entry) for entry in near)
