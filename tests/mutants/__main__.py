"""python -m tests.mutants: plants faults one at a time, runs tests of what is changed, names what nobody finds."""

import argparse
import collections
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading

from tests.helpers.processes import REPOSITORY, die_with_parent
from tests.mutants import faults

FOLDERS = ("epl/plan", "epl/partition", "epl/passes")
FOUND, SURVIVED, NOT_RUN = "found", "survived", "no test runs it"
_COPIED, _TESTS = ("epl", "tests", "pytest.ini"), ("tests/unit",)
# Tests that look at what the repository's files are, which a copy with links is not.
_LEFT_OUT = ("tests/unit/test_scripts.py", "tests/unit/test_package.py", "tests/unit/test_mutants.py")
# By pytest's exit statuses: tests that fail, and modules, or fixtures, that cannot be imported any more.
_FOUND_BY, _NO_TESTS = (1, 2, 4), 5


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition(": ")[2])
    parser.add_argument("--count", type=int, default=300, help="how many faults are planted (default 300); 0: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    parser.add_argument("--done", default="out/mutants.txt", help="what has been found; those in it are left out")
    parser.add_argument("--cover", default="out/cover.json", help="which tests call what; made where it is missing")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for each fault, at the most (default 30)")
    parser.add_argument("--show", action="store_true", help="show each fault that survives")
    parser.add_argument("names", nargs="*", metavar="FAULT", help="these instead, by the beginnings of their names")
    options = parser.parse_args(arguments)
    for path in (options.done, options.cover):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    everything = faults.chosen(REPOSITORY, FOLDERS, None)
    if options.names:
        wanted = [fault for fault in everything if fault.name.startswith(tuple(options.names))]
    else:
        wanted = everything[: options.count or None]
    folder = tempfile.mkdtemp(prefix="mutants")
    try:
        if not os.path.exists(options.cover):
            make_cover(copy_of(REPOSITORY, os.path.join(folder, "cover")), options.cover)
        with open(options.cover) as file:
            cover = json.load(file)
        results = {} if options.names else read(options.done)
        left = [fault for fault in wanted if fault.name not in results]
        print("%d faults of %d, %d of them planted before" % (len(wanted), len(everything), len(wanted) - len(left)))
        for fault, outcome in planted(left, cover, options, folder):
            results[fault.name] = outcome
            if outcome != FOUND:
                print("%s (line %d): %s" % (fault.name, fault.line, outcome), flush=True)
                if options.show:
                    print("    " + shown(fault).replace("\n", "\n    "), flush=True)
            if not options.names:
                with open(options.done, "a") as file:
                    file.write("%s\t%s\n" % (fault.name, outcome))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return summed_up([(fault, results[fault.name]) for fault in wanted])


def copy_of(root, folder):
    """A folder with copies of what is changed or runs, and links to the rest of the repository."""
    os.makedirs(folder)
    for name in os.listdir(root):
        source, target = os.path.join(root, name), os.path.join(folder, name)
        if name not in _COPIED:
            os.symlink(source, target)
        elif os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)
    return folder


def make_cover(copy, path):
    """Runs the unit tests and writes down what they call."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.cover"]
    command += ["--cover-file", os.path.abspath(path)] + ["--ignore=" + each for each in _LEFT_OUT] + list(_TESTS)
    status = subprocess.run(command, cwd=copy, stdout=subprocess.DEVNULL).returncode
    if status not in (0, 1) or not os.path.exists(path):
        sys.exit("the tests that are to say what they call ended with status %d" % status)


def tests_for(fault, cover, seconds):
    """Tests that call the function, quick ones of every file that has some, as long as they take so many seconds."""
    names = [fault.path + ":" + fault.function, fault.path + ":" + fault.function.rpartition(".")[0], fault.path + ":"]
    found = next((cover["functions"][name] for name in names if cover["functions"].get(name)), [])
    stem = os.path.splitext(os.path.basename(fault.path))[0]
    files = collections.defaultdict(list)
    for test in sorted(found, key=cover["seconds"].__getitem__):
        files[test.partition("::")[0]].append(test)
    # First the files that are named after the module, then those that test little else.
    order = sorted(files, key=lambda file: (stem not in file, len(files[file])))
    result, spent = [], 0.0
    while any(files.values()):
        for file in order:
            for test in files[file][:3]:
                if not result or spent + cover["seconds"][test] <= seconds:
                    result.append(test)
                    spent += cover["seconds"][test]
            del files[file][:3]
    return result


def planted(wanted, cover, options, folder):
    """Yields (fault, outcome) as they come, of so many processes at a time."""
    waiting, results = queue.Queue(), queue.Queue()
    for fault in wanted:
        waiting.put(fault)

    def work(number):
        try:
            with Server(copy_of(REPOSITORY, os.path.join(folder, "copy_%d" % number))) as server:
                while True:
                    try:
                        fault = waiting.get_nowait()
                    except queue.Empty:
                        return
                    results.put((fault, server.outcome(fault, tests_for(fault, cover, options.seconds))))
        except Exception as error:  # the main thread raises it
            results.put((None, error))

    for number in range(options.jobs):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    for _ in wanted:
        fault, outcome = results.get()
        if fault is None:
            raise outcome
        yield fault, outcome


class Server(object):
    """Runs tests in a copy of the repository; see server.py."""

    _LIMIT_S = 300.0

    def __init__(self, copy):
        self._copy = copy
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(copy, "tests", "mutants", "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            universal_newlines=True,
            preexec_fn=die_with_parent,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(self._LIMIT_S)

    def outcome(self, fault, tests):
        """What comes of a fault: FOUND, SURVIVED or NOT_RUN."""
        if not tests:
            return NOT_RUN
        path = os.path.join(self._copy, fault.path)
        with open(path, "rb") as file:
            source = file.read()
        try:
            with open(path, "wb") as file:
                file.write(fault.planted_in(source))
            self._process.stdin.write(json.dumps({"tests": tests, "limit_s": self._LIMIT_S}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        finally:
            with open(path, "wb") as file:
                file.write(source)
        status = answer["status"]
        if status is not None and status < 128 and status not in (0, _NO_TESTS) + _FOUND_BY:
            raise RuntimeError("%s: pytest ended with status %d:\n%s" % (fault.name, status, answer["log"]))
        return SURVIVED if status in (0, _NO_TESTS) else FOUND


def shown(fault):
    """The lines that a fault changes, before and after."""
    with open(os.path.join(REPOSITORY, fault.path), "rb") as file:
        source = file.read()
    before = source.decode("utf-8").splitlines()
    after = fault.planted_in(source).decode("utf-8").splitlines()
    place = fault.line - 1
    return "- %s\n+ %s" % (before[place].strip(), after[place].strip())


def read(path):
    """{name: outcome} of the file, if there is one."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


def summed_up(results):
    """Prints the score and who survived; the exit status."""
    counts = collections.Counter(outcome for _, outcome in results)
    for fault, outcome in sorted(results):
        if outcome != FOUND:
            print("%s\t%s" % (fault.name, outcome))
    share = counts[FOUND] / max(len(results), 1)
    print("%d of %d faults are found: %.1f %%" % (counts[FOUND], len(results), 100 * share))
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
