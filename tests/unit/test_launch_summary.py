"""epl-launch: what it makes of the ends of workers."""

import collections
import signal

import pytest

from epl.launch.errors_seen import ErrorsSeen
from epl.launch.notes import Failure
from epl.launch.output import Stream
from epl.launch.summary import failure_text
from epl.launch.workers import Worker, root_cause
from tests.unit.test_launch_output import Screen, streams

pytestmark = pytest.mark.once


class Ended:
    """A worker that has ended, without a process."""

    failed_itself, signal_number, silent = Worker.failed_itself, Worker.signal_number, Worker.silent
    exit_status, ending, failure, since = Worker.exit_status, Worker.ending, Worker.failure, Worker.since

    def __init__(self, index, code, at=9.0, failure=None, output=b"", stopped_with=None, stopped=False, waited_by=None):
        self.index, self.code, self.stopped_with, self.seconds = index, code, stopped_with, 1.0
        self.stopped, self.waited_for_by, self.ended_at = stopped, waited_by, at
        self.note = collections.namedtuple("Note", "failure state")(failure, "")
        self.stream = Stream(index, Screen())
        self.stream.feed(output, 0)


def own(at, error="KeyError: 'no such luck'"):
    return Failure(at, error, 3, (), False)


def because(at, *workers):
    return Failure(at, "WorkerError: another one failed", 3, workers, True)


LOST = because  # with no workers: others are lost, and it is not known which
BLAME = b"Traceback\nepl.errors.WorkerError: worker 0 failed in step 3\n"


