"""checkpoint.async: checkpoints that are written while training goes on."""

import os

import pytest

from tests.helpers import processes
from tests.helpers.checks import assert_same_state, pairs
from tests.helpers.programs.beside import same

PROGRAM = "tests.helpers.programs.beside:"


def check_trained_on(got):
    assert same(got["read"], got["at"]) and same(got["restored"], got["at"]) and not same(got["now"], got["at"])


@pytest.mark.parametrize("use_resource", [False, True])
def test_what_is_written_later_is_what_was_when_it_was_saved(two_devices, plain, tmp_path, use_resource):
    """The values of reference variables lie in arrays that training changes; they have to be copied."""
    got = two_devices(PROGRAM + "trains_on", str(tmp_path), use_resource)
    check_trained_on(got)
    assert not got["before"]
    stem = "model-2.%s"
    assert got["files"] == ["checkpoint"] + [stem % end for end in ("data-00000-of-00001", "index", "meta")]
    read = plain("tests.helpers.programs.savers:read", str(tmp_path / "model-2"))
    assert same(read, got["at"])


def test_workers_go_on_and_restore_the_same(two_workers, tmp_path):
    chief, other = two_workers(PROGRAM + "trains_on", str(tmp_path), False)
    check_trained_on(chief)
    check_trained_on(other)
    assert not chief["before"]  # the other one may look when the chief has gone on already


@pytest.mark.parametrize("layout, level", [((2, 1), ""), ((2, 2), "v1"), ((2, 2), "v3")])
def test_what_is_divided_over_workers(plain, jobs, tmp_path, layout, level):
    folders = [str(tmp_path / name) for name in ("plain", "divided")]
    list(map(os.mkdir, folders))
    program, size = "tests.helpers.programs.split_saves:goes_on", (32, 1001)
    want = plain(program, 2, folders[0], *size, False)
    config = dict({"zero__level": level} if level else {}, checkpoint__async=True)
    for got in jobs[layout](program, 2, folders[1], *size, False, **config):
        for one, other in pairs(got, want):
            assert_same_state(one, other)


@pytest.mark.parametrize("ends", [True, False])
def test_no_room(two_workers, tmp_path, ends):
    """It is said when the next checkpoint is due, or at the end, by all workers; the one before stays, and no other."""
    for worker, (error, done, newest, files) in enumerate(two_workers(PROGRAM + "no_room", str(tmp_path), ends)):
        kind, said = ("WorkerError", "worker 0 could not write") if worker else ("CheckpointError", "the checkpoint")
        assert error.startswith("%s: %s" % (kind, said)) and "model.ckpt-2" in error and "; File too large" in error
        assert done == (2 if ends else 3) and newest == "model.ckpt-0"
        assert files == ["model.ckpt-0." + end for end in ("data-00000-of-00001", "index", "meta")]


def test_a_process_that_is_killed_while_it_writes(template, tmp_path):
    run = "import sys; from tests.helpers.programs import beside; import epl; beside.killed(epl, sys.argv[1])"
    (tmp_path / "train.py").write_text("import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n" + run)
    for kill, code, began in ((1, -25, 0), (0, 0, 0)):
        environ = dict(processes.worker_environments(1, 1)[0], KILL=str(kill))
        ended = template.python([str(tmp_path / "train.py"), str(tmp_path / "kept")], environ, tmp_path / "log").wait(
            90
        )
        assert ended.code == code and "began at %d" % began in ended.output, ended
        assert "cannot be read" not in ended.output, ended
        state = (tmp_path / "kept" / "checkpoint").read_text()
        assert "model.ckpt-0" in state and "model.ckpt-2" not in state
    assert any(name.startswith("model.ckpt-2_temp") for name in os.listdir(str(tmp_path / "kept")))


def test_what_cannot_be_written_so_is_refused(two_devices, tmp_path):
    objects, old = two_devices(PROGRAM + "unsaved", str(tmp_path))
    assert objects.startswith("UnsupportedError: tf.train.Checkpoint writes while training waits: checkpoint.async")
    assert old.startswith("UnsupportedError: checkpoint.async=True cannot be used with a tf.train.Saver of which")


def test_exports_are_there_at_once(two_devices, tmp_path):
    assert two_devices(PROGRAM + "exported", str(tmp_path))[-1] == "variables.index"
