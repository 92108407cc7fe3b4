"""Runs that change variables and do not communicate: the copies stay the same, whichever worker makes them."""

import pytest

from tests.helpers.checks import assert_same_state

ASSIGNED = "tests.helpers.programs.state:assigned"


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("on", [(0, 1), (0,)])
def test_the_chief_changes_variables(plain, two_by_two, before, on):
    """With before=0 the copies have no values yet when the first such run comes."""
    want, state = plain(ASSIGNED, before, (0,))
    for (rate, _), got in two_by_two(ASSIGNED, before, on):
        assert rate == want[0] == 0.5
        assert_same_state(
            {k: v for k, v in got.items() if k != "counter"}, {k: v for k, v in state.items() if k != "counter"}
        )


def test_another_worker_changes_variables(plain, two_by_two):
    """The chief's values count."""
    want, state = plain(ASSIGNED, 1, ())
    results = two_by_two(ASSIGNED, 1, (1,))
    for (rate, counter), got in results:
        assert rate == want[0] and counter == want[1] == 1
        assert_same_state(got, state)
