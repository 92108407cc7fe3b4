"""Folders of processes that have ended are removed, those of others stay."""

import os

import pytest

from epl import own_folders

pytestmark = pytest.mark.once
PREFIX = "epl-test-"


@pytest.fixture
def above(tmp_path, monkeypatch):
    monkeypatch.setattr(own_folders.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(own_folders, "_LONGEST_PATH", 1000)
    return tmp_path


def names(folder):
    return sorted(os.listdir(str(folder)))


def test_a_folder_is_this_users_alone_and_is_not_removed_while_its_process_runs(above):
    made = own_folders.make_folder(PREFIX)
    assert os.stat(made).st_mode & 0o777 == 0o700
    own_folders.remove_left(PREFIX)
    assert names(above) == [os.path.basename(made)]


def test_those_of_processes_that_have_ended_are_removed(above):
    child = os.fork()
    if not child:
        own_folders.make_folder(PREFIX)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # nobody has taken notice of its end yet
    assert len(names(above)) == 1
    own_folders.remove_left(PREFIX)
    assert names(above) == []
    os.waitpid(child, 0)


def test_another_process_with_the_same_number_does_not_keep_a_folder(above):
    made = os.path.basename(own_folders.make_folder(PREFIX))
    process, namespace, began, rest = made[len(PREFIX) :].split("-")
    earlier = "%s%s-%s-%d-%s" % (PREFIX, process, namespace, int(began) - 1, rest)
    (above / earlier).mkdir()
    own_folders.remove_left(PREFIX)
    assert names(above) == [made]


def test_what_is_not_known_to_have_ended_stays(above):
    others = ["%s999999999-1-5-x" % PREFIX, PREFIX + "mine", "notes-999999999-1-5-x"]  # the first by other ids
    for name in others:
        (above / name).mkdir()
    own_folders.remove_left(PREFIX)
    assert names(above) == sorted(others)


def test_a_temporary_folder_with_a_long_name_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(own_folders.tempfile, "tempdir", str(tmp_path / ("long" * 10)))
    made = own_folders.make_folder(PREFIX)
    os.rmdir(made)
    assert os.path.dirname(made) == "/tmp" and len(made + "/service") < 108
