"""The same of models that workers divide, of which each has its parts in the memory of its host."""

import pytest

from tests.numerics.test_split_models import check
from tests.numerics.test_split_offload import ALSO, BOTH, COPIES, OFFLOADS, check_training


@pytest.mark.parametrize("optimizer, options, offload", OFFLOADS)
def test_trains_as_one_device(plain, jobs, tmp_path, optimizer, options, offload):
    check_training(plain, jobs[2, 1], tmp_path, 2, optimizer, options, offload)


@pytest.mark.parametrize("optimizer, options, offload", ALSO)
def test_micro_batches_and_recomputation(plain, two_workers, optimizer, options, offload):
    want = plain(COPIES, 1, optimizer, state=False, **options)
    for got in two_workers(COPIES, 2, optimizer, state=False, **options, **offload):
        check(got, want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("optimizer", ["adam", "lamb", "lars", "momentum"])
def test_all_that_devices_offload(plain, jobs, layout, optimizer):
    """Of one copy of the model over all devices, and of several."""
    want = plain(COPIES, 1, optimizer, state=False)
    for offload in (
        BOTH,
        {"offload__level": "v0", "recompute": True},
        *(dict(BOTH, zero__level=level) for level in ("v0", "v2", "v3")),
    ):
        for count in (2, 4):
            for micro_batches in (1, 2):
                options = dict(offload, pipeline__num_micro_batch=micro_batches)
                for got in jobs[layout](COPIES, count, optimizer, state=False, **options):
                    check(got, want)
