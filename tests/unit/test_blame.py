"""Because of whom errors came, and what a worker notes of them for the launcher."""

import contextlib
import os

import pytest
import tensorflow.compat.v1 as tf

from epl.cluster import Cluster
from epl.communicators.bootstrap import WaitTimeout
from epl.errors import CommunicationError, WorkerError
from epl.launch import notes
from epl.session.endings.blame import awaited, because_of, blamed
from epl.session.endings.noting import Noting
from epl.session.endings.peer_errors import FromPeer
from epl.session.following import Following


@pytest.mark.parametrize(
    "words, workers",
    [
        ("worker 1 waited 8 s for worker 0 (process 12)", [0]),
        ("rank 1: worker 1 waited 0.5 s for workers 0 (process 3, stopped), 12 (process 4)", [0, 12]),
        ("could not connect: worker 2 (127.0.0.1:80), worker 3 (h:81) did not come within 8 s. ", [2, 3]),
        ("Worker 0 at 127.0.0.1:25373 could not be reached within 8 s: Connection refused", [0]),
        ("worker 1 has waited 8 s in vain for worker 0 to come to the same call", [0]),
        ("worker 1 saves 'a', but worker 0 has not saved it within 6.4 s: all", [0]),
        ("no sign of life from worker 4 for 8 s, but worker 0 waits", [4]),
        ("worker 1 has not started within 8 s (communication.start_timeout_s), but worker 0 waits for worker 1", [1]),
        ("workers 1 and 2 have not started within 8 s", [1, 2]),
        ("worker 3 and 2 others have not started within 8 s", [3]),
        ("worker 1 has finished after 3 steps; worker 0 wanted another", [1]),
        ("worker 1 has ended already, but worker 0 waits for it", [1]),
        ("all_reduce 'x': worker 1 has ended, or the network between it and worker 0 is cut", [1]),
        ("barrier: worker 2 (process 88) has ended; communicator 'g0/data0' cannot go on", [2]),
        ("worker 0 has closed communicator 'g0/control'", [0]),
        ("Worker 0 at 127.0.0.1:1 is gone, or the network to it is cut: Socket closed", [0]),
        ("worker 2, which leads this host, is gone: its process was killed", [2]),
        ("worker 1 failed in step 3", []),
    ],
)
def test_who_was_awaited(words, workers):
    assert awaited(words) == workers


def raised(error, by):
    """`by`, as raised where the error was handled."""
    try:
        try:
            raise error
        except Exception:
            raise by  # noqa: B904
    except Exception as found:
        return found


def raised_from(error, by):
    try:
        raise by from error
    except Exception as found:
        return found


GONE = CommunicationError("worker 2 has ended already, but worker 1 waits for it")
OF_2 = WorkerError("worker 2 failed at step 3", worker=2)


@pytest.mark.parametrize(
    "error, found",
    [
        (KeyError("x"), ([], False)),
        (OF_2, ([2], True)),
        (FromPeer(OF_2), ([2], True)),
        (GONE, ([2], True)),
        (CommunicationError("who knows"), ([], True)),
        (tf.errors.InternalError(None, None, "epl communication: worker 2 has closed communicator 'g'"), ([2], True)),
        (tf.errors.InternalError(None, None, "worker 2 has closed communicator 'g'"), ([], False)),
        (because_of(tf.errors.OutOfRangeError(None, None, "the data of worker 0 ended"), 0), ([0], True)),
        (tf.errors.OutOfRangeError(None, None, "End of sequence"), ([], False)),
        (WorkerError("worker 1 and the others have built different graphs", worker=1), ([], False)),
        (raised(OF_2, RuntimeError("training failed")), ([2], True)),
        (raised_from(OF_2, RuntimeError("training failed")), ([2], True)),
        (raised_from(None, RuntimeError("training failed")), ([], False)),
    ],
)
def test_who_is_blamed(error, found):
    assert blamed(error, own=1) == found


@pytest.fixture(name="launcher")
def notes_of_the_launcher(tmp_path, monkeypatch):
    note = notes.Note(str(tmp_path / "note"))
    monkeypatch.setenv(notes.VARIABLE, note.path)
    return note


@pytest.fixture(name="noting")
def noting_of_worker_1():
    return Noting(Cluster(worker_num=2, worker_index=1, hosts=("a:1", "b:1")), Following({}), patience=7)


def test_what_is_noted(launcher, noting):
    assert launcher.state == "" and launcher.failure is None
    with noting.waiting_for_all("init"):
        assert launcher.state == notes.JOINING
    assert launcher.state == notes.JOINED and launcher.fact("patience") == 7
    noting.error(KeyError("no such luck"), 4)
    found = launcher.failure
    assert found[1:] == ("KeyError: 'no such luck'", 4, [], False, 0)
    noting.error(OF_2, 4)
    assert launcher.failure == found
    noting.left()
    assert launcher.state == notes.LEFT and launcher.failure == found


def test_an_error_that_says_because_of_whom_counts_for_one_that_does_not(launcher, noting):
    noting.error(CommunicationError("who knows"), 4)
    assert launcher.failure.because == [] and launcher.failure.follows
    noting.error(OF_2, 4)
    noting.error(KeyError("later"), 4)
    assert launcher.failure.because == [2]


def test_what_was_lived_through_is_forgotten(launcher, noting):
    noting.took_step()
    assert launcher.state == ""  # and no file is written in each step
    noting.error(KeyError("no such luck"), 4)
    noting.took_step()
    assert launcher.failure is None and launcher.state == notes.JOINED


def test_errors_of_communication_are_noted_on_their_way(launcher, noting):
    for error, wrong in [(WaitTimeout("late"), False), (ValueError("other"), False), (GONE, True)]:
        with pytest.raises(type(error)), noting.errors(lambda: 4):
            raise error
        assert (launcher.failure is not None) == wrong


def test_notes_outlive_their_file(launcher, noting):
    noting.error(KeyError("no such luck"), 4)
    launcher.keep()
    launcher.remove()
    assert launcher.failure.step == 4
    with contextlib.suppress(OSError):
        os.unlink(launcher.path)
    noting.error(KeyError("nobody is there"), 4)


def test_a_note_that_is_cut_off_is_none(launcher):
    with open(launcher.path, "w") as stream:
        stream.write('{"state": "joined"}\n7\n{"failure": {"at": 1.0, "err')
    assert launcher.state == notes.JOINED and launcher.failure is None
