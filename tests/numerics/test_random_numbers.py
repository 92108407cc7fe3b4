"""Copies of the model, and micro-batches, draw different random numbers from every kind of random operation."""

import itertools

import numpy as np
import pytest

from tests.helpers.checks import pairs

DRAWS = "tests.helpers.programs.random_numbers:draws"
KINDS = ["seeded", "keyed", "drawn", "records"]


def check_all_differ(steps, copies):
    """Every copy's numbers of every step are other ones."""
    assert steps[0].keys() == steps[1].keys() and steps[0]
    for name in steps[0]:
        for step in steps:
            assert len(step[name]) == copies, name
        rows = [row for step in steps for row in step[name]]
        for one, other in itertools.combinations(rows, 2):
            assert not np.array_equal(one, other), "%s: %r" % (name, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_draw_different_numbers(two_devices, tmp_path, kind):
    check_all_differ(two_devices(DRAWS, kind, str(tmp_path)), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_draw_different_numbers(two_devices, tmp_path, kind):
    config = {"pipeline.num_micro_batch": 2}
    check_all_differ(two_devices(DRAWS, kind, str(tmp_path), config=config), 4)


@pytest.mark.parametrize("kind", ["seeded", "keyed", "drawn"])
def test_the_first_copy_draws_what_one_device_draws(plain, two_devices, kind):
    for want, got in pairs(plain(DRAWS, kind), two_devices(DRAWS, kind)):
        assert want.keys() == got.keys()
        for name in want:
            np.testing.assert_array_equal(got[name][:1], want[name][:1], err_msg=name)
