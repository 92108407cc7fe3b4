"""The execution.* keys change no number by more than rounding."""

from tests.helpers.checks import assert_same_state, pairs

PROGRAMS = "tests.helpers.programs.local_sgd:"
CONFIG = {"execution.xla": True, "execution.num_threads": 1, "execution.inter_op_threads": 1}


def test_xla_and_threads(plain, two_devices):
    (want,), _ = plain(PROGRAMS + "simulate", 1, "momentum", [], steps=6)
    got, _ = two_devices(PROGRAMS + "train", CONFIG, "momentum", steps=6)
    for one, other in pairs(got["states"], want["states"]):
        assert_same_state(one, other)
