"""The jobs of this user that run on this machine: found by what their workers have in their environment."""

import collections
import os
import re

from epl.errors import LaunchError
from epl.launch import board, notes

_NOTE = re.compile(r"^\.worker-(\d+)\.note$")
_BOARD = re.compile(r"^\.worker-(\d+)\.board$")

# folder: where its logs are, which names it; launcher: process id; paths: {worker of this machine: path of its board}.
Found = collections.namedtuple("Found", "folder launcher paths")


def running():
    """The Found jobs, in the order of their launchers' process ids."""
    found = {}
    for name in os.listdir("/proc"):
        note = _note_of(name) if name.isdigit() else None
        match = note and _NOTE.match(os.path.basename(note))
        if match:
            folder = os.path.dirname(note)
            parents, paths = found.setdefault(folder, (set(), {}))
            paths[int(match.group(1))] = board.path_beside(note)
            parents.add(_parent(int(name)))
    jobs = [Found(folder, _launcher(parents), paths) for folder, (parents, paths) in found.items()]
    jobs = [job for job in jobs if job.launcher]  # else something that a worker has left, of a job that has ended
    return sorted(jobs, key=lambda job: (job.launcher, job.folder))


def choose(jobs, wanted):
    """The job that is meant.

    Args:
      jobs: those that run.
      wanted: a launcher's process id, a folder of logs, or None for the only one there is.

    Raises:
      LaunchError: there is none, or more than one.
    """
    if wanted is not None and os.path.isdir(wanted):
        folder = os.path.abspath(wanted)
        there = {_BOARD.match(name) for name in os.listdir(folder)} - {None}
        if there:
            paths = {int(match.group(1)): os.path.join(folder, match.group(0)) for match in there}
            return Found(folder, next((job.launcher for job in jobs if job.folder == folder), 0), paths)
    fitting = [job for job in jobs if wanted in (None, str(job.launcher), job.folder)]
    if len(fitting) == 1:
        return fitting[0]
    known = "".join("\n  %d  %d worker%s, logs in %s" % _line(job) for job in jobs)
    if not jobs:
        raise LaunchError(
            "no job of epl-launch runs on this machine, as far as this user may see. Start it with epl-launch, or run "
            "epl-top on the machine and as the user that has it."
        )
    if not fitting:
        raise LaunchError("no job is called %s. By the launcher's process id there are:%s" % (wanted, known))
    raise LaunchError("several jobs run here. Say which one, by the launcher's process id:%s" % known)


def _line(job):
    return job.launcher, len(job.paths), "" if len(job.paths) == 1 else "s", job.folder


def _note_of(pid):
    """The path of the notes that a process has in its environment, or None."""
    key = notes.VARIABLE.encode("ascii") + b"="
    try:
        with open("/proc/%s/environ" % pid, "rb") as stream:
            for variable in stream.read().split(b"\0"):
                if variable.startswith(key):
                    return variable[len(key) :].decode("utf-8", "replace")
    except OSError:
        return None  # it has ended, or is another user's
    return None


def _parent(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _launcher(parents):
    """The launcher: the parent that has no notes itself, so that it is no worker."""
    outside = [pid for pid in parents if pid > 1 and _note_of(str(pid)) is None]
    return min(outside, default=0)
