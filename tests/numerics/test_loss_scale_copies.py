"""float16 with a loss scale: which steps are left out, and what is left of what in them, against NumPy."""

import numpy as np
import pytest

from tests.helpers.loss_scales import BAD, OPTIONS, SCALED, by_the_book, check
from tests.helpers.marks import needs_bfloat16

STEPS = range(24)


@pytest.mark.parametrize(
    "kind, resource, micro_batches, level",
    [
        ("adam", True, 1, "O1"),
        ("adam", False, 2, "O1"),
        ("clipped", False, 1, "O1"),
        ("two", True, 2, "O1"),
        ("adam", False, 1, "O2"),
        ("clipped", True, 2, "O2"),
        pytest.param("two", True, 1, "O2", marks=pytest.mark.exhaustive),
    ],
)
def test_two_devices(two_devices, kind, resource, micro_batches, level):
    config = dict(OPTIONS, **{"pipeline.num_micro_batch": micro_batches, "communication.check_replicas_every": 1})
    config["amp.level"] = level
    found = two_devices(SCALED + "train", (0, 24), BAD, kind, resource, config=config)
    check(found, STEPS, BAD)
    assert found["scales"] == by_the_book(STEPS, BAD)
    assert not np.isfinite([loss for number, loss in enumerate(found["losses"]) if number in BAD]).any()


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_gradients_in_16_bits_train_as_in_float32(two_devices, dtype):
    want = two_devices(SCALED + "train", (0, 50), (), config={"amp.level": "", "amp.dtype": "auto"})
    got = two_devices(SCALED + "train", (0, 50), (), config={"amp.level": "O2", "amp.dtype": dtype})
    assert got["steps"][-1] == 50
    assert list(got["losses"]) != list(want["losses"])
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
