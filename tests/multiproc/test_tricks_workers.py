"""Training tricks of programs over two worker processes."""

from tests.helpers.tricks_checks import check


def test_tricks(plain, two_workers):
    check(plain, two_workers, ["warm_up", "clip_global", "look_ahead", "uncertainty", "wrapped"])
