"""What a worker tells the launcher on its machine, through a small file with a line of JSON for each note.

The launcher cannot see into a worker, and what programs print says little: they catch errors, raise others, or end
without a word. So workers note how far they have come, and what has gone wrong: when, in which step, and because of
which other worker. Times are those of the machine's monotonic clock, which all processes share and nobody sets.
"""

import collections
import json
import logging
import os
import time

_LOG = logging.getLogger("epl")
VARIABLE = "EPL_LAUNCH_NOTE"
# States: it waits for the others, in `epl.init()` or where all meet; it has met them; it has left in good order.
JOINING, JOINED, LEFT = "joining", "joined", "left"
_LONGEST = 2000  # characters of an error


class Failure(collections.namedtuple("Failure", "at error step because follows updates", defaults=(None,))):
    """What went wrong at a worker.

    Attributes:
      at: when, by time.monotonic().
      error: class and message.
      step: number of the step, or -1.
      because: indices of the workers that are to blame, as far as this one knows; its own is never among them.
      follows: True for what can only come of something else: lost connections, waits in vain, data that has ended.
      updates: training steps since the program began or restored a checkpoint; None: not known.
    """

    __slots__ = ()


def tell(state, environ, **facts):
    """Note, in a worker, that it has come to a state; does nothing without a launcher.

    Who has JOINED the others has lived through what was noted before.

    Args:
      facts: what else the launcher may want to know; values of JSON.
    """
    _write(environ, dict(facts, state=state), os.O_TRUNC if state == JOINED else os.O_APPEND)


def tell_fact(environ, **facts):
    """Note, in a worker, what the launcher may want to know besides."""
    _write(environ, facts, os.O_APPEND)


def tell_failure(environ, error, step, because, follows, updates=None):
    """Note, in a worker, that something has gone wrong; arguments as of Failure, `error` is the exception."""
    text = ("%s: %s" % (type(error).__name__, error))[:_LONGEST]
    note = dict(at=time.monotonic(), error=text, step=step, because=sorted(because), follows=follows, updates=updates)
    _write(environ, {"failure": note}, os.O_APPEND)


def _write(environ, note, flag):
    path = environ.get(VARIABLE)
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | flag)
        try:
            os.write(descriptor, json.dumps(note).encode() + b"\n")
        finally:
            os.close(descriptor)
    except OSError as error:  # the launcher has been killed, or removed what was temporary
        _LOG.debug("cannot tell the launcher: %s", error)


def state_of(environ):
    """The latest state that a worker's processes have told; "" for nothing yet, None without a launcher."""
    path = environ.get(VARIABLE)
    return _fact(_notes_of(path), "state", "") if path else None


def _notes_of(path):
    """The notes in a file, the last of which may be unfinished."""
    found = []
    try:
        with open(path, "rb") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            note = json.loads(line.decode("utf-8"))
        except ValueError:
            continue
        found += [note] if isinstance(note, dict) else []
    return found


def _fact(found, name, default):
    return next((note[name] for note in reversed(found) if name in note), default)


class Note:
    """The launcher's side of it.

    Args:
      path: of the file, which is made, readable by this user alone. Replaces one that an earlier job has left.
    """

    def __init__(self, path):
        self.path = path
        self._kept = None
        self.remove()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    @property
    def state(self):
        """JOINING, JOINED, LEFT, or "" before."""
        return self.fact("state", "")

    @property
    def states(self):
        """All states since it last had JOINED the others, in their order."""
        return [note["state"] for note in self._notes() if "state" in note]

    def fact(self, name, default=None):
        """The latest of what the worker has told under a name."""
        return _fact(self._notes(), name, default)

    @property
    def failure(self):
        """The Failure that counts: the first that says because of whom, or follows from nothing; else the first."""
        found = [Failure(**note["failure"]) for note in self._notes() if "failure" in note]
        sure = [each for each in found if each.because or not each.follows]
        return (sure + found + [None])[0]

    def _notes(self):
        return _notes_of(self.path) if self._kept is None else self._kept

    def keep(self):
        """The worker has ended and will note no more; what it has noted outlives the file."""
        self._kept = self._notes()

    def remove(self):
        if os.path.lexists(self.path):
            os.unlink(self.path)
