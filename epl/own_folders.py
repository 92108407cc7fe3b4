"""Folders in the temporary folder that belong to one process, and are removed when it has ended, however it did."""

import os
import shutil
import tempfile

# The prefix of those in which the bootstrap service listens (epl.communicators.gate).
GATE = "epl-gate-"
_LONGEST_PATH = 44  # of what such a folder is in: that of a socket in it may have 107 bytes in all


def make_folder(prefix):
    """A new folder that only this user can enter. Those of processes that were killed are removed."""
    remove_left(prefix)
    me = os.getpid()
    return tempfile.mkdtemp(prefix="%s%d-%s-%s-" % (prefix, me, _namespace(), began(me)), dir=_above())


def remove_left(prefix):
    """Removes the folders of processes that have ended without doing so."""
    above = _above()
    for name in os.listdir(above):
        parts = name[len(prefix) :].split("-")
        if name.startswith(prefix) and len(parts) == 4 and parts[0].isdigit() and parts[1] == _namespace():
            if str(began(int(parts[0]))) != parts[2]:
                shutil.rmtree(os.path.join(above, name), ignore_errors=True)  # another user's stays


def began(process):
    """When a process began, by the kernel's clock; None where there is no such process any more."""
    try:
        with open("/proc/%d/stat" % process, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _above():
    above = tempfile.gettempdir()
    return above if len(above) < _LONGEST_PATH else "/tmp"


def _namespace():
    """A number that processes have in common which know each other by the same ids."""
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")
