"""Starts epl-launch with small programs as workers and watches what becomes of them."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.helpers.processes import Noted, alive, clean_environment

# How long a job may take that should end at once: a hang, and no measure of speed.
LIMIT_S = 120

# What every worker of these tests begins with: it has come to epl.init().
SHELL_PRELUDE = """echo '{"state": "joined"}' > "$EPL_LAUNCH_NOTE"\n"""
PRELUDE = """\
import json, os, signal, subprocess, sys, time
open(os.environ["EPL_LAUNCH_NOTE"], "w").write('{"state": "joined"}\\n')
INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def note(name, text=""):
    with open(os.path.join(os.environ["NOTES"], "%s-%d" % (name, INDEX)), "w") as stream:
        stream.write(text or str(os.getpid()))
"""


class Launch:
    """A running epl-launch; `python`: how Python is to run it; `verbose`: it shows what all workers print."""

    def __init__(self, folder, arguments, environ=None, python=("-m", "epl.launch"), verbose=True, **popen):
        variables = clean_environment(NOTES=folder, TMPDIR=folder, **(environ or {}))
        options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        options.update(popen)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable] + list(python) + (["--verbose"] if verbose else []) + arguments,
            cwd=str(folder),
            env=variables,
            start_new_session=True,
            **options,
        )

    def wait(self):
        """(exit status, standard output, standard error) as text, at the end."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError("epl-launch did not end: %r" % (self.process.communicate(),))
        return self.process.returncode, (out or b"").decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace")

    def notes(self, name, number):
        """The files of what `number` workers have noted under `name`, by worker; waits for them."""
        deadline = time.monotonic() + LIMIT_S
        paths = [os.path.join(str(self.folder), "%s-%d" % (name, index)) for index in range(number)]
        while not all(os.path.exists(path) and os.path.getsize(path) for path in paths):
            assert time.monotonic() < deadline, "workers did not note %s" % name
            time.sleep(0.02)
        return paths

    def pids(self, name, number):
        return [Noted(path) for path in self.notes(name, number)]


@pytest.fixture(name="launch")
def launch_fixture(tmp_path):
    """launch(program, options..., script=[arguments of the script]): the program is a .py, or a .sh if it begins so."""
    started = []

    def launch(program, *options, script=(), environ=None, **popen):
        shell = program.startswith("#!")
        path = tmp_path / ("run.sh" if shell else "train.py")
        first, rest = program.split("\n", 1) if shell else ("", program)
        path.write_text(first + "\n" + SHELL_PRELUDE + rest if shell else PRELUDE + textwrap.dedent(rest))
        started.append(Launch(tmp_path, list(options) + [path.name] + list(script), environ, **popen))
        return started[-1]

    yield launch
    for each in started:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate(timeout=LIMIT_S)


def assert_gone(pids, within_s=LIMIT_S):
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "still there: %s" % [pid for pid in pids if alive(pid)]
        time.sleep(0.05)


def lines_of(output, worker):
    head = "[worker %d] " % worker
    return [line[len(head) :] for line in output.splitlines() if line.startswith(head)]
