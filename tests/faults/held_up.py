"""Plants faults in a worker of a running job, and says which of them epl-top names with worker, operation and line.

    python -m tests.faults.held_up [FAULT ...]

Each fault is looked at once, after the others have waited for a second. The exit status is 1 where one was not named.
"""

import os
import pathlib
import re
import signal
import sys
import tempfile
import time

from tests.helpers.held_up_job import NAMES, HeldUp, row


def looked_at(job, name):
    """(what epl-top says, the seconds that it took) while worker 1 is held up so."""
    stopped = job.stop() if name == "stopped" else job.begin(name)
    began = time.monotonic()
    text = job.once()
    took = time.monotonic() - began
    if stopped:
        os.kill(stopped, signal.SIGCONT)
    job.end()
    return text, took


def main(names):
    """Tries all of them in one job; returns how many were not named."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        job = HeldUp(pathlib.Path(folder))
        try:
            job.until(lambda: re.search(r"(?m)^1 +\d+ +[1-9]\d+ ", job.once()), "training")
            for name in names:
                text, took = looked_at(job, name)
                named = re.search(NAMES[name], text) and "late: worker 0" not in text
                missed += not named
                said = re.findall(r"(?m)^late: .*$|^nobody .*$", text)
                how = "named" if named else "NOT NAMED"
                print("%-24s %-10s %.1f s  %s" % (name, how, took, "; ".join(said)), flush=True)
                if not named:
                    print(row(text, 0) + "\n" + row(text, 1), flush=True)
        finally:
            job.close()
    print("%d of %d named" % (len(names) - missed, len(names)))
    return missed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:] or list(NAMES)) else 0)
