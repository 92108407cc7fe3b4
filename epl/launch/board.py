"""What a worker is doing, in a file that it keeps mapped: to write is a store into memory, to read needs nobody's help.

So whoever may read the file sees where a worker is, be it at work, in an endless loop, stopped or killed: the launcher,
`epl-top`, and after a bad end the flight recorder. Times are those of the machine's monotonic clock.

The file holds numbers (FIELDS), a few texts, and two rings of the last 1,000 events: what the worker has done, and the
collectives, which the native library notes (csrc/comm/flight.h).
"""

import collections
import ctypes
import fcntl
import json
import logging
import mmap
import os
import struct
import threading
import time

from epl.errors import LaunchError

_LOG = logging.getLogger("epl")
# The file of the worker whose notes are in `.worker-0.note` is `.worker-0.board`.
_NOTE, _BOARD, _STACKS, _TIMES = ".note", ".board", ".stacks", ".times"
_MAGIC = b"EPLBRD01"
FIELDS = (
    "pid",
    "born",  # of the process: clock ticks since the machine started, as the kernel has them
    "thread",  # threading.get_ident() of the one that trains
    "signal",  # number of the signal at which it writes its Python stacks; 0: none
    "state",  # one of the states below
    "since",  # when that began
    "steps",  # training steps that are through
    "runs",  # calls of sessions, those included
    "first_step_at",  # when the first of them was through; 0: none yet
    "last_step_at",
    "offset",  # the global step minus the steps that are through; NaN: the program has not fetched it
    "total",  # the step at which the program will end, counted as its global step is, if that is known; NaN: unknown
    "loss",  # the latest that the program has fetched; NaN: none
    "rows",  # of the whole batch of a step, divided by the number of workers; NaN: unknown
    "kind",  # of the call of a session that it is in, or was last: its place in the text `kinds`
    "in_program_s",  # seconds between the training steps, in the program's own Python
    "in_steps_s",  # seconds in training steps
    "waited_others_s",  # of these, until the others had come to the same step
    "waited_data_s",  # of these, for data; NaN: not measured (io.stats)
)
_OF_ONE_TRAINING = "steps runs first_step_at last_step_at in_program_s in_steps_s waited_others_s".split()
_UNKNOWN_AT_FIRST = "offset total loss rows waited_data_s".split()
# `kinds` among the texts: of each kind of call what it runs, and from what it takes data ("" for nothing), in words.
# What a worker is at.
PROGRAM, STEP, OTHERS, PREPARES, LEFT = range(5)
_PLACE = {name: 1 + number for number, name in enumerate(FIELDS)}  # the first word is the magic number
_NUMBERS_BYTES = 1024
_TEXT_AT, _TEXT_BYTES = _NUMBERS_BYTES, 3072
_RING_HEADER, _EVENT_BYTES, EVENTS = struct.Struct("<QQqq4q"), 128, 1000
_EVENT = struct.Struct("<qqiiqq88s")
_RING_BYTES = _RING_HEADER.size + EVENTS * _EVENT_BYTES
_OWN_AT = _TEXT_AT + _TEXT_BYTES
_COLLECTIVES_AT = _OWN_AT + _RING_BYTES
SIZE = _COLLECTIVES_AT + _RING_BYTES
# Kinds of a worker's own events, beside the numbers of the collectives (epl_collective in csrc/comm/epl_comm.h).
STEP_EVENT, PHASE_EVENT, MESSAGE_EVENT = 100, 101, 102
KINDS = (
    "all_reduce reduce broadcast all_gather all_gather_v reduce_scatter all_to_all all_to_all_v send recv barrier"
).split()
# What workers exchange before a step that communicates, to agree on it.
AGREEMENT = "exchange"

# begin_s, end_s (None: it is under way): by time.monotonic(); kind: as above; code: how a collective ended, 0 for well.
Event = collections.namedtuple("Event", "begin_s end_s kind name bytes number code")


def path_beside(note):
    """The board that belongs to a worker's file of notes."""
    return (note[: -len(_NOTE)] if note.endswith(_NOTE) else note) + _BOARD


def stacks_beside(path):
    """The file to which a worker whose board this is writes its Python stacks when it gets its signal."""
    return path + _STACKS


def times_beside(path):
    """The file into which such a worker writes where the time of a step goes, where it is asked to."""
    return path + _TIMES


def remove(path):
    """Removes a board and what belongs to it, if it is there."""
    for each in (path, stacks_beside(path), times_beside(path)):
        if os.path.lexists(each):
            os.unlink(each)


