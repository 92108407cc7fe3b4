"""Training by several worker processes computes what plain TensorFlow computes on the same global batch."""

import pytest

from tests.helpers import zoo, zoo_checks, zoo_results


@pytest.mark.parametrize("layout", [zoo_results.Layout(2, 1), zoo_results.Layout(2, 2)], ids=str)
@pytest.mark.parametrize("case", zoo.CASES)
@pytest.mark.timeout(1200)  # the first test of a layout runs all of them
def test_equals_one_device(zoo_runs, layout, case):
    zoo_checks.check_case(zoo_runs, layout, case)
