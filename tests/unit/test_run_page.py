"""The page of a run, of facts that are written by hand, and what the launcher collects for it."""

import re
import subprocess
import sys
import time
import types

import pytest

from epl.launch import board, run_record
from epl.report import page
from epl.report.curves import curve
from epl.report.figures import duration
from epl.report.time_bars import seconds_of

pytestmark = pytest.mark.once


def event(begin, end, name="", number=0, size=0):
    return {"begin": begin, "end": end, "name": name, "number": number, "bytes": size}


STEP = {"compute": 0.006, "data": 0.001, "communication": 0.002, "bubble": 0.0, "rest": 0.001}


def worker(index, **changes):
    facts = {
        "worker": index,
        "steps": 3,
        "step": 13,
        "rows": 4.0,
        "loss": 0.25,
        "in_program_s": 1.0,
        "in_steps_s": 6.0,
        "waited_others_s": 2.0,
        "waited_data_s": 1.0,
        "in_collectives_s": 0.5,
        "collective_bytes": 2048,
        "first_step_at": 100.0,
        "last_step_at": 102.0,
        "step_times": {"steps": 3, "devices": [["CPU:0", dict(STEP)]]},
        "phases": [event(91.0, 93.5, "planning")],
        "messages": [],
        "last_steps": [event(100.0, 101.0, number=12), event(101.5, 102.0, number=13)],
        "last_collectives": [event(100.5, 100.75, "group_<0>", size=1024), event(101.75, None, "group_1")],
    }
    return dict(facts, **changes)


def facts(**changes):
    made = {
        "command": ["python", "/home/me/train.py", "--name", "<b>"],
        "workers": 2,
        "devices": "1 CPU device",
        "started": 0.0,
        "began": 90.0,
        "seconds": 75.0,
        "attempts": ["attempt 1: 2 workers, 75.0 s: all workers ended well"],
        "cause": [],
        "curve": [[1.0, 5, 1.5, 0.5], [2.0, 9, 1.75, None], [3.0, 13, 2.0, 0.25]],
        "warnings": [["a batch of 3 rows does not divide", 2]],
        "by_worker": [worker(0), worker(1)],
        "parts": [["Plan", "<pre>2 model replicas</pre>"]],
    }
    return dict(made, **changes)


def test_all_is_on_the_page():
    text = page(facts())
    for said in ("train.py", "1:15", "13", "samples a second", "8", "last loss", "0.25", "all workers ended well"):
        assert said in text, said
    for said in ("a batch of 3 rows does not divide", "2 model replicas", "planning", "4.0 KiB of tensors"):
        assert said in text, said
    assert "&lt;b&gt;" in text and "<b>" not in text and "group_&lt;0&gt;" in text
    assert re.findall(r'(?:src|href)="(?!#)', text) == []  # nothing is loaded from elsewhere


def test_why_it_failed_stands_on_the_page():
    text = page(facts(cause=["worker 1: killed by SIGKILL (signal 9)"], by_worker=[], curve=[], warnings=[]))
    assert "Why it failed" in text and "SIGKILL" in text and "The last steps" not in text


def test_shares_add_up_to_the_time_of_training():
    seconds = seconds_of(worker(0))
    assert seconds == {"devices": 3.0, "others": 2.0, "data": 1.0, "program": 1.0}
    assert seconds_of(worker(0, waited_data_s=None))["devices"] == 4.0
    assert sum(seconds.values()) == worker(0)["in_program_s"] + worker(0)["in_steps_s"]


def test_where_a_step_goes_stands_by_device():
    text = page(facts(by_worker=[worker(0), worker(1, step_times=None)]))
    for said in ("Where a step&#x27;s time goes", "worker 0 CPU:0", "10 ms", "6 ms, 60 %", "2 ms, 20 %", "0 s, 0 %"):
        assert said in text, said
    assert "worker 1 CPU:0" not in text and "waiting for other stages" not in text  # which take no time
    assert "step&#x27;s time" not in page(facts(by_worker=[worker(0, step_times=None)]))


def test_a_curve_has_gaps_and_bounds():
    text = curve("loss", [0.0, 1.0, 2.0, 3.0], [1.0, float("nan"), 3.0, 2.0], False)
    assert text.count("<polyline") == 2 and ">3<" in text and ">1<" in text
    assert curve("loss", [0.0], [None], False) == ""
    assert "<polyline" in curve("same", [0.0, 1.0], [2.0, 2.0], False)


def test_durations():
    assert [duration(value) for value in (3.25, 245, 3610)] == ["3.2 s", "4:05", "1:00:10"]


def seen(steps, at, loss=None):
    return types.SimpleNamespace(steps=steps, step=steps, last_step_at=at, loss=loss, pid=1)


def test_the_course_of_a_long_job_is_kept_in_few_points():
    course = run_record.Curve()
    for number in range(1, 20001):
        course.add(number * 0.5, {0: seen(number, number * 0.5, 1.0 / number)})
    assert 200 < len(course.points) <= 601
    assert all(abs(rate - 2.0) < 1e-9 for _, _, rate, _ in course.points)
    assert course.points[0][0] < 20 and course.points[-1][0] > 9900


def test_a_course_begins_with_the_first_step():
    course = run_record.Curve()
    course.add(1.0, {0: seen(0, 0.0)})
    course.add(2.0, {0: seen(1, 2.0)})
    assert course.points == []
    course.add(3.0, {0: seen(3, 3.0, 0.5)})
    assert course.points == [[3.0, 3, 2.0, 0.5]]


def test_warnings_are_counted():
    heard = run_record.Warnings()
    for line in ("2026-01-01 10:00:00 WARNING epl: slow", "WARNING epl: slow", "INFO epl: no", "WARNING:tensorflow:no"):
        heard.take(line)
    assert dict(heard.counts) == {"slow": 2}


def test_what_boards_hold(tmp_path):
    path = str(tmp_path / ".worker-0.board")
    own = board.Board(path)
    own["steps"], own["in_steps_s"], own["rows"] = 2, 1.5, 8
    now = time.monotonic()
    own.note(board.PHASE_EVENT, now - 3, now - 2, "planning")
    own.note_step(now - 2, now - 1, 1)
    own.note_step(now - 1, now, 2)
    with open(board.times_beside(path), "w") as stream:
        stream.write('{"steps": 3, "devices": []}')
    (found,) = run_record.of_workers({0: path, 1: str(tmp_path / "none")})
    assert found["steps"] == 2 and found["rows"] == 8 and found["waited_data_s"] is None
    assert found["step_times"] == {"steps": 3, "devices": []}
    assert [each["number"] for each in found["last_steps"]] == [1, 2] and found["phases"][0]["name"] == "planning"


def test_a_page_that_cannot_be_written_is_said(tmp_path):
    target = str(tmp_path / "missing" / "run.html")
    made = subprocess.run(
        [sys.executable, "-m", "epl.report", target], input=b"{", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert made.returncode != 0
    job = run_record.RunRecord(["run.sh"], 1, "1 CPU device", str(tmp_path))
    assert "No such file or directory" in job.write(target, [], [])
    assert job.write(str(tmp_path / "run.html"), [], ["it failed"]) is None
    assert "it failed" in (tmp_path / "run.html").read_text()
