"""The loss scale by the book, in NumPy, and whether a training went by it."""

import numpy as np

SCALED = "tests.helpers.programs.loss_scale:"
BAD = (2, 3, 7, 8, 9, 10, 11, 12, 20)
OPTIONS = {
    "amp.init_loss_scale": 16.0,
    "amp.incr_every_n_steps": 3,
    "amp.decr_every_n_nan_or_inf": 2,
    "amp.incr_ratio": 4.0,
    "amp.decr_ratio": 0.25,
}


def by_the_book(steps, bad, first=(16.0, 0, 0), grow_every=3, shrink_every=2, grow=4.0, shrink=0.25):
    """[(scale, good steps, bad steps)] after each step."""
    scale, good, wrong = first
    found = []
    for number in steps:
        if number in bad:
            good, wrong = 0, wrong + 1
            if wrong == shrink_every:
                scale, wrong = max(1.0, float(np.float32(scale) * np.float32(shrink))), 0
        else:
            good, wrong = good + 1, 0
            if good == grow_every:
                scale, good = float(np.float32(scale) * np.float32(grow)), 0
        found.append((scale, good, wrong))
    return found


def check(found, steps, bad, first_step=0):
    """Whether the steps in `bad` were left out, whole, and no others."""
    done = first_step
    assert found["steps"][0] == done
    for place, number in enumerate(steps):
        before, after = found["states"][place : place + 2]
        done += number not in bad
        assert found["steps"][place + 1] == done, number
        same = {name: np.array_equal(before[name], after[name]) for name in before}
        assert len(same) > 3
        if number in bad:
            assert all(same.values()), (number, same)
        else:
            assert not any(value for name, value in same.items() if "net/" in name), (number, same)
