"""Checkpoints are plain TensorFlow's, in both directions, and resumed training goes on with the same numbers."""

import os

import pytest

from tests.helpers.checks import assert_same, assert_same_state

STATE = "tests.helpers.programs.state:"


@pytest.fixture(name="uninterrupted")
def uninterrupted_run(plain):
    return plain(STATE + "train", 0, 8)


@pytest.mark.parametrize(
    "first, second",
    [
        ("plain", "two_devices"),
        ("two_devices", "plain"),
        ("two_devices", "two_devices"),
        ("four_devices", "two_devices"),
    ],
)
def test_checkpoint_carries_on(request, tmp_path, uninterrupted, first, second):
    folder = str(tmp_path)
    early, _ = request.getfixturevalue(first)(STATE + "train", 0, 4, save=folder)
    path = os.path.join(folder, "worker_0", "model-4")
    late, state = request.getfixturevalue(second)(STATE + "train", 4, 8, restore=path)
    assert_same(early + late, uninterrupted[0])
    assert_same_state(state, uninterrupted[1])


def test_checkpoint_has_the_names_of_one_device(plain, two_devices, tmp_path):
    folders = [str(tmp_path / name) for name in ("plain", "epl")]
    for call, folder in ((plain, folders[0]), (two_devices, folders[1])):
        call(STATE + "train", 0, 4, save=folder)
    want, got = [plain("tests.helpers.programs.sessions:read_checkpoint", folder + "/worker_0") for folder in folders]
    assert_same_state(got[0], want[0])
    assert sorted(os.listdir(folders[1] + "/worker_0")) == sorted(os.listdir(folders[0] + "/worker_0"))


@pytest.mark.parametrize("options", [{"sharded": True}, {"max_to_keep": 1}, {"write_version": 1}], ids=str)
def test_saver_options(plain, two_devices, tmp_path, uninterrupted, options):
    two_devices(STATE + "train", 0, 4, save=str(tmp_path), saver_options=options)
    path = os.path.join(str(tmp_path), "worker_0", "model-4")
    late, state = plain(STATE + "train", 4, 8, restore=path, saver_options=options)
    assert_same(late, uninterrupted[0][4:])
    assert_same_state(state, uninterrupted[1])


def test_monitored_session_resumes(plain, two_devices, tmp_path):
    want = plain(STATE + "monitored", str(tmp_path / "whole"), 8)
    early = two_devices(STATE + "monitored", str(tmp_path / "parts"), 5)
    late = two_devices(STATE + "monitored", str(tmp_path / "parts"), 8)
    assert sorted(early) == [0, 1, 2, 3, 4] and sorted(late) == [5, 6, 7]
    early.update(late)
    assert_same([early[step] for step in range(8)], [want[step] for step in range(8)])
