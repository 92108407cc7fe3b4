"""optimizer.lamb and optimizer.lars train by the papers' formulae on the gradients of the global batch."""

import re

import pytest

from tests.helpers.checks import assert_same_training, pairs
from tests.helpers.programs.optimizers import CONFIG

PROGRAMS = "tests.helpers.programs.optimizers:"


@pytest.mark.parametrize("kind", sorted(CONFIG))
def test_on_two_devices_of_a_worker(plain, two_devices, kind):
    assert_same_training(two_devices(PROGRAMS + "train", kind), plain(PROGRAMS + "train", kind))


@pytest.mark.each_line
@pytest.mark.parametrize("kind, workers", [("lamb", 2), ("lars", 2), ("lamb", 4), ("lars", 4)])
def test_on_several_workers(plain, jobs, kind, workers):
    want = plain(PROGRAMS + "train", kind)
    for got in jobs[workers, 1](PROGRAMS + "train", kind):
        assert_same_training(got, want)


@pytest.mark.each_line
@pytest.mark.parametrize("kind", ["lamb", "lars"])
def test_training_goes_on_from_a_checkpoint(plain, two_workers, tmp_path, kind):
    want, path = plain(PROGRAMS + "train", kind), str(tmp_path / "model")
    first = two_workers(PROGRAMS + "train", kind, None, 0, 10, None, path)
    second = two_workers(PROGRAMS + "train", kind, None, 10, 20, path)
    for one, other in pairs(first, second):
        assert_same_training({key: one[key] + other[key] for key in want}, want)


@pytest.mark.parametrize(
    "kind, text",
    [
        ("nesterov", r"optimizer.lars=True cannot replace tf.train.MomentumOptimizer\(use_nesterov=True\)"),
        ("descent", "but the program trains with .*GradientDescentOptimizer"),
        ("derived", "but the program trains with .*MyAdam"),
        ("by hand", "the program assigns what it makes of gradients to variables itself, 'hidden/"),
    ],
)
def test_other_optimizers_are_refused_by_name(two_devices, kind, text):
    message = two_devices(PROGRAMS + "refused", kind)
    assert message is not None
    assert re.search(text, message), message
