"""Stages of a pipeline, of which some divide tensors, where a part of a copy goes through several workers."""

import os

import pytest

from tests.helpers.checks import assert_same, pairs
from tests.multiproc.test_split_workers import check_contents
from tests.numerics.test_split_models import CLIPPED, SPLIT, STAGES, check

GOES_ON = "tests.helpers.programs.split_stages:goes_on"
MONITORED = "tests.helpers.programs.split_stages:monitored"


def goes_on(call, folder, optimizer, kinds, resource, begins=None):
    os.mkdir(folder)
    return call(GOES_ON, 2, optimizer, kinds, folder, begins, resource)


def check_histories(got, want):
    for own, whole in pairs(got, want):
        assert own.keys() == whole.keys()
        for key, value in whole.items():
            if key == "text":
                assert list(own[key]) == list(value)
            else:
                assert_same(own[key], value, what=key)


@pytest.mark.parametrize(
    "layout, optimizer, kinds, resource",
    [
        ((4, 1), "adagrad", ("split", "split"), True),
        ((4, 1), "momentum", ("replicate", "split"), False),
        pytest.param((2, 2), "adagrad", ("split", "replicate"), False, marks=pytest.mark.exhaustive),
    ],
)
def test_checkpoints_and_fetches(plain, jobs, tmp_path, layout, optimizer, kinds, resource):
    """Checkpoints of stages go on in one device, and one device's in stages."""
    case = optimizer, kinds, resource
    want, _ = goes_on(plain, str(tmp_path / "whole"), *case)
    for history, gathered in goes_on(jobs[layout], str(tmp_path / "parts"), *case):
        check_histories(history, want)
        assert not gathered
    paths = [str(tmp_path / name) for name in ("whole", "parts")]
    check_contents(plain, paths)
    whole, parts = [os.path.join(path, "model") for path in paths]
    want, _ = goes_on(plain, str(tmp_path / "whole_after"), *case, begins=parts)
    for history, _ in goes_on(jobs[layout], str(tmp_path / "parts_after"), *case, begins=whole):
        check_histories(history, want)


@pytest.mark.parametrize(
    "kinds, options", [(("replicate", "split"), {"io__shard_dataset": True}), (("split", "split"), {})]
)
def test_monitored_sessions(plain, jobs, tmp_path, kinds, options):
    """Each worker of the first stage reads the batch, or its part of it."""

    def twice(call, name, **options):
        return [call(MONITORED, 2, kinds, str(tmp_path / name), steps, **options) for steps in (3, 2)]

    want = twice(plain, "whole")
    for of_workers, whole in pairs(twice(jobs[4, 1], "parts", **options), want):
        for losses in of_workers:
            assert_same(losses, whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [0, 2])
def test_16_bits(plain, jobs, case):
    """All workers leave out the same steps, whichever part of a gradient overflows."""
    optimizer, kinds, resource, options = STAGES[case]
    options = dict(CLIPPED, amp__level="O1", amp__dtype="float16", **options)
    reference = plain(SPLIT + "stages", 1, optimizer, kinds, resource)
    for history in jobs[4, 1](SPLIT + "stages", 2, optimizer, kinds, resource, **options):
        for got, want in pairs(history, reference):
            for own, whole in pairs(got, want):
                assert_same(own, whole, rtol=4e-2, atol=4e-2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "layout, options",
    [
        ((2, 2), {"cluster__device_place_prefer_intra_node": False}),
        ((8, 1), {"zero__level": "v0"}),
        ((8, 1), {"zero__level": "v3"}),
        ((4, 2), {"zero__level": "v1", "cluster__device_place_prefer_intra_node": False}),
        (
            (4, 1),
            {
                "communication__check_replicas_every": 1,
                "optimizer__num_apply_group": 2,
                "offload__level": "v0",
                "gradient_checkpoint__type": "auto",
            },
        ),
    ],
)
def test_layouts_and_options(plain, jobs, layout, options):
    """One copy of four devices, or two that are fed with the same rows."""
    case = "adam", ("replicate", "split"), True
    reference = plain(SPLIT + "stages", 1, *case, times=layout[0] * layout[1] // 4)
    options = dict(CLIPPED, pipeline__num_micro_batch=2, **options)
    for history in jobs[layout](SPLIT + "stages", 2, *case, **options):
        check(history, reference)
