"""`python -m epl.calibrate`: measures what this machine can do, and keeps it for plans."""

import argparse
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow comes

from epl.calibrate.calibration import calibrate, table  # noqa: E402
from epl.cluster.fingerprint import machine_file  # noqa: E402
from epl.cluster.machine import write  # noqa: E402
from epl.errors import EplError  # noqa: E402


def main(argv=None):
    """Returns the exit status: 0; 2 where nothing could be measured or written."""
    command = argparse.ArgumentParser(
        prog="python -m epl.calibrate",
        description="Measures in some 15 s what this machine can do, and keeps it where `python -m epl.plan --search` "
        'and cluster.machine="measured" find it. Run it while nothing else computes.',
    )
    command.add_argument(
        "--output", metavar="FILE", help="a name.yaml or name.json (default: a file for this hardware in ~/.cache/epl)"
    )
    command.add_argument("--no_links", action="store_true", help="start no workers; links between them are assumed")
    options = command.parse_args(argv)
    path = options.output or machine_file()
    if not path.endswith((".yaml", ".yml", ".json")):
        command.error("--output %s: the name has to end in .yaml or .json" % path)
    began = time.monotonic()
    try:
        machine = calibrate(not options.no_links)
    except EplError as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return 2
    print(table(machine))
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write(machine, path)
    except OSError as error:
        print("%s cannot be written: %s" % (path, error.strerror), file=sys.stderr)
        return 2
    print("Measured in %.0f s, and kept in %s" % (time.monotonic() - began, path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
