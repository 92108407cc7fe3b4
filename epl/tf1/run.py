"""The command `python -m epl.tf1`."""

import argparse
import os
import runpy
import sys

from epl.errors import EplError
from epl.launch.version_1 import inherit
from epl.tf1.check import check
from epl.tf1.finder import install

_ABOUT = """Runs a TensorFlow 1 program on TensorFlow 2.15, unmodified; or lists what it uses that is not served."""


def main(arguments):
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m epl.tf1", description=_ABOUT)
    parser.add_argument("--check", metavar="FOLDER", help="read the Python files of a folder, or one, and run nothing")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is the name of a module")
    parser.add_argument("program", nargs="?", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")
    options = parser.parse_args(arguments)
    if options.check is not None:
        if options.program is not None:
            parser.error("--check takes one folder or file, and runs no program")
        return check(options.check)
    if options.program is None:
        parser.error("say which script to run, or --check FOLDER")
    if not options.module and not os.path.isfile(options.program):
        parser.error("there is no file '%s'" % options.program)
    return _run(options)


def _run(options):
    try:
        install()
    except EplError as error:
        print("epl: %s" % error, file=sys.stderr)
        return 2
    inherit(os.environ)
    sys.argv = [options.program] + options.arguments
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        return 0
    sys.path[0] = os.path.dirname(os.path.abspath(options.program))
    runpy.run_path(options.program, run_name="__main__")
    return 0
