"""Everything that programs save, against what plain TensorFlow saves, and loaded by plain TensorFlow."""

import json
import os

import pytest

from epl.session import owned
from tests.helpers import processes
from tests.helpers.checks import assert_same, assert_same_state

SAVERS = "tests.helpers.programs.savers:"


@pytest.mark.parametrize("options", ["part", "renamed", "sharded", "few", "by time", "deferred"])
def test_every_option_of_the_saver(plain, two_by_two, tmp_path, options):
    want = plain(SAVERS + "save", str(tmp_path / "plain"), options)
    chief, other = two_by_two(SAVERS + "save", str(tmp_path / "epl"), options)
    for got in (chief, other):
        assert_same(got["losses"], want["losses"])
        assert_same(got["predicted"], want["predicted"])
        assert got["names"] == want["names"] and got["foreign"] == []
    assert chief["files"] == want["files"] and other["files"] == []
    states = [plain(SAVERS + "read", str(tmp_path / who / "worker_0" / "model-4")) for who in ("plain", "epl")]
    assert_same_state(states[1], states[0])
    assert_same(plain(SAVERS + "run_frozen", chief["frozen"], chief["logits"]), want["predicted"])
    if options == "few":
        logits, foreign = plain(SAVERS + "serve", str(tmp_path / "epl" / "worker_0" / "export"))
        assert_same(logits, want["predicted"])
        assert foreign == []


def test_hooks_see_the_chiefs_global_step_from_the_start(plain, two_workers, tmp_path):
    folders = [str(tmp_path / name) for name in ("plain", "epl")]
    for steps, start in ((3, 0), (2, 3)):
        want_starts, want = plain(SAVERS + "resumed", folders[0], steps)
        assert want_starts == [start] and len(want) == steps
        for starts, losses in two_workers(SAVERS + "resumed", folders[1], steps):
            assert starts == [start]
            assert_same(losses, want)
    assert os.listdir(folders[1]) == ["worker_0"]


def test_checkpoints_of_objects(plain, two_by_two, tmp_path):
    want = plain(SAVERS + "objects", str(tmp_path / "plain"))
    assert want["names"] == ["objects-1", "objects-2"]
    chief, other = two_by_two(SAVERS + "objects", str(tmp_path / "epl"))
    for got in (chief, other):
        assert_same(got["losses"], want["losses"])
        assert got["names"] == want["names"]
    assert chief["files"] == want["files"] and other["files"] == []


def test_no_room_for_a_file_is_not_the_end_of_data(plain, two_devices, tmp_path):
    assert plain(SAVERS + "no_room", str(tmp_path / "plain")) == ("no error", 1)  # what a monitored session makes of it
    kind, text = two_devices(SAVERS + "no_room", str(tmp_path / "epl"))
    assert kind == "ResourceExhaustedError"
    assert "a file cannot be written" in text and "; File too large" in text and "model.ckpt-2" in text


@pytest.mark.parametrize("size", [0, 1000])
def test_a_damaged_checkpoint_is_named(two_devices, tmp_path, size):
    kind, text = two_devices(SAVERS + "damaged", str(tmp_path), size)
    assert kind == "DataLossError" and "'%s'" % (tmp_path / "model") in text


def test_what_is_saved_can_be_read_at_once(two_workers, tmp_path):
    (found, no_error, state), (others, error, same) = two_workers(SAVERS + "saved_and_read", str(tmp_path))
    assert found == others == ["model-1", 1, "model-2", 2, "model-3", 3]
    assert_same_state(same, state, 0, 0)
    assert no_error is None and error[0] == "UnsupportedError"
    assert "worker 1 wants to read '%s" % (tmp_path / "of_1" / "model") in error[1]


def test_a_worker_that_saves_alone_is_told_so(two_workers, tmp_path):
    none, error = two_workers(SAVERS + "saved_alone", str(tmp_path))
    assert none is None and "worker 0 has not saved it within 4 s" in error


SAVES = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import epl
import epl.errors
epl.init()
epl.set_default_strategy(epl.replicate(1))
variable, folder = tf.get_variable("v", [2], use_resource=True), sys.argv[1]
saver, objects = tf.train.Saver(), tf.train.Checkpoint(v=variable)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for save in (lambda: saver.save(session, folder + "/a", 7), lambda: objects.save(folder + "/b", session=session)):
        try:
            print("saved", save())
        except epl.errors.EplError as error:
            print(type(error).__name__, error)
"""


@pytest.mark.once
def test_nobody_saves_under_the_name_of_another_job(template, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    for name in "ab":
        (folder / (".%s.owner" % name)).write_text(json.dumps(owned._identity()))  # this process, which lives
    (tmp_path / "train.py").write_text(SAVES)
    environ = processes.worker_environments(1, 1)[0]
    ended = template.python([str(tmp_path / "train.py"), str(folder)], environ, tmp_path / "log").wait(90)
    said = [line for line in ended.output.splitlines() if line.startswith("CheckpointError")]
    assert ended.code == 0 and len(said) == 2, ended
    for name, line in zip("ab", said):
        assert "'%s/%s' is saved by another job too: process %d" % (folder, name, os.getpid()) in line, line
    assert sorted(os.listdir(str(folder))) == [".a.owner", ".b.owner"]
