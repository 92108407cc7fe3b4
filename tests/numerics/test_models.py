"""Training on several devices of one process computes what plain TensorFlow computes on the same global batch."""

import pytest

from tests.helpers import zoo_checks
from tests.helpers.zoo_results import Layout

pytestmark = pytest.mark.each_line  # zoo_checks.cases says which of them need not

CASES = zoo_checks.cases(Layout(1, 2), rare=[Layout(1, 4), Layout(1, 2, 2)], half=0)


@pytest.mark.parametrize("layout, case", CASES)
@pytest.mark.timeout(900)  # the first test of a layout runs all of them
def test_equals_one_device(zoo_runs, layout, case):
    zoo_checks.check_case(zoo_runs, layout, case)
