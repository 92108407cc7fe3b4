"""Children of this process, each with a folder of its own, a file for what it says and a time by which it has ended."""

import collections
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

from tests.helpers.processes import die_with_parent

BROKEN = 70  # the exit status of a child that has not come to what it was started for
Ended = collections.namedtuple("Ended", "key status failed log")
_Child = collections.namedtuple("_Child", "key pid folder deadline")


class FirstFailure(object):
    """A plugin of pytest that writes down the first test that fails."""

    def __init__(self, path):
        self._path = path

    def pytest_runtest_logreport(self, report):
        if report.failed and not os.path.exists(self._path):
            with open(self._path, "w") as file:
                file.write(report.nodeid)

    def pytest_collectreport(self, report):
        self.pytest_runtest_logreport(report)


class Children(object):
    """A context manager: what still runs at its end is killed."""

    def __init__(self):
        self._running = []
        self._folder = tempfile.mkdtemp(prefix="mutants")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self._running:
            self._kill(child)
            os.waitpid(child.pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __len__(self):
        return len(self._running)

    def start(self, key, function, limit_s):
        """Forks a child that calls function(path), whose result is its exit status; `path`: where to write down which
        test has failed."""
        folder = tempfile.mkdtemp(dir=self._folder)
        pid = os.fork()
        if pid == 0:
            status = BROKEN
            try:
                os.setsid()
                die_with_parent()
                log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT)
                for stream in (1, 2):
                    os.dup2(log, stream)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.environ["TMPDIR"] = tempfile.tempdir = folder
                status = int(function(os.path.join(folder, "failed")))
            except BaseException:
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        self._running.append(_Child(key, pid, folder, time.monotonic() + limit_s))

    def wait(self):
        """The next that has ended, an Ended: with which status (None: it was killed as it took too long), which test
        failed ("" for none), the end of what it said."""
        while True:
            for child in self._running:
                done, found = os.waitpid(child.pid, os.WNOHANG)
                late = time.monotonic() > child.deadline
                if done or late:
                    self._running.remove(child)
                    self._kill(child)
                    if not done:
                        os.waitpid(child.pid, 0)
                    status = os.WEXITSTATUS(found) if os.WIFEXITED(found) else 128 + os.WTERMSIG(found)
                    texts = [self._read(child, name) for name in ("failed", "log")]
                    shutil.rmtree(child.folder, ignore_errors=True)
                    return Ended(child.key, status if done else None, texts[0], texts[1][-6000:])
            time.sleep(0.01)

    def _read(self, child, name):
        path = os.path.join(child.folder, name)
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as file:
            return file.read()

    def _kill(self, child):
        """All of its session."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has left nothing, as it should
