"""Checks of the file system of a folder for checkpoints: what saving, and locks on names of checkpoints, need of it."""

import errno
import fcntl
import os
import shutil
import tempfile
import time

from epl.doctor.findings import fine, warning, wrong
from epl.plan.text import bytes_text

_LITTLE_BYTES = 1024**3
# By so much the file system's clock may differ from this machine's; locks that are taken over are older by far.
_CLOCK_S = 2.0
# File systems that machines share, of those that can be told by name.
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "fuse.s3fs", "fuse.gcsfuse")


def folder(path, lock=fcntl.flock, clock=time.time):
    """Whether checkpoints can be written into a folder; a list of Findings.

    Args:
      path: a folder that is there, or that can be made in one that is.
      lock: in place of fcntl.flock.
      clock: in place of this machine's.
    """
    there = os.path.abspath(path)
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    what = "checkpoints"
    try:
        with tempfile.TemporaryDirectory(prefix=".epl-doctor-", dir=there) as own:
            return [_space(what, there)] + _operations(what, own, lock, clock)
    except OSError as error:
        return [wrong(what, "%s: %s" % (there, error.strerror), "Give the folder to this user, or name another.")]


def _space(what, path):
    usage = shutil.disk_usage(path)
    kind = kind_of(path)
    shared = ", which machines share" if kind in _SHARED else ""
    text = "%s: %s free of %s, %s%s" % (path, bytes_text(usage.free), bytes_text(usage.total), kind, shared)
    if usage.free < _LITTLE_BYTES:
        return warning(
            what, text, "A checkpoint of Adam takes three times the variables' bytes, twice while it is written."
        )
    return fine(what, text)


def _operations(what, own, lock, clock):
    """Renaming, locking and time stamps."""
    old, new = os.path.join(own, "old"), os.path.join(own, "new")
    for path, text in ((old, "old"), (new, "new")):
        with open(path, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    try:
        os.replace(new, old)
        with open(old) as file:
            kept = file.read() == "new"
    except OSError as error:
        kept, new = False, error.strerror
    if not kept:
        advice = "Checkpoints would be seen half written. Take a file system that renames files at once."
        return [wrong(what, "a file cannot take another's place there", advice)]
    findings = []
    try:
        with open(old) as file:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error.errno))
        advice = "Two jobs with one checkpoint folder are not noticed then. NFS: mount it with local_lock=none."
        findings.append(warning(what, "files cannot be locked there (%s)" % name, advice))
    apart = os.stat(old).st_mtime - clock()
    if abs(apart) > _CLOCK_S:
        text = "the file system's clock differs by %.1f s from this machine's" % apart
        findings.append(warning(what, text, "Let both follow one time server (NTP)."))
    return findings or [fine(what, "renames and locks there work, and its clock is this machine's")]


def kind_of(path, mounts="/proc/mounts"):
    """The type of the file system that a path lies on, such as "ext4"; "unknown" where nothing tells."""
    best, kind = "", "unknown"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as table:
            rows = [line.split() for line in table]
    except OSError:
        return kind
    for row in rows:
        point = row[1].rstrip("/") + "/"
        if (os.path.abspath(path) + "/").startswith(point) and len(point) >= len(best):
            best, kind = point, row[2]
    return kind
