"""Comparisons that several tests share."""

import numpy as np

from tests.helpers import on_gpus

RTOL = 1e-5
ATOL = 1e-6  # of the largest magnitude of the array, see assert_same
# They add up in an order of their own, which the shape of a matrix decides; it may tip the rounding to 16 bits.
ATOL_ON_GPUS = 1e-4


def assert_same(got, want, rtol=RTOL, atol=ATOL, what=""):
    """Every number of `got` is that of `want` but for rtol of itself and atol of the array's largest magnitude.

    The second part is for entries that are small differences of large terms: their rounding error is that of the terms.
    """
    got, want = np.asarray(got), np.asarray(want)
    if on_gpus.wanted():
        atol = max(atol, ATOL_ON_GPUS)
    assert_numbers(got, what)
    assert_numbers(want, what)
    assert got.shape == want.shape, "%s: shape %s, expected %s" % (what, got.shape, want.shape)
    assert got.dtype == want.dtype, "%s: %s, expected %s" % (what, got.dtype, want.dtype)
    if want.size:
        largest = float(np.max(np.abs(want.astype(np.float64))))
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol * largest, err_msg=what
        )


def assert_numbers(values, what=""):
    """Every one is a finite number: what is none would be equal to itself, and everything else near to it."""
    if np.issubdtype(values.dtype, np.inexact):
        wrong = np.argwhere(~np.isfinite(values))
        assert not len(wrong), "%s: %s at %s" % (what, values[tuple(wrong[0])], wrong[0].tolist())


def pairs(*sequences):
    """(got, want) of each, or more in a row; `zip` would leave out what one of them has more."""
    sequences = [list(each) for each in sequences]
    lengths = [len(each) for each in sequences]
    assert len(set(lengths)) == 1, "different numbers of things to compare: %s" % lengths
    return list(zip(*sequences))


def assert_same_state(got, want, rtol=RTOL, atol=ATOL):
    """The same variables with the same values."""
    assert set(got) == set(want)
    for name in sorted(want):
        assert_same(got[name], want[name], rtol, atol, name)


def assert_same_training(got, want, rtol=RTOL, atol=ATOL):
    """The same losses, and the same variables after each step; and something was learnt."""
    assert len(set(float(loss) for loss in want["losses"])) == len(want["losses"])
    assert_same(got["losses"], want["losses"], rtol, atol, "losses")
    for step, (one, other) in enumerate(pairs(got["states"], want["states"])):
        assert set(one) == set(other)
        for name in sorted(other):
            assert_same(one[name], other[name], rtol, atol, "%s after step %d" % (name, step))


def assert_same_fit(got, want):
    """The same history, evaluation, predictions and weights of a Keras model."""
    assert set(got["history"]) == set(want["history"])
    for key in want["history"]:
        assert_same(got["history"][key], want["history"][key], what=key)
    assert_same(got["numbers"], want["numbers"], what="numbers")
    assert_same(got["predictions"], want["predictions"], what="predictions")
    for index, (weight, wanted) in enumerate(pairs(got["weights"], want["weights"])):
        assert_same(weight, wanted, what="weight %d" % index)


def differs(got, want, by):
    """Whether some variable of the last state is off by more than `by` of its largest magnitude."""
    return any(
        not np.max(np.abs(got["states"][-1][name] - value)) <= by * np.max(np.abs(value))
        for name, value in want["states"][-1].items()
        if np.issubdtype(value.dtype, np.floating)
    )
