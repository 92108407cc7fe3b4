"""How the cases of tests are divided over the TensorFlow lines."""

import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.helpers.line_shares import share_of
from tests.helpers.processes import REPOSITORY, clean_environment

pytestmark = pytest.mark.once

CASES = st.integers(1, 3).flatmap(
    lambda parameters: st.lists(st.tuples(*[st.integers(0, 5)] * parameters), min_size=1, max_size=30, unique=True)
)


@hypothesis.given(CASES)
def test_every_case_runs_on_one_line_and_each_line_runs_some(cases):
    first, second = share_of(cases, 0), share_of(cases, 1)
    assert first and second and sorted(first) == first and sorted(second) == second
    if len(cases) == 1:
        assert first == second == [0]
    else:
        assert sorted(first + second) == list(range(len(cases)))


@hypothesis.given(st.integers(2, 5), st.integers(2, 5))
def test_every_value_of_a_product_runs_on_both_lines(rows, columns):
    cases = [(row, column) for row in range(rows) for column in range(columns)]
    for line in range(2):
        here = [cases[place] for place in share_of(cases, line)]
        assert {row for row, _ in here} == set(range(rows)) and {column for _, column in here} == set(range(columns))
    few = len(share_of(cases, 0))
    assert len(cases) <= 4 * few and 2 * few <= len(cases) + 1


@pytest.mark.parametrize("count, few", [(2, [0]), (3, [0]), (7, [0, 3, 6])])
def test_the_first_line_has_a_third_where_there_is_one_parameter(count, few):
    cases = [(value,) for value in range(count)]
    assert share_of(cases, 0) == few
    assert share_of(cases, 1) == sorted(set(range(count)).difference(few))


SCRIPT = """
import pytest

@pytest.mark.parametrize("size, name", [(1, "a"), (2, "b"), (3, "c")])
@pytest.mark.parametrize("shape", ["x", "y"])
def test_product(size, name, shape):
    pass

@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("shape", ["x", "y"])
def test_square(size, shape):
    pass

@pytest.mark.each_line
@pytest.mark.parametrize("size", [1, 2])
def test_each_line(size):
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.skipif(True, reason="not on this line")), 3])
def test_skipped(size):
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_one_left(size):
    pass

def test_alone():
    pass

@pytest.mark.each_line
def test_alone_on_each_line():
    pass

@pytest.mark.either_line
def test_slow():
    pass

@pytest.mark.either_line
def test_slow_as_well():
    pass
"""


def collected(folder, *options, kind="numerics"):
    path = folder / kind / "test_it.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT)
    config = ["-c", REPOSITORY + "/pytest.ini", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(path)] + config + list(options)
    output = subprocess.run(
        command, cwd=REPOSITORY, env=clean_environment(), stdout=subprocess.PIPE, universal_newlines=True, check=True
    ).stdout
    return [line.partition("::")[2] for line in output.splitlines() if "::" in line]


def test_what_pytest_collects(tmp_path):
    first, second = (collected(tmp_path, "--once", part) for part in ("unit", "rest"))
    assert len(set(first) | set(second)) == 6 + 4 + 2 + 3 + 1 + 4
    both = {"test_each_line[1]", "test_each_line[2]", "test_skipped[2]", "test_alone_on_each_line"}
    assert set(first) & set(second) == both
    # Each of the tests with one case is on one of the lines, as cases of one test would be.
    assert "test_alone" in first and "test_one_left[1]" in second
    product = {name for name in first if name.startswith("test_product")}
    assert product == {"test_product[x-1-a]", "test_product[x-3-c]", "test_product[y-2-b]"}
    assert {name for name in first if name.startswith("test_square")} == {"test_square[x-1]", "test_square[y-2]"}


def test_unit_tests_with_one_case_run_on_both_lines_unless_they_are_dear(tmp_path):
    first, second = (collected(tmp_path, "--once", part, kind="unit") for part in ("unit", "rest"))
    assert {"test_alone", "test_one_left[1]"} <= set(first) & set(second)
    assert ("test_slow" in first) != ("test_slow" in second) != ("test_slow_as_well" in second)
