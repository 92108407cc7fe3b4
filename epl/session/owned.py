"""Two jobs must not save under one name: the checkpoints of each would be mixed with the other's.

Who saves first under a name leaves a small file beside the checkpoints that says which process it is, and touches it
now and then; it is removed when the session is closed, or the process ends. Whoever finds another's takes it over where
that process has ended: on the same machine it is looked for; one of another machine has to touch the file while it is
watched.
"""

import atexit
import json
import logging
import os
import socket
import threading
import time

from epl import own_folders
from epl.errors import CheckpointError

_LOG = logging.getLogger("epl")
_TOUCH_S = 5.0
_WATCH_S = 20.0
_LOOK_S = 0.5
_SEEN_S = 0.2
_LONGEST = 4096  # bytes of such a file


def own(path, holder):
    """Before a checkpoint is saved under `path`, its name without the step; `holder`: what stands for the session.

    Raises:
      CheckpointError: another process, which lives, saves under this name; says which, and since when.
    """
    _OWNED.take(os.path.abspath(path), holder)


def disown(holder):
    """When the session is closed."""
    _OWNED.release(holder)


def file_of(path):
    """The file that says who saves under a name."""
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.owner" % name)


class _Owned(object):
    """The names under which this process saves."""

    def __init__(self):
        self._lock = threading.Lock()
        self._files = {}  # to those who save under its name
        self._touching = None

    def take(self, path, holder=None):
        file = file_of(path)
        if not os.path.isdir(os.path.dirname(file)):
            return  # not of the local file system, or it will not be there for the checkpoint either
        with self._lock:
            try:
                self._take(path, file)
            except OSError as error:  # what is to be saved says more: no room, no right to write
                _LOG.debug("cannot say who saves '%s': %s", path, error)
                return
            self._files.setdefault(file, set()).add(holder)
            if self._touching is None:
                atexit.register(self.release)
                self._touching = threading.Thread(target=self._touch, name="epl-owner", daemon=True)
                self._touching.start()

    def _take(self, path, file):
        while True:
            owner = _read(file)
            if owner is not None and _is_same(owner, _identity()):
                return
            if owner is None:
                if _create(file):
                    return
                continue
            if _lives(owner, file):
                raise CheckpointError(
                    "'%s' is saved by another job too: process %s on %s has done so since %s, and still runs. Two jobs "
                    "cannot save under one name, as their checkpoints would be mixed. Give each a folder of its own, "
                    "or end that process; %s says whose it is."
                    % (path, owner.get("process"), owner.get("machine"), owner.get("since"), file)
                )
            _LOG.info("'%s' was saved by process %s, which has ended", path, owner.get("process"))
            _replace(file)
            time.sleep(_SEEN_S)  # somebody else may have found the same; the last one has it

    def _touch(self):
        while True:
            time.sleep(_TOUCH_S)
            with self._lock:
                for file in filter(_is_ours, self._files):
                    os.utime(file)

    def release(self, *holders):
        """The names of these are free again, as far as nobody else has them; of all at the end of the process."""
        with self._lock:
            for file, users in list(self._files.items()):
                users.difference_update(holders or list(users))
                if not users:
                    del self._files[file]
                    if _is_ours(file):
                        os.unlink(file)


_OWNED = _Owned()


def _identity():
    return {
        "host": _host(),
        "machine": socket.gethostname(),
        "process": os.getpid(),
        "began": own_folders.began(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _host():
    """What the processes have in common that can see each other."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))


def _is_ours(file):
    try:
        return _is_same(_read(file) or {}, _identity())
    except OSError:
        return False


def _is_same(one, other):
    return all(one.get(name) == other.get(name) for name in ("host", "process", "began"))


def _lives(owner, file):
    """Whether the process lives that a file names."""
    if owner.get("host") == _host() and isinstance(owner.get("process"), int):
        return own_folders.began(owner["process"]) == owner.get("began")
    _LOG.info("looking for %g s whether another job still saves there: %s", _WATCH_S, file)
    before, deadline = _touched(file), time.monotonic() + _WATCH_S
    while time.monotonic() < deadline:
        if _touched(file) != before:
            return True
        time.sleep(_LOOK_S)
    return False


def _touched(file):
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return None


def _read(file):
    """Who is named there; {} where that cannot be made out, None where there is no such file."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            found = json.loads(stream.read(_LONGEST).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _create(file):
    """Whether it was not there and now names this process; it has all of its content at once."""
    temporary = _write(file)
    try:
        os.link(temporary, file)
        return True
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)


def _replace(file):
    os.replace(_write(file), file)


def _write(file):
    temporary = "%s.%d" % (file, os.getpid())
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "w") as stream:
        json.dump(_identity(), stream)
    return temporary
