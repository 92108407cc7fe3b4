"""Processes by session: each worker leads a session of its own, in which all that it starts stays.

A session holds more than a process group: `timeout`, or a shell with job control, make groups of their own.
"""

import ctypes
import os
import select
import signal
import sys
import time

KILL_AFTER_S = 5.0
_PR_SET_PDEATHSIG = 1


def members(sessions):
    """Living members (zombies left out) of `sessions`, a collection of session ids: {process id: session id}."""
    return {pid: session for pid, (session, state) in _states(sessions).items() if state not in (b"Z", b"X")}


def stopped(sessions):
    """Those of `sessions` with a member that is stopped (SIGSTOP); a set."""
    return {session for session, state in _states(sessions).values() if state == b"T"}


def is_stopped(pid):
    """Whether a process is stopped (SIGSTOP)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _states(sessions):
    """{process id: (session id, letter of its state)} of the members of `sessions`."""
    sessions = set(sessions)
    found = {}
    for name in os.listdir("/proc") if sessions else ():
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as stream:
                # "pid (name) state ppid pgrp session ..."; the name may hold blanks and brackets.
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) in sessions:
            found[int(name)] = int(fields[3]), fields[0]
    return found


def signal_members(sessions, number):
    """Send signal `number` to all members of `sessions`; returns how many there were."""
    pids = members(sessions)
    for pid in pids:
        send(pid, number)
        if number != signal.SIGKILL:
            send(pid, signal.SIGCONT)  # a stopped process takes no signal but SIGKILL before it goes on
    return len(pids)


def send(pid, number):
    """`os.kill` that does not mind a process that has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_sessions(sessions, first_signal, timeout_s=KILL_AFTER_S):
    """Send `first_signal` to all members of `sessions`, and SIGKILL to those that live on after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    left = signal_members(sessions, first_signal)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = len(members(sessions))
    for _ in range(20):
        if not signal_members(sessions, signal.SIGKILL):
            return
        time.sleep(0.05)


class Guard:
    """A process that ends the workers if the launcher itself is killed.

    The kernel can signal a worker when its parent dies, but not what the worker has started: a shell's `python`. The
    guard holds the reading end of a pipe; when the launcher is gone, so is the writing end.
    """

    def __init__(self):
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            _guard(reading)
        os.close(reading)

    def add(self, session):
        self._tell("+%d\n" % session)

    def remove(self, session):
        """The session is empty: its number may soon be somebody else's."""
        self._tell("-%d\n" % session)

    def _tell(self, text):
        try:
            os.write(self._writing, text.encode("ascii"))
        except OSError:
            return  # the guard was killed; the workers do without

    def close(self):
        """End the guard, which ends what sessions it still knows."""
        os.close(self._writing)
        deadline = time.monotonic() + KILL_AFTER_S + 2
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            time.sleep(0.01)


def _guard(reading):
    """Body of the guard's process; does not return."""
    try:
        # Out of reach of the terminal's signals, and not keeping anybody's output open.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.closerange(3, reading)
        text = b""
        while True:
            select.select([reading], [], [])  # without a time-out by design: it lives as long as the launcher
            piece = os.read(reading, 65536)
            if not piece:
                break
            text += piece
        sessions = set()
        for line in text.decode("ascii").splitlines():
            (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
        end_sessions(sessions, signal.SIGTERM)
    finally:
        os._exit(0)


def child_setup(cores):
    """Function for a child to run between fork and exec: it dies with its parent and stays on `cores` (None: any)."""
    library = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
    parent = os.getpid()

    def setup():
        if cores:
            os.sched_setaffinity(0, cores)
        if library is not None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)  # the parent died before it could be watched

    return setup
