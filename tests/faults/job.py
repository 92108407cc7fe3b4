"""Jobs of program.py under epl-launch, and what becomes of their processes."""

import os
import re
import signal
import time

from tests.helpers.processes import Noted, alive

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")


class Job(object):
    """`epl-launch` with program.py. A context manager that leaves no process behind.

    Args:
      start: `forks.Template.python` or `processes.python`.
      folder: where the workers leave what they have to say.
      scenario, victim: arguments of the program.
      environ: all variables.
    """

    def __init__(self, start, folder, scenario, victim, workers, devices, environ):
        self.folder, self.workers = str(folder), workers
        arguments = [
            "-m",
            "epl.launch",
            "--num_workers",
            workers,
            "--gpu_per_worker",
            devices,
            "--device",
            "cpu",
            "--verbose",
        ]
        arguments += ["--log_dir", os.path.join(self.folder, "logs"), SCRIPT, scenario, self.folder, victim]
        self.launcher = start(arguments, environ, os.path.join(self.folder, "output"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.launcher.kill()

    def read(self, name):
        """The text of a file of the folder; None if it is not there."""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return file.read()

    def wait_for_file(self, name, timeout_s=90):
        assert self.comes(name, timeout_s), self.launcher.output()[-4000:]

    def comes(self, name, timeout_s):
        """Whether somebody writes the file before the job ends, or within that time."""
        deadline = time.time() + timeout_s
        while self.read(name) is None and self.launcher.running() and time.time() < deadline:
            time.sleep(0.05)
        return self.read(name) is not None

    def end(self, timeout_s=90):
        return self.launcher.wait(timeout_s)

    def pids(self):
        """Process ids of the workers that have got so far as to write them down, in order of the workers."""
        paths = [os.path.join(self.folder, "pid.%d" % index) for index in range(self.workers)]
        return [Noted(path) for path in paths if os.path.exists(path)]


def names_worker(text, index):
    return re.search(r"worker[ _:#\[]*%d\b" % index, text, re.IGNORECASE) is not None