def born(pid):
    """When a process was started, in clock ticks of the kernel; None: there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return float(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


class Board(object):
    """A worker's own side.

    Args:
      path: of the file, which is there, or is made; None: the board is in this process's memory alone.
    """

    def __init__(self, path=None):
        self._map = mmap.mmap(-1, SIZE) if path is None else _mapped(path)
        self._map[:] = b"\0" * SIZE
        self.numbers = memoryview(self._map).cast("d")[: _NUMBERS_BYTES // 8]
        self.begin_anew()
        self._texts = {}
        self._writing = 0
        self._lock = threading.Lock()
        self._count = 0
        self._own = memoryview(self._map)[_OWN_AT : _OWN_AT + 8].cast("Q")
        for at in (_OWN_AT, _COLLECTIVES_AT):
            _RING_HEADER.pack_into(self._map, at, 0, EVENTS, 0, 0, 0, 0, 0, 0)
        self["pid"], self["born"] = os.getpid(), born(os.getpid()) or 0
        self["thread"] = threading.get_ident()
        self["since"] = time.monotonic()
        self._map[: len(_MAGIC)] = _MAGIC  # from here on it may be read

    def begin_anew(self):
        """What is of one training is as before its first step."""
        for name in _OF_ONE_TRAINING:
            self[name] = 0.0
        for name in _UNKNOWN_AT_FIRST:
            self[name] = float("nan")

    def __setitem__(self, name, value):
        self.numbers[_PLACE[name]] = value

    def __getitem__(self, name):
        return self.numbers[_PLACE[name]]

    @property
    def collectives(self):
        """Address of the ring for the native library; the memory lives as long as the process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map, _COLLECTIVES_AT))

    def say(self, **texts):
        """Sets texts, by name; None takes one away. What does not fit is cut."""
        with self._lock:
            self._texts.update(texts)
            known = {name: text for name, text in self._texts.items() if text is not None}
            data = json.dumps(known).encode("utf-8")
            while len(data) > _TEXT_BYTES - 16:
                longest = max(known, key=lambda name: len(str(known[name])))
                known[longest] = str(known[longest])[: len(str(known[longest])) // 2]
                data = json.dumps(known).encode("utf-8")
            self._writing += 2
            struct.pack_into("<QI", self._map, _TEXT_AT, self._writing - 1, len(data))
            self._map[_TEXT_AT + 12 : _TEXT_AT + 12 + len(data)] = data
            struct.pack_into("<Q", self._map, _TEXT_AT, self._writing)

    def text(self, name):
        """One of the texts, or None."""
        return self._texts.get(name)

    def note(self, kind, begin_s, end_s, name="", number=0, code=0):
        """Adds an event to the ring; `end_s` None: it is under way until the next one."""
        with self._lock:
            at = _OWN_AT + _RING_HEADER.size + self._count % EVENTS * _EVENT_BYTES
            end_ns = 0 if end_s is None else int(end_s * 1e9)
            _EVENT.pack_into(
                self._map, at, int(begin_s * 1e9), end_ns, kind, code, 0, number, name.encode("utf-8", "replace")[:88]
            )
            self._count = self._own[0] = self._count + 1

    def note_step(self, begin_s, end_s, number):
        """Adds a training step to the ring, in the thread that trains."""
        count = self._count
        at = _OWN_AT + _RING_HEADER.size + count % EVENTS * _EVENT_BYTES
        _EVENT.pack_into(self._map, at, int(begin_s * 1e9), int(end_s * 1e9), STEP_EVENT, 0, 0, number, b"")
        self._count = self._own[0] = count + 1

    def state(self, state, since=None):
        """The worker is at another thing from now on, or since then."""
        numbers = self.numbers
        numbers[_SINCE] = time.monotonic() if since is None else since
        numbers[_STATE] = state


_STATE, _SINCE = _PLACE["state"], _PLACE["since"]


def _mapped(path):
    """The memory of the file; of this process alone where another one of the worker's has it, or it cannot be made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # kept until the process ends
            os.posix_fallocate(descriptor, 0, SIZE)  # a hole in a file on a full disk would end the process
            return mmap.mmap(descriptor, SIZE)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        _LOG.debug("nobody can see what this worker is doing: %s", error)
        return mmap.mmap(-1, SIZE)


class Seen(object):
    """What a board showed when it was read.

    Attributes: those of FIELDS, with None for what is unknown, and `texts`, a dict.
    """

    def __init__(self, data):
        values = struct.unpack_from("<%dd" % len(FIELDS), data, 8)
        for name, value in zip(FIELDS, values):
            setattr(self, name, None if value != value else value)
        self.pid, self.signal, self.steps = int(self.pid), int(self.signal), int(self.steps)
        self.texts = _texts(data)

    @property
    def step(self):
        """How far the program has come: by its global step where that is known, else by the steps of this process."""
        return self.steps + int(self.offset or 0)

    @property
    def lives(self):
        """Whether the process is still there, and no other one with its number."""
        return born(self.pid) == self.born


def _texts(data):
    number, length = struct.unpack_from("<QI", data, _TEXT_AT)
    if number % 2 or length > _TEXT_BYTES - 12:  # it is being written
        return {}
    try:
        return json.loads(data[_TEXT_AT + 12 : _TEXT_AT + 12 + length].decode("utf-8") or "{}")
    except ValueError:
        return {}


def read(path):
    """What a board shows now, a Seen; None: the worker has none yet."""
    data = _bytes_of(path, _OWN_AT)
    return Seen(data) if data[: len(_MAGIC)] == _MAGIC and len(data) == _OWN_AT else None


def read_events(path):
    """(the worker's own events, its collectives, link) of a board, each in the order in which they began.

    `link`: (seconds in collectives, bytes) of all that have ended, also those that are in the ring no more.

    Raises:
      LaunchError: the file is no board.
    """
    data = _bytes_of(path, SIZE)
    if len(data) < SIZE or data[: len(_MAGIC)] != _MAGIC:
        raise LaunchError("%s is no file in which a worker of EPL says what it is doing." % path)
    _, _, total_ns, total_bytes = _RING_HEADER.unpack_from(data, _COLLECTIVES_AT)[:4]
    return _events(data, _OWN_AT), _events(data, _COLLECTIVES_AT), (total_ns / 1e9, total_bytes)


def _bytes_of(path, length):
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(length) or b""
    except OSError:
        return b""


def _events(data, at):
    found = []
    for number in range(EVENTS):
        place = at + _RING_HEADER.size + number * _EVENT_BYTES
        begin, end, kind, code, size, of, name = _EVENT.unpack_from(data, place)
        if begin:
            text = name.split(b"\0")[0].decode("utf-8", "replace")
            found.append(Event(begin / 1e9, end / 1e9 if end else None, kind, text, size, of, code))
    return sorted(found, key=lambda event: event.begin_s)
