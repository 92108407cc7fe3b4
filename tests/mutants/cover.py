"""A plugin of pytest that writes down which functions of EPL each test calls in its own process, and how long it takes.

    python -m pytest -p tests.mutants.cover --cover-file FILE tests/unit

The file is JSON: {"seconds": {test: seconds}, "functions": {"epl/plan/exchange/order.py:settle": [tests]}}; tests that
fail are not in it. "epl/plan/exchange/order.py:" has all that call any function of the file.
"""

import ast
import collections
import json
import os
import sys
import time

import pytest


def pytest_addoption(parser):
    parser.addoption("--cover-file", help="where to write which functions of EPL each test calls")


def pytest_configure(config):
    if config.getoption("--cover-file"):
        config.pluginmanager.register(_Cover(str(config.rootdir), config.getoption("--cover-file")))


class _Cover(object):
    def __init__(self, root, path):
        self._root, self._path = os.path.join(root, "epl") + os.sep, path
        self._names = {}  # code -> the function's name, None for what is no function of EPL
        self._lines = {}  # file -> {first line: qualified name}
        self._seconds, self._tests = {}, collections.defaultdict(list)
        self._failed = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        seen, began = set(), time.perf_counter()

        def called(frame, event, _):
            if event == "call":
                seen.add(frame.f_code)

        sys.setprofile(called)
        yield
        sys.setprofile(None)
        self._seconds[item.nodeid] = time.perf_counter() - began
        for name in sorted({name for name in map(self._name, seen) if name is not None}):
            self._tests[name].append(item.nodeid)

    def pytest_runtest_logreport(self, report):
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        files = collections.defaultdict(dict)
        for name, tests in self._tests.items():
            files[name.partition(":")[0] + ":"].update(dict.fromkeys(tests))
        self._tests.update((name, list(tests)) for name, tests in files.items())
        functions = {n: [t for t in tests if t not in self._failed] for n, tests in sorted(self._tests.items())}
        seconds = {test: round(took, 2) for test, took in self._seconds.items() if test not in self._failed}
        with open(self._path, "w") as file:
            json.dump({"seconds": seconds, "functions": functions}, file)

    def _name(self, code):
        if code not in self._names:
            self._names[code] = None
            if code.co_filename.startswith(self._root):
                path = os.path.join("epl", code.co_filename[len(self._root) :])
                function = self._functions(code.co_filename).get(code.co_firstlineno)
                self._names[code] = "%s:%s" % (path, function) if function else None
        return self._names[code]

    def _functions(self, path):
        if path not in self._lines:
            with open(path, "rb") as file:
                self._lines[path] = dict(functions_of(ast.parse(file.read())))
        return self._lines[path]


def functions_of(tree, scope=()):
    """(first line, qualified name) of each function of a file, decorators included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inside = scope + (node.name,)
            if isinstance(node, ast.FunctionDef):
                yield min([node.lineno] + [each.lineno for each in node.decorator_list]), ".".join(inside)
            for pair in functions_of(node, inside):
                yield pair
        else:
            for pair in functions_of(node, scope):
                yield pair
