"""A job that is interrupted and goes on reads what one that is not interrupted reads, and ends with its variables."""

import glob
import os

import numpy as np
import pytest

PROGRAM = "tests.helpers.programs.positions:train"
STEPS = 20  # more than an epoch of two workers


@pytest.mark.parametrize("kind", ["shuffled", "one shot", "generator"])
def test_data_goes_on_where_it_was(two_workers, tmp_path, kind):
    wanted = two_workers(PROGRAM, str(tmp_path / "whole"), STEPS, kind)
    folder = str(tmp_path / "parts")
    two_workers(PROGRAM, folder, 5, kind)
    two_workers(PROGRAM, folder, 13, kind)
    for got, want in zip(two_workers(PROGRAM, folder, STEPS, kind), wanted):
        assert got["began"] == 13 and got["warnings"] == []
        assert got["batches"] == want["batches"][13:]
        for one, other in zip(got["values"], want["values"]):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    kept = {name.split(".position")[0] for name in glob.glob(os.path.join(folder, "*.position-?-of-2"))}
    there = {name[: -len(".index")] for name in glob.glob(os.path.join(folder, "*.index"))}
    assert kept == there and len(kept) > 1


def test_without_the_key_data_begins_anew(two_workers, tmp_path):
    first, _ = two_workers(PROGRAM, str(tmp_path), 4, saved="")
    again, _ = two_workers(PROGRAM, str(tmp_path), 8, saved="")
    assert again["began"] == 4 and again["batches"] == first["batches"]
    assert not glob.glob(os.path.join(str(tmp_path), "*.position*"))


def test_other_numbers_of_workers_begin_anew_and_say_so(two_workers, two_devices, tmp_path):
    two_workers(PROGRAM, str(tmp_path), 4)
    got = two_devices(PROGRAM, str(tmp_path), 5)
    (warning,) = got["warnings"]
    assert "Data is read from its beginning" in warning and "saved by 2 workers, and there are 1 now" in warning


def test_a_checkpoint_without_all_positions_gives_way_to_the_one_before_it(two_workers, tmp_path):
    wanted, _ = two_workers(PROGRAM, str(tmp_path / "whole"), 8)
    folder = str(tmp_path / "parts")
    two_workers(PROGRAM, folder, 5)
    os.remove(os.path.join(folder, "model.ckpt-5.position-1-of-2"))
    got, _ = two_workers(PROGRAM, folder, 8)
    assert got["began"] == 3 and got["batches"] == wanted["batches"][3:]
    assert "model.ckpt-5 (it has no position of the data of worker 1)" in got["warnings"][0]


def test_what_can_neither_be_saved_nor_counted_is_refused(two_devices, tmp_path):
    with pytest.raises(Exception, match="so that its elements cannot be counted either"):
        two_devices(PROGRAM, str(tmp_path), 4, "generator by handle")


def test_savers_of_the_program(two_devices, tmp_path):
    wanted = two_devices("tests.helpers.programs.positions:by_hand", str(tmp_path / "whole"), 0, 9)
    first = two_devices("tests.helpers.programs.positions:by_hand", str(tmp_path / "parts"), 0, 4)
    assert first + two_devices("tests.helpers.programs.positions:by_hand", str(tmp_path / "parts"), 4, 9) == wanted


@pytest.mark.parametrize("kind", ["shuffled", "generator", "reversed 4"])
def test_any_number_of_workers_goes_on(two_workers, two_devices, tmp_path, kind):
    """Each step takes the next elements of one order, whoever reads them: two workers, one with two devices, two.

    One of the jobs ends before its first step, once it has saved what it has restored.
    """
    wanted, _ = two_workers(PROGRAM, str(tmp_path / "whole"), STEPS, kind, saved="global")
    folder, batches = str(tmp_path / "parts"), []
    for steps, run in ((5, two_workers), (5, two_devices), (9, two_devices), (13, two_devices), (STEPS, two_workers)):
        got = run(PROGRAM, folder, steps, kind, saved="global")
        got = got[0] if run is two_workers else got
        assert got["warnings"] == [] and got["began"] == len(batches)
        batches.extend(got["batches"])
    assert batches == wanted["batches"]
    for one, other in zip(got["values"], wanted["values"]):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_an_order_of_other_numbers_begins_anew(two_workers, two_devices, tmp_path):
    two_workers(PROGRAM, str(tmp_path), 4, "reversed 4", saved="global")
    got = two_devices(PROGRAM, str(tmp_path), 5, "reversed 8", saved="global")
    assert "numbers before the workers' shares have changed, the size of a batch or a seed" in got["warnings"][0]
