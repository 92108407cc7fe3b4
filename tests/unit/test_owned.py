"""Two jobs do not save under one name."""

import json
import os
import subprocess
import sys

import pytest

from epl import own_folders
from epl.errors import CheckpointError
from epl.session import owned

pytestmark = pytest.mark.once


@pytest.fixture(name="take")
def take_as_this_process(monkeypatch):
    here = owned._Owned()
    monkeypatch.setattr(owned, "_OWNED", here)
    monkeypatch.setattr(owned, "_SEEN_S", 0.0)
    yield here.take
    here.release()


@pytest.fixture(name="path")
def path_of_checkpoints(tmp_path):
    return str(tmp_path / "model.ckpt")


def write(path, **changes):
    with open(owned.file_of(path), "w") as file:
        json.dump(dict(owned._identity(), **changes), file)


def owner(path):
    return owned._read(owned.file_of(path))


def test_the_first_one_has_it_until_its_end(take, path, tmp_path):
    take(path)
    take(path)
    assert owner(path)["process"] == os.getpid() and os.listdir(str(tmp_path)) == [".model.ckpt.owner"]
    owned._OWNED.release()
    assert os.listdir(str(tmp_path)) == []


def test_it_is_free_when_all_sessions_are_closed(take, path, tmp_path):
    take(path, "one")
    take(path, "two")
    take(path + "-other", "two")
    owned._OWNED.release("two")
    assert os.listdir(str(tmp_path)) == [".model.ckpt.owner"]
    owned._OWNED.release("one")
    owned._OWNED.release("one")
    assert os.listdir(str(tmp_path)) == []


def test_another_one_that_lives_is_named(take, path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        write(path, process=other.pid, began=own_folders.began(other.pid), since="2031-02-03 04:05:06", machine="here")
        with pytest.raises(CheckpointError, match="process %d on here has done so since 2031-02-03 04:05" % other.pid):
            take(path)
        take(path + "-other")  # under another name
        assert owner(path)["process"] == other.pid
    finally:
        other.kill()
        other.wait(60)
    take(path)
    assert owner(path)["process"] == os.getpid()


def test_another_process_of_the_same_number_is_not_it(take, path):
    write(path, began=1)
    take(path)
    assert owner(path)["began"] != 1


def test_one_of_another_machine_is_watched(take, path, monkeypatch):
    monkeypatch.setattr(owned, "_WATCH_S", 0.3)
    monkeypatch.setattr(owned, "_LOOK_S", 0.05)
    touched = iter([5, 5, 6])
    write(path, host="elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(owned, "_touched", lambda file: next(touched))
        with pytest.raises(CheckpointError, match="is saved by another job too"):
            take(path)
    take(path)
    assert owner(path)["host"] == owned._host()


@pytest.mark.parametrize("content", ["", "no JSON", "[]", "7", "[" * 4000])
def test_a_damaged_file_is_taken_over(take, path, monkeypatch, content):
    monkeypatch.setattr(owned, "_WATCH_S", 0.05)
    monkeypatch.setattr(owned, "_LOOK_S", 0.01)
    with open(owned.file_of(path), "w") as file:
        file.write(content)
    take(path)
    assert owner(path)["process"] == os.getpid()


def test_what_another_has_taken_over_is_not_removed(take, path):
    take(path)
    write(path, process=1)
    owned._OWNED.release()
    assert owner(path)["process"] == 1


def test_folders_that_are_not_there_or_cannot_be_written_are_left_to_the_checkpoint(take, tmp_path):
    take("gs://bucket/model.ckpt")
    take(str(tmp_path / "none" / "model.ckpt"))
    os.symlink("/nowhere", owned.file_of(str(tmp_path / "link")))
    take(str(tmp_path / "link"))
    assert sorted(os.listdir(str(tmp_path))) == [".link.owner"]
