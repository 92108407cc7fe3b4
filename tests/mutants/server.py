"""Runs tests of the copy of the repository that it lies in, in processes that are forked from one with TensorFlow.

Reads requests from its input, a JSON object a line: {"tests": [...], "limit_s": seconds}; answers each by a line
{"status": exit status of pytest, or null after the limit, "log": the end of what it printed}.
"""

import json
import os
import signal
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--durations=0", "--durations-min=9999"]


def main():
    sys.path[0] = ROOT
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", TF_CPP_MIN_LOG_LEVEL="2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import hypothesis  # noqa: F401  what tests import, but for EPL
    import numpy  # noqa: F401
    import pytest
    import tensorflow.compat.v1  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as log:
            status = _run(pytest, request["tests"], log, request["limit_s"])
            log.seek(0)
            answers.write(json.dumps({"status": status, "log": log.read()[-6000:].decode("utf-8", "replace")}) + "\n")
        answers.flush()


def _run(pytest, tests, log, limit_s):
    """Exit status of pytest; None where it takes longer."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = 70
        try:
            status = int(pytest.main(_OPTIONS + tests))
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline, status = time.monotonic() + limit_s, None
    while status is None and time.monotonic() < deadline:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.WEXITSTATUS(found) if os.WIFEXITED(found) else 128 + os.WTERMSIG(found)
        else:
            time.sleep(0.05)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has left nothing, as it should
    if status is None:
        os.waitpid(pid, 0)
    return status


if __name__ == "__main__":
    main()
