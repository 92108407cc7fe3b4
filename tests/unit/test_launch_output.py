"""epl-launch: prefixed output of the workers."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.launch.output import (
    ERRORS,
    EVERYTHING,
    LONGEST_PIECE,
    OWN,
    PARTIAL_LINE_S,
    TAIL_LINES,
    Console,
    Stream,
)

pytestmark = pytest.mark.once


class Screen(Console):
    """A console whose text is kept."""

    def __init__(self):
        super().__init__(-1)

    @property
    def text(self):
        return bytes(self._pending)


def streams(number=2):
    screen = Screen()
    return screen, [Stream(index, screen) for index in range(number)]


# --- lines ---


def test_lines_are_prefixed():
    screen, (first, second) = streams()
    first.feed(b"one\ntwo\n", 0)
    second.feed(b"\nthree\r\n", 0)
    assert screen.text == b"[worker 0] one\n[worker 0] two\n[worker 1] \n[worker 1] three\n"


def test_an_unfinished_line_waits_a_moment_and_is_then_shown():
    screen, (first, second) = streams()
    first.feed(b"Loading", 10.0)
    assert screen.text == b""
    assert first.show_partial(10.0) == pytest.approx(PARTIAL_LINE_S)
    first.show_partial(10.0 + PARTIAL_LINE_S)
    assert screen.text == b"[worker 0] Loading"
    first.feed(b" ok\n", 11.0)
    second.feed(b"x\n", 11.0)
    assert screen.text == b"[worker 0] Loading ok\n[worker 1] x\n"


def test_another_worker_does_not_write_into_an_unfinished_line():
    screen, (first, second) = streams()
    first.feed(b"Loading", 0)
    first.show_partial(1)
    second.feed(b"x\n", 1)
    first.feed(b" ok\n", 2)
    assert screen.text == b"[worker 0] Loading\n[worker 1] x\n[worker 0]  ok\n"
    assert first.last_lines() == ["Loading ok"]


def test_the_late_end_of_an_interrupted_line_makes_no_empty_line():
    screen, (first, second) = streams()
    first.feed(b"Loading", 0)
    first.show_partial(1)
    second.feed(b"x\n", 1)
    first.feed(b"\n", 2)
    first.feed(b"y\n", 2)
    assert screen.text == b"[worker 0] Loading\n[worker 1] x\n[worker 0] y\n"
    assert first.last_lines() == ["Loading", "y"]


def test_progress_bars():
    screen, (first, _) = streams()
    first.feed(b"\r 10%", 0)
    first.feed(b"\r 20%", 0)
    first.feed(b"\r100%\n", 0)
    assert screen.text == b"[worker 0]  10%\n[worker 0]  20%\n[worker 0] 100%\n"


def test_a_line_end_in_two_parts():
    screen, (first, _) = streams()
    for part in (b"a\r", b"\n", b"\n", b"b\r", b"c\n"):
        first.feed(part, 0)
    assert screen.text == b"[worker 0] a\n[worker 0] \n[worker 0] b\n[worker 0] c\n"


def test_bytes_that_are_no_text_pass_unchanged():
    screen, (first, _) = streams()
    first.feed(b"\xff\x00\xe4\n", 0)
    assert screen.text == b"[worker 0] \xff\x00\xe4\n"
    assert first.last_lines() == ["\ufffd\x00\ufffd"]


def test_huge_lines_do_not_pile_up():
    screen, (first, _) = streams()
    for _ in range(40):
        first.feed(b"x" * 8192, 0)
        assert len(first._line) < LONGEST_PIECE + 8192
    first.feed(b"\n", 0)
    assert screen.text == b"[worker 0] " + b"x" * 40 * 8192 + b"\n"
    assert len(first.last_lines()[0]) == 2000


def test_the_end_of_a_worker_ends_its_line():
    screen, (first, second) = streams()
    first.feed(b"a", 0)
    first.finish()
    second.feed(b"b", 0)
    second.show_partial(9)
    second.finish()
    assert screen.text == b"[worker 0] a\n[worker 1] b\n"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.binary(max_size=6).map(lambda data: bytes(b"ab\n\n\r"[byte % 5] for byte in data)),
            st.booleans(),
        )
    )
)
def test_no_text_is_lost_whatever_the_pieces(parts):
    screen, both = streams()
    wrote = [b"", b""]
    for worker, data, wait in parts:
        both[worker].feed(data, 0)
        wrote[worker] += data
        if wait:
            both[worker].show_partial(9)
    for stream in both:
        stream.finish()
    shown = [b"", b""]
    for line in screen.text.split(b"\n")[:-1]:
        assert line[:10] in (b"[worker 0]", b"[worker 1]") and line[10:11] == b" "
        shown[int(line[8:9])] += line[11:]
    assert shown == [text.replace(b"\n", b"").replace(b"\r", b"") for text in wrote]


@given(st.lists(st.binary(max_size=4).map(lambda data: bytes(b"ab\n"[byte % 3] for byte in data))))
def test_lines_are_those_of_the_worker(parts):
    screen, (first, _) = streams()
    for data in parts:
        first.feed(data, 0)
    first.finish()
    text = b"".join(parts)
    lines = text.split(b"\n")[:-1] if text.endswith(b"\n") or not text else text.split(b"\n")
    assert screen.text == b"".join(b"[worker 0] " + line + b"\n" for line in lines)
    assert first.last_lines() == [line.decode() for line in lines][-TAIL_LINES:]


def test_ctrl_c_shows_no_tracebacks():
    screen, (first, second) = streams()
    text = (
        b"Traceback (most recent call last):\n  File x\n    y\nKeyboardInterrupt\n\nDuring handling of the above:\n\n"
    )
    text += b"Traceback (most recent call last):\n  File x\nmine.Error: cannot save\n  saved\n"
    second.feed(text, 0)
    assert screen.text.count(b"Traceback") == 2
    first.interrupt()
    before = len(screen.text)
    first.feed(text, 0)
    assert screen.text[before:] == b"[worker 0] mine.Error: cannot save\n[worker 0]   saved\n"
    before = len(screen.text)
    first.feed(
        b"Traceback (most recent call last):\n  File x\n"
        b"RuntimeError: pybind11::error_already_set: MISMATCH of original and normalized active exception types: "
        b"ORIGINAL AbortedError REPLACED BY KeyboardInterrupt: <EMPTY MESSAGE>\n\n"
        b"At:\n  errors.py(412): __init__\n  train.py(16): <module>\n\nRuntimeError: mine\n",
        0,
    )
    assert screen.text[before:] == b"[worker 0] RuntimeError: mine\n"


def test_log_files_hold_the_output_as_it_was(tmp_path):
    path = tmp_path / "log"
    stream = Stream(0, Screen(), open(str(path), "wb", buffering=0))
    stream.feed(b"a\r\xff", 0)
    assert path.read_bytes() == b"a\r\xff"
    stream.finish()


def test_a_full_disk_under_the_log_loses_the_log_only():
    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

    screen = Screen()
    stream = Stream(0, screen, Full())
    stream.feed(b"a\n", 0)
    stream.feed(b"b\n", 0)
    assert screen.text == b"[worker 0] a\n[worker 0] b\n"
    assert stream.log_error.errno == 28


def test_the_console_writes_what_the_reader_takes():
    reading, writing = os.pipe()
    console = Console(writing)
    console.say("hello")
    console.finish()
    assert os.read(reading, 100) == b"[epl-launch] hello\n"
    os.close(reading)
    console.say("nobody")
    console.finish()
    assert console.broken and not console.pending
    os.close(writing)


def test_finish_does_not_wait_for_a_reader_that_does_not_read():
    reading, writing = os.pipe()
    console = Console(writing)
    console.piece(0, b"x" * 10**6, True)
    console.finish(timeout_s=0.2)
    assert console.pending
    os.close(reading)
    os.close(writing)


# --- what is shown of it ---

PLAN = b"2026-03-01 12:00:00 INFO epl: Plan: 2 model replicas\n  worker  device\n  0       CPU:0\nstep 1\n"


def shown(how, text, log=None):
    screen = Screen()
    stream = Stream(1, screen, log, shown=how)
    stream.feed(text, 0)
    stream.finish()
    return screen.text.decode().splitlines()


def test_of_the_plan_the_first_line_is_shown(tmp_path):
    log = open(str(tmp_path / "log"), "wb", buffering=0)
    assert shown(OWN, PLAN, log) == ["[worker 1] epl: Plan: 2 model replicas", "[worker 1] step 1"]
    assert (tmp_path / "log").read_bytes() == PLAN
    assert len(shown(EVERYTHING, PLAN)) == 4


def test_of_other_workers_errors_are_shown():
    text = PLAN + b"2026-03-01 12:00:00 WARNING epl: take care\n  step 2\nno end"
    assert shown(ERRORS, text) == ["[worker 1] epl: take care"]
    text = b'a\nTraceback (most recent call last):\n  File "train.py", line 1\n    x\nValueError: no\nb\n'
    assert shown(ERRORS, text) == [
        "[worker 1] Traceback (most recent call last):",
        '[worker 1]   File "train.py", line 1',
        "[worker 1]     x",
        "[worker 1] ValueError: no",
    ]
