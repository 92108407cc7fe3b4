"""epl-launch: prefixed output, and what it makes of the ends of workers."""

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.launch.errors_seen import ErrorsSeen
from epl.launch.output import LONGEST_PIECE, PARTIAL_LINE_S, TAIL_LINES, Console, Stream
from epl.launch.summary import failure_text
from epl.launch.workers import Worker, root_cause

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


NOISE = b"""\
2026-11-23 06:01:46.955341: E external/local_xla/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to
2026-11-23 06:01:46.955341: E external/local_xla/cuda_driver.cc:274] out of memory
WARNING:tensorflow:From a.py:2: dense (from tensorflow.python.layers.core) is deprecated and will be removed in a
Instructions for updating:
Use keras.layers.Dense instead.
one
WARNING:tensorflow:From a.py:2: py_func (from tensorflow.python.ops) is deprecated and will be removed in a
Instructions for updating:
tf.py_func is deprecated in TF V2. Instead, there are two
    options available in V2.
    - tf.numpy_function maintains the semantics
one
    indented
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at a.cc:8 : CANCELLED: x
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1651] OP_REQUIRES failed at a.cc:8 : Cancelled: x
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at a.cc:8 : INTERNAL: x
/x/a.py:20: UserWarning: `tf.layers.dense` is deprecated and will be removed in a future version.
  logits = tf.layers.dense(x, 2)
WARNING:tensorflow:From a.py:2: dense (from tensorflow.python.layers.core) is deprecated and will be removed in a
Traceback (most recent call last):
"""


def test_noise_of_tensorflow_is_in_the_log_alone(tmp_path):
    path = tmp_path / "log"
    screen = Screen()
    stream = Stream(0, screen, open(str(path), "wb", buffering=0))
    stream.feed(NOISE, 0)
    stream.finish()
    kept = (b"one", b"    indented", b"Traceback", b"out of memory", b"INTERNAL")
    shown = [line for line in NOISE.splitlines() if any(part in line for part in kept)]
    assert screen.text.splitlines() == [b"[worker 0] " + line for line in shown]
    assert stream.last_lines() == [line.decode() for line in shown] and path.read_bytes() == NOISE
    everything = Stream(0, Screen(), None, everything=True)
    everything.feed(NOISE, 0)
    assert everything.last_lines() == NOISE.decode().splitlines()[-TAIL_LINES:]


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


# --- ends ---


class Ended:
    """A worker that has ended, without a process."""

    failed_itself, signal_number = Worker.failed_itself, Worker.signal_number
    blames_another, exit_status, ending = Worker.blames_another, Worker.exit_status, Worker.ending
    missed_others, missed, _last_words = Worker.missed_others, Worker.missed, Worker._last_words
    awaited, silent, blames_itself = Worker.awaited, Worker.silent, Worker.blames_itself

    def __init__(self, index, code, output=b"", stopped_with=None, stopped=False, waited_for_by=None):
        self.index, self.code, self.stopped_with, self.seconds = index, code, stopped_with, 1.0
        self.stopped, self.waited_for_by = stopped, waited_for_by
        self.stream = Stream(index, Screen())
        self.stream.feed(output, 0)


BLAME = b"Traceback\nepl.errors.WorkerError: worker 0 failed in step 3\n"
LATE = b"Traceback\nepl.errors.CommunicationError: worker 0 has ended already, but worker 1 waits for it\n"
MISSED = b"Traceback\nepl.errors.CommunicationError: no sign of life from worker 0\n"
IN_VAIN = b"Traceback\nepl.errors.CommunicationError: all_reduce 'x' on 'g0/data0': worker 1 waited 8 s for %s\n"
NO_DATA_AT_0 = (
    b"Traceback\ntensorflow.errors.OutOfRangeError: the data of worker 0 ended at step 3, so all workers end here (x)\n"
)


