"""Workers that divide a model save it, fetch everything, restore it and go on as one device does."""

import itertools
import os

import pytest

from tests.helpers.checks import assert_same_state, pairs

PROGRAM = "tests.helpers.programs.split_saves:goes_on"
# Of the logits' kernel, whose slots are as large: less than 64 KiB, exactly that, and more. Its bias is always less.
SIZES = [(16, 1001), (16, 1024), (32, 1001)]
LAYOUTS = [(1, 2), (2, 1), (2, 2), (4, 1)]
LEVELS = ["", "v0", "v1", "v2", "v3"]  # between copies of the model, of which the smaller layouts have one
FEW = [
    ((2, 1), (32, 1001), "", False),
    ((2, 1), (16, 1024), "", True),
    ((2, 2), (32, 1001), "v1", True),
    ((4, 1), (16, 1024), "v3", True),
]
ALL = [
    case
    for case in itertools.product(LAYOUTS, SIZES, LEVELS, (False, True))
    if case not in FEW and (not case[2] or case[0][0] * case[0][1] == 4)
]


def check(plain, jobs, tmp_path, layout, size, level, alone):
    folders = [str(tmp_path / name) for name in ("plain", "divided")]
    list(map(os.mkdir, folders))
    want = plain(PROGRAM, 2, folders[0], *size, alone)
    config = {"zero__level": level} if level else {}
    for got in jobs[layout](PROGRAM, 2, folders[1], *size, alone, **config):
        for one, other in pairs(got, want):
            assert_same_state(one, other)


@pytest.mark.each_line
@pytest.mark.parametrize("layout, size, level, alone", FEW)
def test_saves_and_goes_on(plain, jobs, tmp_path, layout, size, level, alone):
    check(plain, jobs, tmp_path, layout, size, level, alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout, size, level, alone", ALL)
def test_all_combinations(plain, jobs, tmp_path, layout, size, level, alone):
    check(plain, jobs, tmp_path, layout, size, level, alone)
