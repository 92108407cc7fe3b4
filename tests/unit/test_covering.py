"""Coverings of combinations: what they hold, and how small they are."""

import glob
import itertools
import os
import re
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.helpers.covering import covering, parametrize
from tests.helpers.processes import REPOSITORY, clean_environment

pytestmark = pytest.mark.once

COMBINATIONS = st.integers(1, 4).flatmap(
    lambda factors: st.lists(st.tuples(*[st.integers(0, 3)] * factors), min_size=1, max_size=30, unique=True)
)


def choices(combinations, strength):
    return {
        (where, tuple(each[position] for position in where))
        for each in combinations
        for where in itertools.combinations(range(len(each)), strength)
    }


@hypothesis.given(COMBINATIONS, st.data())
def test_nothing_that_goes_together_is_missing(combinations, data):
    strength = data.draw(st.integers(1, len(combinations[0])))
    kept = covering(combinations, strength)
    assert [each for each in combinations if each in kept] == kept
    assert choices(kept, strength) == choices(combinations, strength)
    assert covering(combinations, strength) == kept


def test_sizes():
    cube = list(itertools.product("abc", "de", "fgh"))
    assert len(covering(cube, 1)) == 3
    assert 9 <= len(covering(cube, 2)) <= 10  # 3 x 3 pairs of the largest factors at least
    assert covering(cube, 3) == cube
    assert covering([], 2) == []


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="strength 3 with 2 factors"):
        covering([(1, 2)], 3)
    with pytest.raises(ValueError, match="different numbers of options"):
        covering([(1, 2), (1,)], 1)


def test_all_combinations_are_parameters_and_few_of_them_run_twice():
    mark = parametrize("a, b", "xyz", (1, 2))
    found = {param.values: bool(param.marks) for param in mark.args[1]}
    assert sorted(found) == sorted(itertools.product("xyz", (1, 2)))
    assert choices([values for values, once in found.items() if not once], 1) == choices(found, 1)
    assert sum(found.values()) == 3


# Collects the modules given as arguments where TensorFlow cannot be imported.
COLLECT = """
import sys
import pytest
sys.modules["tensorflow"] = None
sys.exit(pytest.main(["--collect-only", "-q"] + sys.argv[1:]))
"""


def test_whole_modules_that_run_once_do_without_tensorflow():
    """What such a module tests cannot differ between the lines for a reason that TensorFlow has."""
    found = []
    for path in sorted(glob.glob(os.path.join(REPOSITORY, "tests", "*", "test_*.py"))):
        with open(path, encoding="utf-8") as module:
            if re.search(r"^pytestmark = .*\bonce\b", module.read(), re.MULTILINE):
                found.append(path)
    assert __file__ in found and len(found) > 10
    result = subprocess.run(
        [sys.executable, "-c", COLLECT] + found,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        cwd=REPOSITORY,
        env=clean_environment(),
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