@pytest.mark.parametrize(
    "workers, index",
    [
        ([Ended(0, 0)], None),
        ([Ended(0, 0), Ended(1, 1)], 1),
        ([Ended(1, 1), Ended(0, 1)], 1),
        ([Ended(1, 1), Ended(0, -9)], 0),
        ([Ended(1, 1), Ended(0, 137)], 0),
        ([Ended(1, 1, BLAME), Ended(0, 1)], 0),
        ([Ended(1, 1, BLAME), Ended(2, 1, BLAME)], 1),
        ([Ended(1, 1, BLAME), Ended(0, 1, BLAME), Ended(2, 1, BLAME)], 0),
        ([Ended(1, -15, stopped_with=15), Ended(0, 3)], 0),
        ([Ended(1, -15, stopped_with=15)], None),
        ([Ended(0, 0), Ended(1, 1, BLAME)], 0),
        ([Ended(0, 0), Ended(1, 1)], 1),
        ([Ended(1, 1, MISSED), Ended(0, -15, stopped_with=15, stopped=True)], 0),
        ([Ended(1, 1, LATE), Ended(2, 0), Ended(0, 0)], 0),
        ([Ended(1, 1, MISSED), Ended(0, 0)], 1),
        ([Ended(1, 1, LATE), Ended(0, 3)], 0),
        ([Ended(1, 1, NO_DATA_AT_0), Ended(0, 1, b"tensorflow.errors.OutOfRangeError: End of sequence\n")], 0),
        ([Ended(1, 4), Ended(0, -15, stopped_with=15, stopped=True)], 1),
        ([Ended(1, 0), Ended(0, -15, stopped_with=15, stopped=True)], 0),
        ([Ended(1, 0, waited_for_by=0), Ended(0, -15, stopped_with=15)], 1),
        ([Ended(1, 1, IN_VAIN % b"worker 0 (process 1)"), Ended(0, -15, stopped_with=15)], 0),
        ([Ended(1, 1, IN_VAIN % b"worker 0 (process 1)"), Ended(0, 1)], 0),
        ([Ended(1, 1, IN_VAIN % b"workers 2 (process 1), 3"), Ended(0, 0), Ended(3, -15, stopped_with=15)], 3),
        ([Ended(1, 1), Ended(0, -15, stopped_with=15)], 1),
    ],
)
def test_root_cause(workers, index):
    cause = root_cause(workers)
    assert (cause and cause.index) == index


@pytest.mark.parametrize(
    "code, status, words",
    [
        (3, 3, "exit code 3"),
        (-9, 137, "killed by SIGKILL (signal 9)"),
        (-11, 139, "killed by SIGSEGV (signal 11)"),
        (137, 137, "exit code 137 (SIGKILL (signal 9) ended a program of the script)"),
        (255, 255, "exit code 255"),
    ],
)
def test_endings(code, status, words):
    worker = Ended(0, code)
    assert (worker.exit_status, worker.ending()) == (status, words)


@pytest.mark.parametrize(
    "words, workers",
    [
        ("worker 1 waited 8 s for worker 0 (process 12)", {0}),
        ("rank 1: worker 1 waited 0.5 s for workers 0 (process 3, stopped), 12 (process 4)", {0, 12}),
        ("could not connect: worker 2 (127.0.0.1:80), worker 3 (h:81) did not come within 8 s. ", {2, 3}),
        ("Worker 0 at 127.0.0.1:25373 could not be reached within 8 s: Connection refused", {0}),
        ("worker 1 has waited 8 s in vain for worker 0 to come to the same call", {0}),
        ("worker 1 saves 'a', but worker 0 has not saved it within 6.4 s: all", {0}),
        ("no sign of life from worker 4 for 8 s, but worker 0 waits", {4}),
        ("worker 1 has not started within 8 s (communication.start_timeout_s), but worker 0 waits for worker 1", {1}),
        ("workers 1 and 2 have not started within 8 s", {1, 2}),
        ("worker 3 and 2 others have not started within 8 s", {3}),
        ("worker 1 failed in step 3", set()),
    ],
)
def test_who_was_awaited(words, workers):
    assert Ended(1, 1, b"Traceback\nepl.errors.CommunicationError: %s\n" % words.encode()).awaited == workers


def test_summary():
    workers = [
        Ended(2, -signal.SIGKILL, b"".join(b"line %d\n" % i for i in range(50))),
        Ended(0, 1, BLAME),
        Ended(1, -15, stopped_with=15),
        Ended(3, 0),
    ]
    text = failure_text(workers, [], "logs")
    lines = text.splitlines()
    assert lines[-22].startswith(
        "epl-launch: worker 2 failed after 1.0 s: killed by SIGKILL (signal 9). Somebody killed"
    )
    assert lines[-21] == "epl-launch: last lines of worker 2:"
    assert lines[-20:] == ["  | line %d" % i for i in range(30, 50)]
    assert lines[:-22] == [
        "epl-launch: worker 0 ended because of it: exit code 1.",
        "epl-launch: worker 1 was still running and was ended by epl-launch.",
        "epl-launch: worker 3 had ended well.",
        "epl-launch: whole output: logs/worker-<index>.log",
    ]
    assert "  | epl.errors.WorkerError: worker 0 failed in step 3" in failure_text(workers, [], "logs", True)


