"""The faults that `python -m tests.mutants` plants, and which tests it runs for each."""

import ast
import os
import sys
import time

import pytest

from tests.helpers.processes import REPOSITORY
from tests.mutants import __main__ as mutants
from tests.mutants import cover, equivalent, faults, forked, planting, users

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


def test_lines_are_known_by_the_function_that_they_are_in():
    text = b"@decorated\ndef one():\n    def inner():\n        pass\n\nclass A:\n    def two(self):\n        pass\n"
    found = cover.scopes(text)
    assert found[1] == found[6] == ("", 1) and found[2] == ("one", 2)
    assert found[3:5] == [("one.inner", 3)] * 2 and found[7:9] == [("A.two", 7)] * 2


def test_which_lines_run_is_kept_until_the_tests_change(tmp_path):
    (tmp_path / "one.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    (tmp_path / "test_one.py").write_text("")
    module = {}
    exec(compile((tmp_path / "one.py").read_text(), str(tmp_path / "one.py"), "exec"), module)
    traced = cover.Traced(str(tmp_path), ["one.py"])
    item = type("Item", (), {"nodeid": "test_one.py::test"})
    traced.run([item], lambda *_: module["f"](0))
    kept = cover.Cover(str(tmp_path / "kept"), str(tmp_path))
    assert kept.missing(["test_one.py"]) == ["test_one.py"]
    kept.keep("test_one.py", traced.tests)
    assert kept.missing(["test_one.py"]) == []
    kept.load(["test_one.py"])
    ran = [line for line in range(4) if kept.tests_of("one.py", "f", line)]
    assert ran == [1, 3] and kept.tests_of("one.py", "f") == ["test_one.py::test"]
    (tmp_path / "test_one.py").write_text("# another\n")
    assert kept.missing(["test_one.py"]) == ["test_one.py"]


def test_functions_that_are_there_get_the_fault(tmp_path):
    path, source = (
        tmp_path / "one.py",
        b"def make():\n    return lambda x: x + 1\n\n\ndef twice(x):\n    return 2 * x\n",
    )
    path.write_bytes(source)
    module = {}
    exec(compile(source, str(path), "exec", dont_inherit=True), module)
    made, twice = module["make"](), module["twice"]
    functions = planting.functions_under(str(tmp_path.parent), [tmp_path.name])
    (fault,) = [each for each in faults.faults_of("one.py", source) if each.name == "one.py:make:arithmetic:0"]
    assert fault.inside
    planting.plant(str(path), source, fault.planted_in(source), functions)
    assert (made(5), module["make"]()(5), twice(5)) == (4, 4, 10)
    with pytest.raises(planting.NotAlive):
        planting.plant(str(path), source, source + b"\nmore = 1\n", functions)


def test_children_end_by_their_time_and_say_which_test_failed():
    def fails(path):
        os.write(1, b"said\n")
        forked.FirstFailure(path).pytest_runtest_logreport(type("Report", (), {"failed": True, "nodeid": "one"}))
        return 1

    with forked.Children() as children:
        children.start("late", lambda _: time.sleep(1000), 0.2)
        assert children.wait()[:3] == ("late", None, "")
        children.start("fails", fails, 100)
        assert children.wait() == ("fails", 1, "one", "said\n")
        children.start("broken", lambda _: 1 // 0, 100)
        ended = children.wait()
        assert ended.status == forked.BROKEN and "ZeroDivisionError" in ended.log


def test_who_uses_a_constant():
    with open(os.path.join(REPOSITORY, "tests", "mutants", "__main__.py")) as file:
        line = next(number for number, text in enumerate(file, 1) if text.startswith("_LIMIT_S"))
    found = users.Users(REPOSITORY, ["tests/mutants/__main__.py"]).of("tests/mutants/__main__.py", line)
    assert found == [("tests/mutants/__main__.py", "Run._start"), ("tests/mutants/__main__.py", "Run._start_good")]


def test_which_tests_are_run():
    """Quick ones from each file, first of those named after the module."""
    seconds = {
        "tests/unit/test_order.py::a": 3.0,
        "tests/unit/test_other.py::b": 1.0,
        "tests/unit/test_other.py::c": 9.0,
    }
    path = "epl/plan/exchange/order.py"
    assert mutants.in_turns(sorted(seconds), seconds, path, 10) == list(seconds)[:2]
    assert mutants.in_turns(sorted(seconds), seconds, path, 100) == list(seconds)
    assert mutants.in_turns([], seconds, path, 100) == []


def test_faults_that_are_none(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(
        "# Words.\n\np.py:f\n- if a < b:\n+ if (a <= b):\nThey are\nnever equal.\n\np.py:f\n- old\n+ new\nWhy.\n"
    )
    first, past = entries = equivalent.read(str(path))
    assert first == ("p.py:f", "if a < b:", "if (a <= b):", "They are never equal.")
    source = b"def f(a, b):\n    if a < b:\n        return 1\n"
    found = equivalent.faults_of(entries, faults.faults_of("p.py", source), lambda _: source)
    assert found == ({"p.py:f:compare:0"}, [past])
    path.write_text("p.py:f\n- if a < b:\n")
    with pytest.raises(ValueError, match="a reason"):
        equivalent.read(str(path))


def test_the_list_is_of_this_code():
    everything = faults.chosen(REPOSITORY, mutants.FOLDERS, None)
    assert equivalent.faults_of(equivalent.read(mutants.EQUIVALENTS), everything, mutants.source_of)[1] == []


def test_the_score(capsys):
    one, other, third = (faults.Fault(name, "p", "f", 1, 0, 1, "", True) for name in ("one", "other", "third"))
    results = [(one, mutants.FOUND), (other, mutants.SURVIVED), (third, mutants.EQUIVALENT)]
    assert mutants.summed_up(results) == 1
    said = "other\tsurvived\n1 of 2 faults are found: 50.0 %\n1 more are equivalent to what stands there\n"
    assert capsys.readouterr().out == said
    assert mutants.summed_up(results[::2]) == 0
