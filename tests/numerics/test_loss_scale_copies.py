"""float16 with a loss scale: which steps are left out, and what is left of what in them, against NumPy."""

import numpy as np
import pytest

from tests.helpers.loss_scales import BAD, OPTIONS, SCALED, by_the_book, check

STEPS = range(24)


@pytest.mark.parametrize(
    "kind, resource, micro_batches", [("adam", True, 1), ("adam", False, 2), ("clipped", False, 1), ("two", True, 2)]
)
def test_two_devices(two_devices, kind, resource, micro_batches):
    config = dict(OPTIONS, **{"pipeline.num_micro_batch": micro_batches, "communication.check_replicas_every": 1})
    found = two_devices(SCALED + "train", (0, 24), BAD, kind, resource, config=config)
    check(found, STEPS, BAD)
    assert found["scales"] == by_the_book(STEPS, BAD)
    assert not np.isfinite([loss for number, loss in enumerate(found["losses"]) if number in BAD]).any()