TRACEBACK = b"""\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    train()
  File "/x/site-packages/tensorflow/session.py", line 3, in run
    raise error
tensorflow.errors.InvalidArgumentError: Graph execution error:

Detected at node 'x' defined at (most recent call last):
    File "train.py", line 3, in <module>
Node: 'x'
the loss is no number
	 [[{{node x}}]]

Original stack trace for 'x':
  File "train.py", line 3, in <module>
Exception ignored in: <function Session.__del__ at 0x7f>
Traceback (most recent call last):
  File "/x/site-packages/tensorflow/session.py", line 7, in __del__
    release()
AttributeError: 'NoneType' object has no attribute 'TF_SessionReleaseCallable'
worker 0: CANCELLED
"""


def test_the_cause_comes_last_and_nothing_after_it():
    text = failure_text([Ended(1, 1, TRACEBACK), Ended(0, 1, BLAME)], [], "logs")
    assert text.splitlines()[2:] == [
        "epl-launch: worker 1 failed after 1.0 s: exit code 1.",
        "  | tensorflow.errors.InvalidArgumentError: Graph execution error:",
        "  | the loss is no number",
        "  | \t [[{{node x}}]]",
        '  |   File "train.py", line 9, in <module>',
        "  |   train()",
    ]
    assert "worker 0: CANCELLED" in failure_text([Ended(1, 1, TRACEBACK)], [], None, everything=True)


@pytest.mark.parametrize(
    "workers, words",
    [
        ([Ended(0, 0), Ended(1, 1, BLAME)], "worker 0 ended after 1.0 s: exit code 0, while the others still trained."),
        (
            [Ended(1, 1, MISSED), Ended(0, -15, stopped_with=15, stopped=True)],
            "worker 0 failed after 1.0 s: it was stopped (SIGSTOP), and the others waited for it in vain.",
        ),
        (
            [Ended(0, 0, waited_for_by=1), Ended(1, -15, stopped_with=15)],
            "worker 0 ended after 1.0 s: exit code 0, but without epl.init(), so that worker 1 waits for it in vain.",
        ),
        (
            [Ended(1, 1, IN_VAIN % b"worker 0 (process 1)"), Ended(0, 0, stopped_with=15)],
            "worker 0 ended after 1.0 s: it still ran, but the others waited for it in vain.",
        ),
    ],
)
def test_the_victim_is_not_blamed(workers, words):
    assert failure_text(workers, [], "logs").splitlines()[-1] == "epl-launch: " + words


def test_summary_of_a_silent_worker():
    assert "worker 0 printed nothing" in failure_text([Ended(0, 1)], [], None)


def test_the_error_is_kept_when_much_follows_it():
    _, (first, second) = streams()
    first.feed(b"Traceback (most recent call last):\n  File x\nValueError: no such luck\n", 0)
    for _ in range(40):
        first.feed(b"Original stack trace, and so on\n", 0)
    assert first.errors.message == ["ValueError: no such luck"]
    assert "ValueError: no such luck" not in first.last_lines()
    second.feed(b"  indented.Error: not one\nan Error: neither\n", 0)
    assert second.errors.message == []


def test_several_causes_are_kept():
    seen = ErrorsSeen()
    for line in (
        "Traceback (most recent call last):",
        "a.UnknownError: 2 root error(s) found.",
        "  (0) Unknown: b",
        "x",
    ):
        seen.take(line)
    assert seen.message == ["a.UnknownError: 2 root error(s) found.", "  (0) Unknown: b", "x"]


@pytest.mark.parametrize(
    "last, message",
    [("KeyboardInterrupt", "KeyboardInterrupt"), ("mine.Stop: now", "mine.Stop: now"), ("not so", None)],
)
def test_what_ends_a_traceback(last, message):
    seen = ErrorsSeen()
    for line in ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()", "    ~~~^^", last):
        seen.take(line)
    assert seen.message == ([message] if message else [])
    assert seen.place == (['File "a.py", line 1, in f', "g()"] if message else [])
