"""The comparisons of tests/helpers/checks.py fail where they must."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same, assert_same_training, differs, pairs


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_equal_to_nothing(value):
    numbers, wrong = np.float32([1.0, 2.0]), np.float32([1.0, value])
    for got, want in ((wrong, wrong), (numbers, wrong), (wrong, numbers)):
        with pytest.raises(AssertionError):
            assert_same(got, want)
    assert_same(numbers, numbers)
    assert differs({"states": [{"v": wrong}]}, {"states": [{"v": numbers}]}, by=0.1)


def test_lengths_are_compared():
    state = {"v": np.ones(2, np.float32)}
    want = {"losses": np.float32([1, 2]), "states": [state, state]}
    assert_same_training(want, want)
    with pytest.raises(AssertionError):
        assert_same_training(dict(want, states=[state]), want)
    with pytest.raises(AssertionError):
        pairs([1], [1, 2])
