"""Who holds a job up: from looks at workers that are made by hand."""

import pytest

from epl.launch import board, diagnosis, flight, stacks
from epl.launch.diagnosis import Look, Process

pytestmark = pytest.mark.once

IDLE, BUSY = 0.0, 1.0  # seconds of processor time between the looks, which are 1 s apart
EXCHANGE, REDUCE = (3, board.AGREEMENT), (0, "group_0")


class Job(object):
    """Two looks at workers, at 100 s and 101 s."""

    def __init__(self, folder):
        self.folder, self.before, self.after, self.boards = folder, {}, {}, {}

    def add(self, worker, state, since=90.0, cpu=BUSY, process="S", inside=None, moves=0, **numbers):
        path = str(self.folder / (".worker-%d.board" % worker))
        own = self.boards[worker] = board.Board(path)
        own.say(kinds=[["train", ""], ["train", "IteratorGetNext"]], doing="planning")
        own.state(state, since)
        for name, value in dict(dict(steps=5, kind=1, last_step_at=since), **numbers).items():
            own[name] = value
        under_way = [board.Event(since, None, inside[0], inside[1], 8, 0, 0)] if inside else []
        self.before[worker] = Look(board.read(path), Process("S", 3.0, 1), [], under_way, (0.0, 0), 100.0)
        own["steps"] += moves
        self.after[worker] = Look(board.read(path), Process(process, 3.0 + cpu, 1), [], under_way, (0.0, 0), 101.0)
        return self

    def verdicts(self):
        return diagnosis.verdicts(self.before, self.after)

    def late(self):
        return diagnosis.late(self.before, self.after, self.verdicts())


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


@pytest.mark.parametrize(
    "state, options, what, text",
    [
        (board.PROGRAM, {}, diagnosis.PROGRAM, "in its own Python"),
        (board.STEP, {}, diagnosis.COMPUTES, "in a step of train"),
        (board.STEP, {"cpu": IDLE}, diagnosis.DATA, "waits for data (IteratorGetNext)"),
        (board.STEP, {"cpu": IDLE, "kind": 0}, diagnosis.COMPUTES, "in a step of train"),
        (board.STEP, {"cpu": IDLE, "kind": 7}, diagnosis.COMPUTES, "in a step"),
        (board.STEP, {"inside": REDUCE}, diagnosis.WAITS, "in all_reduce 'group_0'"),
        (
            board.STEP,
            {"process": "T", "inside": REDUCE},
            diagnosis.STOPPED,
            "stopped (SIGSTOP); it was in all_reduce 'group_0'",
        ),
        (board.STEP, {"process": "T"}, diagnosis.STOPPED, "stopped (SIGSTOP); it was in a step of train"),
        (board.PROGRAM, {"process": None}, diagnosis.GONE, "its process is gone; it was in its own Python"),
        (board.OTHERS, {}, diagnosis.WAITS, "waits for planning"),
        (board.PREPARES, {}, diagnosis.PREPARES, "planning"),
        (board.LEFT, {"process": None}, diagnosis.ENDED, "at its end"),
    ],
)
def test_what_a_worker_is_at(job, state, options, what, text):
    verdict = job.add(0, state, **options).verdicts()[0]
    assert (verdict.what, verdict.text, verdict.since_s) == (what, text, 11.0)


@pytest.mark.parametrize(
    "state, options",
    [
        (board.PROGRAM, {}),
        (board.STEP, {"cpu": IDLE}),
        (board.STEP, {}),
        (board.PREPARES, {}),
        (board.STEP, {"process": "T"}),
    ],
)
def test_who_does_not_wait_is_late(job, state, options):
    job.add(0, board.STEP, inside=EXCHANGE).add(1, state, **options).add(2, board.OTHERS)
    assert job.late() == [1]


def test_a_short_wait_names_nobody(job):
    assert job.add(0, board.STEP, since=100.5, inside=REDUCE).add(1, board.STEP, since=100.4).late() == []


def test_a_job_that_goes_on_names_nobody(job):
    assert job.add(0, board.STEP, inside=EXCHANGE, moves=1).add(1, board.PROGRAM, moves=1).late() == []


def test_who_has_ended_is_not_late(job):
    assert job.add(0, board.LEFT, process=None).add(1, board.PROGRAM).late() == [1]


def test_all_wait_for_each_other(job):
    assert job.add(0, board.STEP, inside=EXCHANGE).add(1, board.STEP, inside=REDUCE).late() == []


def test_a_slow_worker_is_named(job):
    job.add(0, board.STEP, since=100.9, moves=1).add(1, board.STEP, since=100.9, moves=1)
    for worker, waited in ((0, 0.6), (1, 0.1)):
        own = job.boards[worker]
        own["in_steps_s"], own["waited_others_s"] = 1.0, waited
        seen = board.read(str(job.folder / (".worker-%d.board" % worker)))
        job.after[worker] = job.after[worker]._replace(seen=seen)
    assert job.late() == [1]


TEXT = """\
Thread 0x00007f11 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/data.py", line 7 in rows

Current thread 0x00007f22 (most recent call first):
  File "/usr/lib/python3.11/site-packages/tensorflow/python/client/session.py", line 9 in run
  File "/home/me/train.py", line 3 in <module>
"""


def test_stacks():
    found = stacks.parse(TEXT)
    assert [stack.thread for stack in found] == [0x7F11, 0x7F22]
    assert stacks.place(found, 0x7F22) == stacks.Frame("/home/me/train.py", 3, "<module>")
    assert stacks.place(found, 0x7F22, beside=True) == stacks.Frame("/home/me/data.py", 7, "rows")
    assert stacks.text(found, 0x7F22)[0] == "thread that trains:"
    assert stacks.place([], 1) is None


def test_of_other_threads_those_that_tensorflow_calls_come_first():
    started = (
        "Thread 0x00007f33 (most recent call first):\n"
        '  File "/home/me/log.py", line 5 in flush\n'
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
    )
    found = stacks.parse(started + TEXT)
    assert stacks.place(found, 0x7F22, beside=True) == stacks.Frame("/home/me/data.py", 7, "rows")
    assert stacks.place(stacks.parse(started), 0x7F22, beside=True) == stacks.Frame("/home/me/log.py", 5, "flush")


def test_a_timeline(tmp_path):
    own = board.Board(str(tmp_path / "b"))
    own.note_step(1.0, 1.5, 7)
    own.note(board.MESSAGE_EVENT, 2.0, 2.0, "ValueError: no")
    own.note(board.PHASE_EVENT, 3.0, None, "planning")
    traced = flight.timeline({4: str(tmp_path / "b"), 5: str(tmp_path / "none")}, now=4.0)["traceEvents"]
    assert traced[0] == {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "worker 4"}}
    events = [event for event in traced if event["ph"] != "M"]
    assert events == [
        {"pid": 4, "tid": 1, "ts": 1e6, "name": "step 7", "args": {}, "ph": "X", "dur": 0.5e6},
        {"pid": 4, "tid": 1, "ts": 2e6, "name": "ValueError: no", "args": {}, "ph": "i", "s": "p"},
        {"pid": 4, "tid": 1, "ts": 3e6, "name": "planning", "args": {"unfinished": True}, "ph": "X", "dur": 1e6},
    ]
    assert flight.timeline({5: str(tmp_path / "none")}) == {}
