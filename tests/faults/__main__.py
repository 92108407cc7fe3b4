"""Many faults in a row: python -m tests.faults [--count N] [--seed S] [INJECTION ...]."""

import argparse
import collections
import os
import shutil
import sys
import tempfile

from tests.faults import table
from tests.faults.injection import inject, problems
from tests.helpers.forks import Template


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Injects faults into jobs of real processes and sums up what came of them.",
    )
    parser.add_argument("--count", type=int, default=40, help="how many are drawn from the table (default 40)")
    parser.add_argument("--seed", type=int, help="of what is drawn; printed, random if it is left out")
    parser.add_argument("--keep", help="folder for the logs of what went wrong")
    parser.add_argument(
        "injections", nargs="*", metavar="INJECTION", help="these instead, such as %s" % str(table.ALL[0])
    )
    options = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(3), "little") if options.seed is None else options.seed
    chosen = [table.Injection.parse(text) for text in options.injections] or table.drawn(options.count, seed)
    if not options.injections:
        print("%d of %d injections, drawn with --seed %d" % (len(chosen), len(table.ALL), seed))
    found = collections.Counter()
    with Template() as template:
        for injection in chosen:
            wrong = _one(template, injection, options.keep)
            found.update(kind for kind, _ in wrong)
            found["all"] += 1
            found["bad"] += bool(wrong)
    print("%d injections: %d as they should be" % (found["all"], found["all"] - found["bad"]))
    print("; ".join("%s: %d" % (kind, found[kind]) for kind in table.KINDS))
    return 1 if found["bad"] else 0


def _one(template, injection, keep):
    folder = tempfile.mkdtemp(prefix="fault")
    outcome = inject(template.python, injection, folder)
    wrong = problems(injection, outcome)
    print(
        "%-32s status %s after %.1f s, blamed %s%s"
        % (injection, outcome.status, outcome.seconds, outcome.blamed, "".join("\n    %s: %s" % each for each in wrong))
    )
    sys.stdout.flush()
    if wrong and keep:
        shutil.copytree(folder, os.path.join(keep, str(injection)))
    shutil.rmtree(folder)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
