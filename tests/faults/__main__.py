"""Many faults in a row: python -m tests.faults [--count N] [--seed S] [INJECTION ...]."""

import argparse
import collections
import os
import shutil
import sys
import tempfile
from concurrent import futures

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
    parser.add_argument("--jobs", type=int, default=2, help="how many happen at a time (default 2)")
    parser.add_argument("--done", help="file of injections that have happened: they are left out, and new ones added")
    parser.add_argument("--keep", help="folder for the logs of what went wrong")
    parser.add_argument(
        "injections", nargs="*", metavar="INJECTION", help="these instead, such as %s" % str(table.ALL[0])
    )
    options = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(3), "little") if options.seed is None else options.seed
    chosen = [table.Injection.parse(text) for text in options.injections] or table.drawn(options.count, seed)
    done = _read(options.done)
    left = [each for each in chosen if str(each) not in done]
    if not options.injections:
        print("%d of %d injections, drawn with --seed %d" % (len(chosen), len(table.ALL), seed))
    if len(left) < len(chosen):
        print("%d of them are in %s already" % (len(chosen) - len(left), options.done))
    found = collections.Counter()
    with Template() as template, futures.ThreadPoolExecutor(options.jobs) as pool:
        template.start()
        running = [pool.submit(_one, template, injection, options.keep) for injection in left]
        try:
            for each in futures.as_completed(running):
                injection, outcome, wrong = each.result()
                _say(injection, outcome, wrong, options.done)
                found.update(kind for kind, _ in wrong)
                found["all"] += 1
                found["bad"] += bool(wrong)
        finally:  # after an error of this program no more of them begin
            for each in running:
                each.cancel()
    print("%d injections: %d as they should be" % (found["all"], found["all"] - found["bad"]))
    print("; ".join("%s: %d" % (kind, found[kind]) for kind in table.KINDS))
    return 1 if found["bad"] else 0


def _one(template, injection, keep):
    folder = tempfile.mkdtemp(prefix="fault")
    outcome = inject(template.python, injection, folder)
    wrong = problems(injection, outcome)
    if wrong and keep:
        shutil.rmtree(os.path.join(keep, str(injection)), ignore_errors=True)
        shutil.copytree(folder, os.path.join(keep, str(injection)))
    shutil.rmtree(folder, ignore_errors=True)  # a file of a process that was just killed may still come into being
    return injection, outcome, wrong


def _say(injection, outcome, wrong, done):
    what = "%-34s status %s after %.1f s, blamed %s" % (injection, outcome.status, outcome.seconds, outcome.blamed)
    print("\n    ".join([what] + ["%s: %s" % each for each in wrong]))
    sys.stdout.flush()
    if done:
        with open(done, "a") as file:
            file.write("%s %s\n" % (injection, ", ".join(kind for kind, _ in wrong) or "as it should be"))


def _read(done):
    """The injections that the file names, if there is one."""
    if done is None or not os.path.exists(done):
        return set()
    with open(done) as file:
        return {line.split()[0] for line in file}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
