"""What a worker is doing, as others read it from its board."""

import os
import time

import pytest

from epl.errors import LaunchError
from epl.launch import board

pytestmark = pytest.mark.once


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / ".worker-0.board")


def test_what_was_written_is_read(path):
    own = board.Board(path)
    own["steps"], own["offset"], own["loss"] = 3, 97, 0.5
    own.say(doing="planning", message="ü")
    own.state(board.PREPARES, 12.0)
    seen = board.read(path)
    assert (seen.steps, seen.step, seen.loss, seen.total) == (3, 100, 0.5, None)
    assert (seen.state, seen.since, seen.texts) == (board.PREPARES, 12.0, {"doing": "planning", "message": "ü"})
    assert seen.pid == os.getpid() and seen.lives
    own.say(doing=None)
    assert board.read(path).texts == {"message": "ü"}


def test_a_number_that_another_process_has_now_is_no_worker(path):
    own = board.Board(path)
    own["born"] += 1
    assert not board.read(path).lives


def test_long_texts_are_cut(path):
    own = board.Board(path)
    own.say(doing="planning", message="x" * 10000)
    texts = board.read(path).texts
    assert texts["doing"] == "planning" and 1000 < len(texts["message"]) < 3000


def test_the_last_thousand_events_stay(path):
    own = board.Board(path)
    for number in range(1, 1501):
        own.note_step(number, number + 0.5, number)
    own.note(board.MESSAGE_EVENT, 2000.0, None, "a" * 200)
    events, collectives, link = board.read_events(path)
    assert [event.number for event in events[:-1]] == list(range(502, 1501))
    assert events[0] == board.Event(502.0, 502.5, board.STEP_EVENT, "", 0, 502, 0)
    assert events[-1] == board.Event(2000.0, None, board.MESSAGE_EVENT, "a" * 88, 0, 0, 0)
    assert (collectives, link) == ([], (0.0, 0))


def test_what_is_no_board(path, tmp_path):
    assert board.read(path) is None
    (tmp_path / "other").write_text("x" * 10)
    assert board.read(str(tmp_path / "other")) is None
    with pytest.raises(LaunchError, match="other is no file in which a worker of EPL says what it is doing"):
        board.read_events(str(tmp_path / "other"))


def test_of_two_processes_of_a_worker_the_first_is_seen(path):
    own = board.Board(path)
    own["steps"] = 7
    second = board.Board(path)  # as another process would
    second["steps"] = 1
    assert board.read(path).steps == 7


def test_a_board_that_cannot_be_kept_stops_nobody(tmp_path):
    own = board.Board(str(tmp_path / "no" / "folder"))
    own["steps"] = 1
    assert own["steps"] == 1


def test_no_link_is_followed(tmp_path, path):
    (tmp_path / "elsewhere").write_text("mine")
    os.symlink(str(tmp_path / "elsewhere"), path)
    board.Board(path)
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_nothing_is_left(path):
    board.Board(path)
    open(board.stacks_beside(path), "w").close()
    board.remove(path)
    board.remove(path)
    assert os.listdir(os.path.dirname(path)) == []


def test_times_are_those_of_all_processes(path):
    before = time.monotonic()
    board.Board(path)
    assert before <= board.read(path).since <= time.monotonic()
