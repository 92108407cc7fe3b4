"""The faults that `python -m tests.mutants` plants, and which tests it runs for each."""

import ast
import os
import sys

import pytest

from tests.helpers.processes import REPOSITORY
from tests.mutants import __main__ as mutants
from tests.mutants import cover, faults

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.version_info < (3, 9), reason="faults are planted with what Python 3.9 knows of its code"),
]

SOURCE = b"""
LIMIT = 3

class Plan(object):
    def sizes(self, names, more=False):
        found = []
        for name in sorted(names):
            if name in self.known and not more:
                continue
            found.append(len(name) + 1)
        assert found or not names
        return max(found)
"""
# What each of them makes of its line.
PLANTED = {
    "path.py::constant:0": "LIMIT = 4",
    "path.py:Plan.sizes:call:0": "for name in list(names):",
    "path.py:Plan.sizes:condition:0": "if not (name in self.known and (not more)):",
    "path.py:Plan.sizes:boolean:0": "if (name in self.known or not more):",
    "path.py:Plan.sizes:compare:0": "if (name not in self.known) and not more:",
    "path.py:Plan.sizes:not:0": "if name in self.known and more:",
    "path.py:Plan.sizes:continue:0": "break",
    "path.py:Plan.sizes:left_out:0": "pass",
    "path.py:Plan.sizes:arithmetic:0": "found.append((len(name) - 1))",
    "path.py:Plan.sizes:constant:0": "found.append(len(name) + 2)",
    "path.py:Plan.sizes:call:1": "return min(found)",
    "path.py:Plan.sizes:constant:1": "def sizes(self, names, more=True):",
}


def test_what_is_planted():
    found = {}
    for fault in faults.faults_of("path.py", SOURCE):
        text = fault.planted_in(SOURCE).decode()
        ast.parse(text)
        (changed,) = set(text.splitlines()) - set(SOURCE.decode().splitlines())
        found[fault.name] = changed.strip()
    assert found == PLANTED


def test_which_are_chosen_does_not_change_with_their_number():
    some, more = (faults.chosen(REPOSITORY, ["epl/plan"], count) for count in (20, 40))
    assert some == more[:20] and len({fault.name for fault in more}) == 40
    assert len({fault.path for fault in more}) > 10  # of all files
    for fault in some:
        with open(os.path.join(REPOSITORY, fault.path), "rb") as file:
            source = file.read()
        assert fault.planted_in(source) != source
        ast.parse(fault.planted_in(source))


def test_functions_are_known_by_their_first_line():
    text = "@decorated\ndef one():\n    def inner():\n        pass\n\nclass A:\n    def two(self):\n        pass\n"
    assert dict(cover.functions_of(ast.parse(text))) == {1: "one", 3: "one.inner", 7: "A.two"}


def test_which_tests_are_run():
    """Quick ones of those that call the function, from each file, first of those named after the module."""
    seconds = {
        "tests/unit/test_order.py::a": 3.0,
        "tests/unit/test_other.py::b": 1.0,
        "tests/unit/test_other.py::c": 9.0,
    }
    cover_ = {
        "seconds": seconds,
        "functions": {"epl/plan/exchange/order.py:settle": sorted(seconds), "epl/plan/exchange/order.py:": ["x"]},
    }
    fault = faults.Fault("n", "epl/plan/exchange/order.py", "settle", 1, 0, 1, "")
    assert mutants.tests_for(fault, cover_, 10) == ["tests/unit/test_order.py::a", "tests/unit/test_other.py::b"]
    assert mutants.tests_for(fault, cover_, 100) == list(seconds)
    assert mutants.tests_for(fault._replace(path="epl/plan/facts/unknown.py"), cover_, 100) == []


def test_the_score(capsys):
    one, other = (faults.Fault(name, "p", "f", 1, 0, 1, "") for name in ("one", "other"))
    assert mutants.summed_up([(one, mutants.FOUND), (other, mutants.SURVIVED)]) == 1
    assert capsys.readouterr().out == "other\tsurvived\n1 of 2 faults are found: 50.0 %\n"
    assert mutants.summed_up([(one, mutants.FOUND)]) == 0
