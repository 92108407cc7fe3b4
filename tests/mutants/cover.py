"""Which lines of EPL each unit test runs in its own process, and how long it takes.

Kept in a folder: for each test file a file of JSON, {"digest": of the test file, "tests": {test: {"seconds": seconds,
"ran": {"epl/plan/exchange/order.py:settle": lines}}}}. Lines are the bits of a number in hexadecimal digits, counted
from the function's first, so that most of it stays true when other functions change. Tests that fail are not in it.
"""

import ast
import collections
import hashlib
import json
import os
import sys
import threading
import time


class Traced(object):
    """A plugin of pytest: what tests run.

    Args:
      root: the repository.
      paths: the files of which it is written down, from there.
    """

    def __init__(self, root, paths):
        self._paths = {os.path.join(root, path): path for path in paths}
        self._scopes = {}
        self.tests = {}

    def pytest_runtest_logreport(self, report):
        if not report.passed:
            self.tests.pop(report.nodeid, None)

    def run(self, items, run_one):
        """Calls run_one(item, next item) for each and fills `tests`."""
        for item, following in zip(items, list(items[1:]) + [None]):
            lines = {path: set() for path in self._paths}
            follow = _following(lines)
            self.tests[item.nodeid] = found = {}
            began = time.perf_counter()
            sys.settrace(follow)
            threading.settrace(follow)
            try:
                run_one(item, following)
            finally:
                sys.settrace(None)
                threading.settrace(None)
            found["seconds"] = round(time.perf_counter() - began, 2)
            found["ran"] = self._ran(lines)

    def _ran(self, lines):
        masks = collections.Counter()
        for path, seen in lines.items():
            if seen:
                if path not in self._scopes:
                    with open(path, "rb") as file:
                        self._scopes[path] = scopes(file.read())
                for line in seen:
                    function, first = self._scopes[path][line]
                    masks["%s:%s" % (self._paths[path], function)] |= 1 << (line - first)
        return {function: "%x" % mask for function, mask in sorted(masks.items())}


def _following(lines):
    """A function for sys.settrace that adds the numbers of lines that run to {file: set}."""

    def into(seen):
        def local(frame, event, _):
            if event == "line":
                seen.add(frame.f_lineno)
            return local

        return local

    found = {path: into(seen) for path, seen in lines.items()}
    return lambda frame, event, _: found.get(frame.f_code.co_filename)


def scopes(source):
    """For each line of a file's bytes (from 1 on): qualified name and first line of the function that it is in."""
    found = [("", 1)] * (len(source.splitlines()) + 2)

    def walk(node, scope):
        for child in ast.iter_child_nodes(node):
            inside = scope + (child.name,) if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else scope
            if isinstance(child, ast.FunctionDef):
                count = child.end_lineno + 1 - child.lineno
                found[child.lineno : child.end_lineno + 1] = [(".".join(inside), child.lineno)] * count
            walk(child, inside)

    walk(ast.parse(source), ())
    return found


class Cover(object):
    """What is kept, of all test files.

    Args:
      folder: where; made if it is missing.
      root: the repository.
    """

    def __init__(self, folder, root):
        self._folder, self._root = folder, root
        self._by_function = collections.defaultdict(list)  # function -> [(test, mask)]
        self.seconds = {}
        os.makedirs(folder, exist_ok=True)

    def missing(self, files):
        """Those of the test files of which nothing is kept, or of another state of it."""
        return [file for file in files if self._read(file) is None]

    def keep(self, file, tests):
        with open(self._at(file) + ".new", "w") as out:
            json.dump({"digest": self._digest(file), "tests": tests}, out)
        os.replace(self._at(file) + ".new", self._at(file))

    def load(self, files):
        for file in files:
            for test, known in sorted(self._read(file)["tests"].items()):
                self.seconds[test] = known["seconds"]
                for function, mask in known["ran"].items():
                    self._by_function[function].append((test, int(mask, 16)))

    def tests_of(self, path, function, offset=None):
        """Tests that run a line of a function; without `offset`, that run any."""
        found = self._by_function.get("%s:%s" % (path, function), ())
        return [test for test, mask in found if offset is None or mask >> offset & 1]

    def leave_out(self, test):
        self.seconds.pop(test, None)
        for function, found in self._by_function.items():
            self._by_function[function] = [pair for pair in found if pair[0] != test]

    def functions(self):
        return list(self._by_function)

    def _at(self, file):
        return os.path.join(self._folder, file.replace("/", ".") + ".json")

    def _digest(self, file):
        with open(os.path.join(self._root, file), "rb") as source:
            return hashlib.sha1(source.read()).hexdigest()

    def _read(self, file):
        if not os.path.exists(self._at(file)):
            return None
        with open(self._at(file)) as kept:
            found = json.load(kept)
        return found if found["digest"] == self._digest(file) else None
