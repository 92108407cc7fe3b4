"""Models that devices divide (epl.split), with variables or activations on the host, compute what one device does."""

import pytest

from tests.numerics.test_split_models import (
    CLIPPED,
    FIXED_PROGRAMS,
    MIXED_PROGRAM,
    SPLIT,
    TABLES,
    check,
    check_mixed,
)

COPIES = SPLIT + "several_copies"
BOTH = {"offload__level": "v1", "gradient_checkpoint__offload": True}
OFFLOADS = [
    ("sgd", {"resource": True}, {"offload__level": "v0"}),
    ("adam", {}, {"offload__level": "v1"}),
    ("adam", {"resource": True}, {"offload__level": "state"}),
    ("momentum", {"resource": True}, {"gradient_checkpoint__offload": True}),
]
# Moving averages each micro-batch changes.
ALSO = [
    ("adam", {"resource": True}, {"pipeline__num_micro_batch": 2, **BOTH}),
    ("sgd", {}, {"recompute": True, "gradient_checkpoint__offload": True, "offload__level": "v0"}),
]
# What copies of a divided model divide, beside groups of updates.
ZERO = [
    {"zero__level": "v1", "optimizer__num_apply_group": 2},
    {"zero__level": "v3", "zero__segment_mb": 1e-4, "optimizer__num_apply_group": 2},
]


def check_training(plain, calls, folder, count, optimizer, options, offload):
    """Losses and variables step by step; the checkpoint goes on in one device, and one device's on several."""
    saved = [str(folder / name) for name in ("plain", "split")]
    want = plain(COPIES, 1, optimizer, saved=saved[0], **options)
    for got in calls(COPIES, count, optimizer, saved=saved[1], **options, **offload):
        check(got, want)
    after = plain(COPIES, 1, optimizer, restored=saved[1], **options)
    check(after[:1], [want[-1][2:]])
    for got in calls(COPIES, count, optimizer, restored=saved[0], **options, **offload):
        check(got, after)


@pytest.mark.parametrize("optimizer, options, offload", OFFLOADS)
def test_trains_as_one_device(plain, jobs, tmp_path, optimizer, options, offload):
    check_training(plain, jobs[1, 2], tmp_path, 2, optimizer, options, offload)


@pytest.mark.parametrize("optimizer, options, offload", ALSO)
def test_micro_batches_and_recomputation(plain, two_devices, optimizer, options, offload):
    want = plain(COPIES, 1, optimizer, state=False, **options)
    check(two_devices(COPIES, 2, optimizer, state=False, **options, **offload), want)


@pytest.mark.once
@pytest.mark.parametrize("divided", ZERO)
def test_copies_that_divide_state_and_parameters(plain, four_devices, divided):
    want = plain(COPIES, 1, "adam")
    check(four_devices(COPIES, 2, "adam", **divided, **BOTH), want)


@pytest.mark.once
def test_rows_of_tables_and_of_batches(plain, two_devices):
    """Rows are looked up on the host; devices that divide batches have variables whole."""
    want, _ = plain(TABLES, 1, "adagrad", clip=0.1)
    for level in ("v0", "v1"):
        check(two_devices(TABLES, 2, "adagrad", clip=0.1, offload__level=level)[0], want)
    want = plain(FIXED_PROGRAMS + "fixed_batch", 1, "adam", "batches")
    check(two_devices(FIXED_PROGRAMS + "fixed_batch", 2, "adam", "batches", **BOTH), want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", [("replicate", "split"), ("split", "split"), ("split", "replicate")])
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_stages(plain, four_devices, optimizer, kinds):
    want = plain(SPLIT + "stages", 1, optimizer, kinds, False)
    for offload in ({"pipeline__num_micro_batch": 2, **BOTH}, {"offload__level": "v0"}):
        check(four_devices(SPLIT + "stages", 2, optimizer, kinds, False, **CLIPPED, **offload), want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("offload", [BOTH, {"offload__level": "v0"}])
def test_float16(plain, two_devices, offload):
    want = plain(MIXED_PROGRAM, 2, "adam", "float16", bad=[1])
    check_mixed(two_devices(MIXED_PROGRAM, 2, "adam", "float16", bad=[1], **offload), want, [1])
