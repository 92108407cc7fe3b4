"""Training on several devices of one process computes what plain TensorFlow computes on the same global batch."""

import pytest

from tests.helpers import zoo, zoo_checks, zoo_results


@pytest.mark.parametrize("layout", [zoo_results.Layout(1, 2), zoo_results.Layout(1, 4)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("case", zoo.CASES)
@pytest.mark.timeout(900)  # the first test of a layout runs all of them
def test_equals_one_device(zoo_runs, layout, case):
    zoo_checks.check_case(zoo_runs, layout, case)


@pytest.mark.parametrize("case", zoo.CASES)
@pytest.mark.timeout(600)
def test_reference_trains(zoo_runs, case):
    zoo_checks.check_reference(zoo_runs, case)
