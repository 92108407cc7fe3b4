"""Training tricks of programs give the numbers of one device."""

import pytest

from epl import tf_compat
from tests.helpers.checks import assert_same_state, pairs
from tests.helpers.programs import tricks
from tests.helpers.tricks_checks import check

TRICKS = "tests.helpers.programs.tricks:"


def test_tricks(plain, jobs):
    check(plain, jobs[1, 2], tricks.COMMON)


@pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")
def test_contrib(plain, jobs):
    check(plain, jobs[1, 2], tricks.CONTRIB)


def test_gradients_that_the_program_adds_up(plain, two_devices):
    want, got = plain(TRICKS + "accumulated"), two_devices(TRICKS + "accumulated")
    for one, other in pairs(got, want):
        assert_same_state(one, other)


def test_sync_replicas_optimizer_is_refused_with_advice(two_devices):
    kind, message = two_devices(TRICKS + "refused")
    assert kind == "UnsupportedError" and "use the optimizer inside of it directly" in message