@pytest.mark.parametrize(
    "workers, index",
    [
        # Without notes: who ended first, and one that was killed where two ended at a time.
        ([Ended(0, 0)], None),
        ([Ended(0, 0), Ended(1, 1)], 1),
        ([Ended(1, 1, 8), Ended(0, 1)], 1),
        ([Ended(1, 1), Ended(0, -9)], 0),
        ([Ended(1, 1), Ended(0, 137)], 0),
        ([Ended(1, 1, 8), Ended(0, 137)], 1),
        ([Ended(1, -15, stopped_with=15), Ended(0, 3)], 0),
        ([Ended(1, -15, stopped_with=15)], None),
        ([Ended(1, 4), Ended(0, -15, stopped_with=15, stopped=True)], 1),
        ([Ended(1, 0), Ended(0, -15, stopped_with=15, stopped=True)], 0),
        ([Ended(1, 0, waited_by=0), Ended(0, -15, stopped_with=15)], 1),
        ([Ended(1, 1), Ended(0, -15, stopped_with=15)], 1),
        # The one that is named, whoever ends first, and whatever is printed.
        ([Ended(1, 1, 8, because(7, 0), BLAME), Ended(0, 1, 9, own(6))], 0),
        ([Ended(1, -6, 8, because(7, 0)), Ended(0, 1, 9, own(6))], 0),
        ([Ended(1, 137, 8, because(7, 0)), Ended(0, -15, 9, own(6), stopped_with=15)], 0),
        ([Ended(1, 1, 8, because(7, 0)), Ended(0, 1, 9)], 0),
        ([Ended(1, 1, 8, because(7, 0)), Ended(0, -9, 9)], 0),
        ([Ended(1, 1, 8, because(7, 0)), Ended(0, 0, 9, own(6))], 0),
        ([Ended(1, 1, 8, because(7, 2)), Ended(2, 1, 8, because(6, 0)), Ended(0, 3)], 0),
        # The first of several.
        ([Ended(1, 1, 8, own(7)), Ended(0, 1, 9, own(6), BLAME)], 0),
        ([Ended(1, 1, 8, own(5)), Ended(0, 1, 9, own(6))], 1),
        ([Ended(1, 1, 8, because(7, 0)), Ended(2, 1, 8, own(5)), Ended(0, 1, 9, own(6))], 2),
        ([Ended(1, 1, 8, because(5, 0)), Ended(2, -9, 6), Ended(0, -9, 9)], 0),
        # One that is stopped, has ended well, or still runs.
        ([Ended(1, 1, 8, because(7, 0)), Ended(0, -15, stopped_with=15, stopped=True)], 0),
        ([Ended(1, 1, 8, because(7, 0)), Ended(2, 0), Ended(0, 0)], 0),
        ([Ended(1, 1, 8, because(7, 2, 3)), Ended(0, 0, 5), Ended(3, -15, stopped_with=15)], 3),
        ([Ended(1, 1, 8, because(7, 2)), Ended(2, -15, 9, because(7, 3), stopped_with=15), Ended(3, -15)], 3),
        # Worker 0 has waited for 2, and 2 all the time for 1, which sleeps.
        ([Ended(0, 1, 8, because(7, 2)), Ended(2, 1, 8, because(7, 0)), Ended(1, -15, stopped_with=15)], 1),
        ([Ended(0, 1, 8, because(7, 2)), Ended(2, 1, 8, because(7, 5)), Ended(1, -15, stopped_with=15)], 2),
        # Nobody knows, or only those of other machines.
        ([Ended(1, 1, 8, LOST(7)), Ended(0, -15, stopped_with=15, stopped=True)], 0),
        ([Ended(1, 1, 8, LOST(7)), Ended(0, 0, 5)], 0),
        ([Ended(1, 1, 8, LOST(7)), Ended(0, 0, 9)], 1),
        ([Ended(1, 1, 8, because(7, 5)), Ended(0, 1, 9, because(6, 5))], 0),
        ([Ended(1, 1, 8, because(7, 5)), Ended(0, 3, 9)], 0),
        ([Ended(1, 1, 8, because(7, 0)), Ended(0, 1, 8, because(7, 1))], 0),
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


def test_summary():
    workers = [
        Ended(2, -signal.SIGKILL, output=b"".join(b"line %d\n" % i for i in range(50))),
        Ended(0, 1, output=BLAME),
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


def summed_up(*workers):
    return failure_text(list(workers), [], None).splitlines()


def test_the_summary_shows_what_was_noted_where_something_else_was_printed():
    noted = own(6)
    assert summed_up(Ended(0, 1, 9, noted, b"ValueError: nothing to do with it\n"))[1:] == ["  | " + noted.error]
    printed = (
        b"Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    f()\nx.KeyError: 'no such luck'\n"
    )
    assert summed_up(Ended(0, 1, 9, noted, printed))[1:] == [
        "  | x.KeyError: 'no such luck'",
        '  |   File "a.py", line 3, in f',
        "  |   f()",
    ]
    assert summed_up(Ended(0, -15, 9, noted, stopped_with=15), Ended(1, 1, 8, because(7, 0)))[1:] == [
        "epl-launch: worker 0 failed after 1.0 s: it still ran after its error.",
        "  | " + noted.error,
    ]


def test_the_summary_says_for_what_others_have_waited():
    lines = summed_up(Ended(0, 0, 5), Ended(1, 1, 8, because(7, 0)))
    assert lines == [
        "epl-launch: worker 1 ended because of it: exit code 1.",
        "  | WorkerError: another one failed",
        "epl-launch: worker 0 ended after 1.0 s: exit code 0, while the others still trained.",
    ]


def test_the_summary_names_workers_of_other_machines():
    assert summed_up(Ended(0, 1, 9, because(7, 5)))[:1] == [
        "epl-launch: worker 0 ended because of worker 5, which another machine runs; see the output there."
    ]


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
    text = failure_text([Ended(1, 1, 8, output=TRACEBACK), Ended(0, 1, output=BLAME)], [], "logs")
    assert text.splitlines()[2:] == [
        "epl-launch: worker 1 failed after 1.0 s: exit code 1.",
        "  | tensorflow.errors.InvalidArgumentError: Graph execution error:",
        "  | the loss is no number",
        "  | \t [[{{node x}}]]",
        '  |   File "train.py", line 9, in <module>',
        "  |   train()",
    ]
    assert "worker 0: CANCELLED" in failure_text([Ended(1, 1, output=TRACEBACK)], [], None, everything=True)


@pytest.mark.parametrize(
    "workers, words",
    [
        (
            [Ended(0, 0), Ended(1, 1, 9, because(8, 0))],
            "worker 0 ended after 1.0 s: exit code 0, while the others still trained.",
        ),
        (
            [Ended(1, 1, 8, because(7, 0)), Ended(0, -15, stopped_with=15, stopped=True)],
            "worker 0 failed after 1.0 s: it was stopped (SIGSTOP), and the others waited for it in vain.",
        ),
        (
            [Ended(0, 0, waited_by=1), Ended(1, -15, stopped_with=15)],
            "worker 0 ended after 1.0 s: exit code 0, but without epl.init(), so that worker 1 waits for it in vain.",
        ),
        (
            [Ended(1, 1, 8, because(7, 0)), Ended(0, 0, stopped_with=15)],
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
