"""Command line of `epl-launch`."""

import argparse
import difflib
import os
import shutil
import sys

from epl.errors import LaunchError

DESCRIPTION = """\
Starts worker processes that all run the same script, each with its share of this machine's devices and cores, and
shows their output. When one fails, all end. Options of the script follow its name and are passed on unchanged."""


def _at_least(minimum):
    def integer(text):
        value = int(text) if text.isdigit() else minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError("%r must be an integer >= %d" % (text, minimum))
        return value

    return integer


def _parser():
    parser = argparse.ArgumentParser(
        prog="epl-launch",
        description=DESCRIPTION,
        allow_abbrev=False,
        usage="epl-launch [options] script.sh|script.py [arguments of the script]",
    )
    add = parser.add_argument
    add("--num_workers", type=_at_least(1), default=1, metavar="N", help="workers on all machines together (default 1)")
    add(
        "--gpu_per_worker",
        type=_at_least(1),
        default=1,
        metavar="M",
        help="devices of each worker: GPUs, or CPU devices where there are none (default 1)",
    )
    add(
        "--machine_list",
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
        "--log_dir",
        metavar="DIR",
        help="where each worker's output is kept as worker-<index>.log (default: a new "
        "directory for temporary files, removed if all goes well)",
    )
    add("--debug", action="store_true", help="show what is started with which variables, and more after a failure")
    return parser


def parse(arguments):
    """Options of the launcher with the two more attributes `script` (a path) and `script_arguments` (a list).

    Raises:
      LaunchError: unknown option, wrong value, missing or unusable script.
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
    if not rest:
        raise LaunchError("no script is given. Usage: epl-launch --num_workers N --gpu_per_worker M script.sh")
    options.script, options.script_arguments = rest[0], rest[1:]
    if options.machine_rank is not None and options.machine_list is None:
        raise LaunchError("--machine_rank needs --machine_list, which says which machines there are.")
    script_command(options.script)
    return options


def _raise(message):
    raise LaunchError(message)


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
        raise LaunchError(
            "script %s %s.%s"
            % (script, "is a directory" if os.path.isdir(script) else "does not exist", _nearest_scripts(script))
        )
    if script.endswith(".py"):
        return [sys.executable, script]
    if not script.endswith(".sh"):
        raise LaunchError("script %s must be a shell script (.sh) or a Python program (.py)." % script)
    bash = shutil.which("bash")
    if bash is None:
        raise LaunchError("there is no bash on PATH to run %s. Install it, or give a .py script." % script)
    return [bash, script]


def _nearest_scripts(script):
    folder, name = os.path.split(script)
    try:
        there = sorted(entry for entry in os.listdir(folder or ".") if entry.endswith((".sh", ".py")))
    except OSError:
        return " There is no directory %s either." % folder
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
    if not near:
        return ""
    return " Did you mean %s?" % " or ".join(os.path.join(folder, entry) for entry in near)
