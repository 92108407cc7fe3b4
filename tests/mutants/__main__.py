"""python -m tests.mutants: plants faults one at a time, runs tests of what is changed, names what nobody finds."""

import argparse
import collections
import os
import sys

import hypothesis
import pytest

from tests.helpers.processes import REPOSITORY
from tests.mutants import equivalent, faults, planting
from tests.mutants.cover import Cover, Traced, scopes
from tests.mutants.forked import BROKEN, Children, FirstFailure
from tests.mutants.users import Users

FOLDERS = ("epl/plan", "epl/partition", "epl/passes")
FOUND, SURVIVED, NOT_RUN, EQUIVALENT = "found", "survived", "no test runs it", "equivalent"
EQUIVALENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "equivalent.txt")
# Tests that look at what the files of the repository are, which stay as they are.
_LEFT_OUT = ("test_scripts.py", "test_package.py", "test_imports.py", "test_mutants.py")
_LIMIT_S, _TIMES = 60.0, 5  # of a child: this, and so many times as long as its tests took


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition(": ")[2])
    parser.add_argument("--count", type=int, default=200, help="how many faults are planted (default 200); 0: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    parser.add_argument("--done", default="build/mutants/done.txt", help="what is known; those in it are left out")
    parser.add_argument("--cover", default="build/mutants/cover", help="which tests run what; made where it is missing")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each fault, at the most (default 120)")
    parser.add_argument("names", nargs="*", metavar="FAULT", help="these instead, by the beginnings of their names")
    options = parser.parse_args(arguments)
    os.chdir(REPOSITORY)
    everything = faults.chosen(REPOSITORY, FOLDERS, None)
    if options.names:
        wanted = [fault for fault in everything if fault.name.startswith(tuple(options.names))]
    else:
        wanted = everything[: options.count or None]
    none, past = equivalent.faults_of(equivalent.read(EQUIVALENTS), everything, source_of)
    for entry in past:
        print("%s lists what is no fault any more: %s\n    - %s\n    + %s" % ((EQUIVALENTS,) + entry[:3]))
    results = {} if options.names else read(options.done)
    results = {name: found for name, found in results.items() if found[0] == FOUND}
    results.update((fault.name, (EQUIVALENT, "")) for fault in wanted if fault.name in none)
    left = [fault for fault in wanted if fault.name not in results]
    print("%d faults of %d, %d of them known" % (len(wanted), len(everything), len(wanted) - len(left)))

    def work(session, at_import):
        for fault, outcome, what in Run(session, at_import, options).outcomes(left):
            results[fault.name] = outcome, what
            if outcome != FOUND:
                print("%s: %s" % (fault.name, outcome))
                print("    - %s\n    + %s" % fault.change_in(source_of(fault)), flush=True)
            if not options.names:
                with open(options.done, "a") as file:
                    file.write("%s\t%s\t%s\n" % (fault.name, outcome, what))

    if left:
        collected(work)
    return summed_up([(fault, results[fault.name][0]) for fault in wanted])


def source_of(fault):
    with open(os.path.join(REPOSITORY, fault.path), "rb") as file:
        return file.read()


def read(path):
    """{name: (outcome, the test that has found it)} of the file, if there is one."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return {name: (outcome, what) for name, outcome, what in lines}


def collected(work):
    """Collects the unit tests, with all that they import, and calls work(session, functions of EPL that ran then)."""
    options = ["-q", "-s", "-p", "no:cacheprovider", "--durations=0", "--durations-min=9999", "tests/unit"]
    plugin = _Collected(work)
    status = pytest.main(options + ["--ignore=tests/unit/" + each for each in _LEFT_OUT], plugins=[plugin])
    if plugin.error is not None:
        raise plugin.error
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit("the unit tests could not be collected: pytest ended with status %d" % status)


class _Collected(object):
    """A plugin of pytest that does something else than to run what was collected."""

    def __init__(self, work):
        self._work, self._codes = work, set()
        self._places = tuple(os.path.join(REPOSITORY, folder) + os.sep for folder in FOLDERS)
        self.error = None

    def pytest_collection(self, session):
        same, phases = hypothesis.settings.get_profile("same"), hypothesis.Phase
        # To make an example small would take longer than all the rest.
        quick = hypothesis.settings(same, phases=(phases.explicit, phases.generate))
        hypothesis.settings.register_profile("mutants", quick)
        hypothesis.settings.load_profile("mutants")
        sys.setprofile(self._called)

    def _called(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(self._places):
            self._codes.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def pytest_runtestloop(self, session):
        sys.setprofile(None)
        paths, lines = sorted({path for path, _ in self._codes}), {}
        for path in paths:
            with open(path, "rb") as file:
                lines[path] = scopes(file.read())
        names = {(os.path.relpath(path, REPOSITORY), lines[path][line][0]) for path, line in self._codes}
        try:
            self._work(session, names)
        except Exception as error:  # raised when pytest has ended
            self.error = error
        return True


class Run(object):
    """Runs tests in forks of this process.

    Args:
      session: of pytest, with all tests.
      at_import: (path, function) of what has run when EPL was imported.
      options: of the command line: jobs, cover, seconds.
    """

    def __init__(self, session, at_import, options):
        self._session, self._at_import, self._options = session, at_import, options
        self._items = {item.nodeid: item for item in session.items}
        self._by_file = collections.defaultdict(list)
        for item in session.items:
            self._by_file[item.nodeid.partition("::")[0]].append(item)
        self._paths = sorted({fault.path for fault in faults.chosen(REPOSITORY, FOLDERS, None)})
        self._functions = planting.functions_under(REPOSITORY, FOLDERS)
        self._users = Users(REPOSITORY, self._paths)
        self._cover = Cover(options.cover, REPOSITORY)
        self._good = set()  # tests of which it is known that they pass as long as there is no fault

    def outcomes(self, wanted):
        """Yields (fault, outcome, test that has found it) as they come."""
        self._make_cover()
        waiting, again = collections.deque(wanted), {}
        with Children() as children:
            while waiting or len(children):
                while waiting and len(children) < self._options.jobs:
                    fault = waiting.popleft()
                    tests = self._tests_for(fault)
                    if tests:
                        self._start(children, fault, tests)
                    else:
                        yield fault, NOT_RUN, ""
                if not len(children):
                    continue
                ended = children.wait()
                (kind, fault), failed = ended.key, ended.failed
                if ended.status == BROKEN:
                    raise RuntimeError("%s:\n%s" % (fault.name, ended.log))
                if kind == "good":
                    failed = again.pop(fault.name)
                    if ended.status == 0:
                        self._good.add(failed)
                        yield fault, FOUND, failed
                    else:
                        print("%s fails without any fault; it is left out" % failed, flush=True)
                        self._cover.leave_out(failed)
                        waiting.appendleft(fault)
                elif ended.status == 0:
                    yield fault, SURVIVED, ""
                elif not failed or failed in self._good or failed not in self._items:
                    yield fault, FOUND, failed or ("took too long" if ended.status is None else "ended the process")
                else:
                    again[fault.name] = failed
                    self._start_good(children, fault, failed)

    def _make_cover(self):
        missing = collections.deque(self._cover.missing(self._by_file))
        if missing:
            print("which lines the tests of %d files run is found out first" % len(missing), flush=True)
        with Children() as children:
            while missing or len(children):
                while missing and len(children) < self._options.jobs:
                    file = missing.popleft()
                    children.start(file, lambda _, file=file: self._trace(file), 3600)
                ended = children.wait()
                if ended.status != 0:
                    raise RuntimeError(
                        "the tests of %s ended with status %s:\n%s" % (ended.key, ended.status, ended.log)
                    )
        self._cover.load(self._by_file)

    def _trace(self, file):
        traced = Traced(REPOSITORY, self._paths)
        self._session.config.pluginmanager.register(traced)
        traced.run(self._by_file[file], _run_one)
        self._cover.keep(file, traced.tests)
        return 0

    def _tests_for(self, fault):
        """Tests that run the line, quick ones of every file that has some, as long as they take so many seconds."""
        function, first = scopes(source_of(fault))[fault.line]
        tests = []
        if function:
            tests = self._cover.tests_of(fault.path, function, fault.line - first)
            tests = tests or self._cover.tests_of(fault.path, function)
        else:
            for path, user in self._users.of(fault.path, fault.line):
                tests.extend(self._cover.tests_of(path, user))
            if not tests:
                own = [each.partition(":") for each in self._cover.functions()]
                tests = [
                    test for path, _, each in own if path == fault.path for test in self._cover.tests_of(path, each)
                ]
        return in_turns(dict.fromkeys(tests), self._cover.seconds, fault.path, self._options.seconds)

    def _start(self, children, fault, tests):
        function, _ = scopes(source_of(fault))[fault.line]
        inside = fault.inside and (fault.path, function) not in self._at_import
        work = self._planted if inside else self._imported
        limit_s = _LIMIT_S + _TIMES * sum(self._cover.seconds[test] for test in tests)
        children.start(("fault", fault), lambda failed: work(fault, tests, failed), limit_s)

    def _start_good(self, children, fault, test):
        limit_s = _LIMIT_S + _TIMES * self._cover.seconds.get(test, 0)
        children.start(("good", fault), lambda failed: self._run([test], failed), limit_s)

    def _planted(self, fault, tests, failed):
        source = source_of(fault)
        path = os.path.join(REPOSITORY, fault.path)
        try:
            planting.plant(path, source, fault.planted_in(source), self._functions)
        except planting.NotAlive:
            return self._imported(fault, tests, failed)
        return self._run(tests, failed)

    def _imported(self, fault, tests, failed):
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutants.fresh", fault.name, failed] + tests)

    def _run(self, tests, failed):
        """1 as soon as one of them fails, else 0."""
        self._session.config.pluginmanager.register(FirstFailure(failed))
        items = [self._items[test] for test in tests]
        for item, following in zip(items, items[1:] + [None]):
            _run_one(item, following)
            if self._session.testsfailed:
                return 1
        return 0


def _run_one(item, following):
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def in_turns(tests, seconds, path, limit_s):
    """Tests in the order in which they are tried, as many as take `limit_s` together, but one at least.

    Three from each file in turn, quick ones first; files that are named after the module before those that test much
    else.
    """
    stem = os.path.splitext(os.path.basename(path))[0]
    files = collections.defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        files[test.partition("::")[0]].append(test)
    order = sorted(files, key=lambda file: (stem not in file, len(files[file]), file))
    result, spent = [], 0.0
    while any(files.values()):
        for file in order:
            for test in files[file][:3]:
                if not result or spent + seconds[test] <= limit_s:
                    result.append(test)
                    spent += seconds[test]
            del files[file][:3]
    return result


def summed_up(results):
    """Prints the score and who survived; the exit status."""
    counts = collections.Counter(outcome for _, outcome in results)
    for fault, outcome in sorted(results):
        if outcome not in (FOUND, EQUIVALENT):
            print("%s\t%s" % (fault.name, outcome))
    real = len(results) - counts[EQUIVALENT]
    share = counts[FOUND] / max(real, 1)
    print("%d of %d faults are found: %.1f %%" % (counts[FOUND], real, 100 * share))
    print("%d more are equivalent to what stands there" % counts[EQUIVALENT])
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
