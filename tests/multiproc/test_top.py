"""epl-top: of a job without any option, the worker and the operation that the others wait for are named."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.launching import Launch
from tests.helpers.processes import clean_environment

pytestmark = pytest.mark.either_line

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, "tests", "helpers", "programs", "held_up.py")
# Beyond it something hangs.
LIMIT_S = 120


class HeldUp(object):
    """A running job of held_up.py with two workers."""

    def __init__(self, folder):
        self.folder = folder
        arguments = [sys.executable, "-m", "epl.launch", "--num_workers", "2", "--device", "cpu", PROGRAM, str(folder)]
        self.output = open(str(folder / "output"), "wb")
        self.process = subprocess.Popen(
            arguments,
            cwd=str(folder),
            env=clean_environment(TMPDIR=str(folder)),
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def top(self, *arguments):
        """(exit status, output) of epl-top."""
        command = [sys.executable, "-m", "epl.launch.top"] + list(arguments)
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, env=clean_environment()
        )
        return ended.returncode, ended.stdout.decode()

    def once(self):
        return self.top("--once", str(self.process.pid))[1]

    def until(self, told, what):
        """Waits until `told` gives something; returns that."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = told()
            if found:
                return found
            assert self.process.poll() is None, (self.folder / "output").read_text()
            assert time.monotonic() < deadline, "not %s: %s" % (what, (self.folder / "output").read_text())
            time.sleep(0.05)

    def begin(self, fault):
        path = self.folder / "at"
        if path.exists():
            path.unlink()
        (self.folder / "next").write_text(fault)
        (self.folder / "next").rename(self.folder / "fault")  # the program may look at any time
        self.until(lambda: path.exists() and path.read_text() == fault, "at " + fault)
        time.sleep(1.0)  # until the others have waited for it for a while

    def end(self):
        (self.folder / "fault").unlink()
        self.until(lambda: "\nnobody is late" in self.once(), "going on")

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(LIMIT_S)
        finally:
            self.output.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    started = HeldUp(tmp_path_factory.mktemp("held"))
    try:
        started.until(lambda: re.search(r"(?m)^1 +\d+ +[1-9]\d+ ", started.once()), "training")
        yield started
    finally:
        started.close()


def row(text, worker):
    """The line of a worker in the table."""
    return next(line for line in text.splitlines() if line.startswith("%d " % worker))


@pytest.mark.parametrize(
    "fault, names",
    [
        (
            "sleeps",
            r"late: worker 1, in its own Python for [\d.]+ s, at held_up\.py:\d+ in sleeps: time\.sleep\(0\.1\)",
        ),
        (
            "endless_loop",
            r"late: worker 1, in its own Python for [\d.]+ s, at held_up\.py:\d+ in (endless_loop|fault): ",
        ),
        ("endless_call", r"late: worker 1, in a step of .* for [\d.]+ s, at held_up\.py:\d+ in (endless_call|fault): "),
        (
            "holds_the_interpreter",
            r"late: worker 1, in its own Python for [\d.]+ s, at held_up\.py:\d+ in holds_the_interpreter: re\.match",
        ),
        (
            "starved",
            r"late: worker 1, waits for data \(.*IteratorGetNext.*\) for [\d.]+ s, at held_up\.py:\d+ in (rows|fault)",
        ),
        ("other_fetches", r"late: worker 1, waits for data \(taken\) for [\d.]+ s, at held_up\.py:\d+ in "),
        ("slow", r"late: worker 1, .* for [\d.]+ s, at held_up\.py:\d+ in <module>: "),
    ],
)
def test_who_is_late_is_named(job, fault, names):
    job.begin(fault)
    text = job.once()
    job.end()
    assert re.search(names, text), text
    assert "late: worker 0" not in text
    if fault != "slow":
        in_step = fault in ("endless_call", "starved")
        waits = "all_reduce 'epl_aggregate/" if in_step else "the exchange before a step, for which all workers have to"
        assert "in " + waits in row(text, 0), text


def test_a_stopped_worker_is_named(job):
    job.begin("stopped")
    pid = int(row(job.once(), 1).split()[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        text = job.until(lambda: re.search(r"late: worker 1, stopped \(SIGSTOP\); it was in .*", job.once()), "named")
        assert text.group(0)
    finally:
        os.kill(pid, signal.SIGCONT)
    job.end()


def test_all_stacks_and_a_timeline(job, tmp_path):
    text = job.top("--once", "--stacks")[1]
    assert re.search(r"worker 0:\nthread that trains:\n", text) and "held_up.py" in text, text
    path = str(tmp_path / "timeline.json")
    status, said = job.top("--flight", path)
    assert (status, said) == (0, "wrote %s, for https://ui.perfetto.dev or chrome://tracing\n" % path)
    traced = open(path).read()
    assert "agreement on a step" in traced and re.search(r'"name": "step \d+"', traced)


def test_no_such_job(job):
    status, said = job.top("--once", "1")
    assert status == 2
    assert said.startswith("epl-top: error: no job is called 1. By the launcher's process id there are:\n  ")


FAILS = """\
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.ones([8, 4]), 1)))
train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(20):
        if step == 10 and epl.Env.get().cluster.worker_index == 1:
            raise ValueError("no such luck")
        sess.run(train)
"""


def test_the_last_events_are_kept_after_a_bad_end(tmp_path):
    (tmp_path / "train.py").write_text(FAILS)
    job = Launch(tmp_path, ["--num_workers", "2", "--device", "cpu", "--log_dir", "logs", "train.py"], verbose=False)
    status, out, err = job.wait()
    assert status == 1 and "ValueError: no such luck" in err
    assert "[epl-launch] the last events of all workers: logs/timeline.json (for https://ui.perfetto.dev)" in out
    assert sorted(os.listdir(str(tmp_path / "logs"))) == ["timeline.json", "worker-0.log", "worker-1.log"]
    events = json.loads((tmp_path / "logs" / "timeline.json").read_text())["traceEvents"]
    for worker in range(2):
        names = [event["name"] for event in events if event["pid"] == worker]
        assert [name for name in names if name.startswith("step ")] == ["step %d" % n for n in range(1, 11)]
        assert names.index("planning") < names.index("rewriting the graph") < names.index("building the graph")
        assert sum("all_reduce epl_aggregate" in name for name in names) == 10
        assert sum("no such luck" in name for name in names) == 1
