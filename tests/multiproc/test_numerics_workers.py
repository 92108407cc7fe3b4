"""Training by several worker processes computes what plain TensorFlow computes on the same global batch."""

import pytest

from tests.helpers import zoo_checks
from tests.helpers.zoo_results import Layout

pytestmark = pytest.mark.each_line  # zoo_checks.cases says which of them need not


@pytest.mark.parametrize("layout, case", zoo_checks.cases(Layout(2, 1), rare=[Layout(2, 2)], half=1))
@pytest.mark.timeout(1200)  # the first test of a layout runs all of them
def test_equals_one_device(zoo_runs, layout, case):
    zoo_checks.check_case(zoo_runs, layout, case)
