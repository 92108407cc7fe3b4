"""A time of day that jumps for the processes of a job alone; see clock.c."""

import os
import struct
import subprocess

_FILE, _NUMBER = "clock", struct.Struct("=q")  # nanoseconds


def variables(folder):
    """Variables of the environment with which processes have such a clock, and the files in `folder` that it needs."""
    library, source = (
        os.path.join(folder, "clock.so"),
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "clock.c"),
    )
    subprocess.check_call(
        [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"]
    )
    jump(folder, 0)
    return {"LD_PRELOAD": library, "EPL_TEST_CLOCK": os.path.join(folder, _FILE)}


def jump(folder, seconds):
    """Sets the clock of all these processes to so many seconds after the machine's."""
    path = os.path.join(folder, _FILE)
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(_NUMBER.pack(int(seconds * 1e9)))
