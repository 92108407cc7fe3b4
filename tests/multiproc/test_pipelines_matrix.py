"""Every combination of stages, micro-batches, schedule, placement and model computes what one device computes.

The other tests of pipelines hold each value at least once; this is all of them: hours, with `--exhaustive` only.
"""

import pytest

from tests.helpers.checks import assert_same_training
from tests.numerics.test_pipelines import ATOL, MODELS, PIPELINES

SCHEDULES = ("PreferForward", "PreferBackward", "Interleaved", "ZeroBubble")
# The name of the placement, stages, model replicas.
PLACEMENTS = [(name, stages, 1) for name in ("one_worker", "worker_a_stage") for stages in (2, 3, 4)]
PLACEMENTS.append(("worker_a_stage", 2, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", SCHEDULES)
@pytest.mark.parametrize("micro_batches", (1, 2, 4, 7))
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: "%s-%d-stages-%d-replicas" % p)
def test_equals_one_device(by_hand, jobs, placement, micro_batches, strategy, model):
    name, stages, replicas = placement
    # Interleaved stages need more scopes than devices: two to a device here.
    chunks = 2 if strategy == "Interleaved" else 1
    workers, devices = (1, stages * replicas) if name == "one_worker" else (stages * replicas, 1)
    job = jobs[1, 2] if workers == 1 else jobs[workers, 1]
    scopes, layers = stages * chunks, max(4, stages * chunks)
    want = by_hand(model, micro_batches, replicas, layers)
    results = job(PIPELINES + "train", devices, model, scopes, micro_batches, replicas, strategy, chunks, layers=layers)
    assert len(results) == workers
    for got in results:
        assert_same_training(got, want, atol=ATOL)
