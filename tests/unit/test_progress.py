"""The line that says how far a job is."""

import pytest

from epl.launch import board, progress
from epl.launch.output import Console

pytestmark = pytest.mark.once


class Screen(Console):
    """A console whose text is kept."""

    def __init__(self):
        super().__init__(-1)

    @property
    def text(self):
        return bytes(self._pending)


class Workers(object):
    """Boards of workers, and a Progress that reads them."""

    def __init__(self, folder, count, mode=progress.LINE):
        self.paths = {worker: str(folder / (".worker-%d.board" % worker)) for worker in range(count)}
        self.boards = {}
        self.progress = progress.Progress(mode, self.paths, count, began=100.0)

    def come(self, **numbers):
        for worker, path in self.paths.items():
            self.boards[worker] = board.Board(path)
        self.set(**numbers)

    def set(self, **numbers):
        for each in self.boards.values():
            for name, value in numbers.items():
                each[name] = value


@pytest.fixture
def workers(tmp_path):
    return Workers(tmp_path, 2)


def test_before_anybody_has_come(workers):
    assert workers.progress.text(103.0) == "starting Python and TensorFlow, 3 s"


def test_the_one_that_others_wait_for_is_shown(workers):
    workers.come()
    workers.boards[0].say(doing="the others to come to a step that communicates")
    workers.boards[0].state(board.OTHERS, 101.0)
    workers.boards[1].say(doing="rewriting the graph")
    workers.boards[1].state(board.PREPARES, 101.0)
    assert workers.progress.text(105.0) == "worker 1: rewriting the graph, 4 s"
    workers.boards[1].state(board.OTHERS, 102.0)
    assert "worker 0: waiting for the others to come to a step that communicates, 4 s" == workers.progress.text(105.0)


@pytest.mark.parametrize(
    "state, runs, says",
    [
        (board.PROGRAM, 0, "the program builds its model, 2 s"),
        (board.PROGRAM, 3, "in the program's own Python, 2 s"),
        (board.STEP, 0, "TensorFlow sets up variables, 2 s"),
        (board.STEP, 1, "TensorFlow makes the first step ready, 2 s"),
        (board.LEFT, 1, "at its end, 2 s"),
    ],
)
def test_what_takes_the_first_step_so_long(workers, state, runs, says):
    workers.come(runs=runs)
    workers.set(state=state, since=100.0)
    assert workers.progress.text(102.0) == "worker 0: " + says


def test_a_job_that_trains(workers):
    workers.come(steps=10, last_step_at=110.0, offset=100, total=1000, loss=0.0432, rows=16, since=110.0)
    assert workers.progress.text(110.0) == "step 110 of 1,000  loss 0.0432"
    workers.set(steps=20, last_step_at=112.0, since=112.0, in_program_s=0.5, in_steps_s=1.5, waited_others_s=0.5)
    assert workers.progress.text(112.0) == (
        "step 120 of 1,000  loss 0.0432  160 samples/s  2:56 left  others 25 %, devices 50 %, program 25 %"
    )
    workers.set(waited_data_s=0.25)
    assert workers.progress.text(112.0).endswith("data 12 %, others 25 %, devices 38 %, program 25 %")


def test_without_rows_and_an_end(workers):
    workers.come(steps=1, last_step_at=110.0, since=110.0)
    workers.progress.text(110.0)
    workers.set(steps=5, last_step_at=112.0, since=112.0)
    assert workers.progress.text(112.0) == "step 5  2 steps/s"


def test_a_worker_that_is_late_is_named(workers):
    workers.come(steps=5, last_step_at=110.0, since=110.0, state=board.PROGRAM)
    workers.boards[0].say(doing="the others")
    workers.boards[0].state(board.OTHERS, 111.0)
    assert workers.progress.text(112.0) == workers.progress.text(116.0) == "step 5"
    assert workers.progress.text(117.0) == "step 5  late: worker 1, in its own Python for 7 s"


def test_at_the_end(workers):
    workers.come(steps=11, first_step_at=100.0, last_step_at=110.0, rows=8, loss=0.25, total=11)
    screen = Screen()
    workers.progress.end(screen)
    assert screen.text == b"[epl-launch] step 11 of 11 in 0:10, 16 samples/s, loss 0.25\n"


def test_a_job_that_has_not_trained_says_nothing(workers):
    screen = Screen()
    workers.progress.end(screen)
    workers.come()
    workers.progress.end(screen)
    assert screen.text == b""


def test_plain_lines_come_now_and_then(tmp_path):
    workers, screen = Workers(tmp_path, 1, progress.PLAIN), Screen()
    for second in range(100, 181):
        workers.progress.show(screen, float(second))
    said = screen.text.decode().splitlines()
    assert [line.rpartition(", ")[2] for line in said] == ["10 s", "40 s", "70 s"]
    assert said[0] == "[epl-launch] starting Python and TensorFlow, 10 s"


def test_off_says_nothing(tmp_path):
    workers, screen = Workers(tmp_path, 1, progress.OFF), Screen()
    workers.come(steps=3, first_step_at=1.0, last_step_at=2.0)
    workers.progress.show(screen, 500.0)
    workers.progress.end(screen)
    assert screen.text == b""


def test_the_line_stays_below_the_output():
    screen = Screen()
    screen.status("step 1")
    screen.piece(0, b"Loading", False)  # no line of the launcher's breaks into it
    screen.status("step 2")
    screen.piece(0, b" done", True)
    screen.status("")
    erase = b"\r\x1b[K"
    assert screen.text == b"step 1" + erase + b"[worker 0] Loading done\nstep 2" + erase


def test_the_line_fits_into_the_terminal():
    screen = Screen()
    screen.status("x" * 200)
    assert screen.text == b"x" * 79


@pytest.mark.parametrize(
    "choice, term, is_terminal, mode",
    [
        ("auto", "xterm", True, progress.LINE),
        ("auto", "dumb", True, progress.PLAIN),
        ("auto", "xterm", False, progress.PLAIN),
        ("line", "dumb", False, progress.LINE),
        ("off", "xterm", True, progress.OFF),
    ],
)
def test_which_mode(choice, term, is_terminal, mode):
    assert progress.mode_of(choice, {"TERM": term}, is_terminal) == mode
