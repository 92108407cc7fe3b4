"""Who holds a job up, and with what: decided from what the boards of its workers show and from what the kernel says."""

import collections
import os

from epl.launch import board
from epl.launch.time_shares import shares_of

# Of a process: letter of its state (None: it is gone), seconds of processor time so far, bytes of memory.
Process = collections.namedtuple("Process", "state cpu_s memory")
# One look at a worker. seen: board.Seen; process: Process; events, collectives: as board.read_events has them; link:
# (seconds in collectives, bytes) so far; at: when, by time.monotonic().
Look = collections.namedtuple("Look", "seen process events collectives link at")
# What is told of a worker. what: one of the words below; since_s: for how long; text: in words.
Verdict = collections.namedtuple("Verdict", "worker what since_s text")

GONE, STOPPED, WAITS, PROGRAM, DATA, COMPUTES, PREPARES, ENDED = (
    "gone",
    "stopped",
    "waits",
    "program",
    "data",
    "computes",
    "prepares",
    "ended",
)
# A process that uses less of a core than this waits for something.
_BUSY = 0.1
# A collective that has been under way for less is one of many.
_WAITING_S = 0.3
# Who has waited for so long waits for somebody; a worker alone may be in a step for so long.
STILL_S, _LONG_STEP_S = 1.0, 3.0
# Who has the others wait for at least this share of their time, and waits that much less itself, is slow.
_SLOW_SHARE = 0.3


def process(pid):
    """The Process of that number now."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        with open("/proc/%d/statm" % pid, "rb") as stream:
            pages = int(stream.read().split()[1])
    except (OSError, IndexError):
        return Process(None, 0.0, 0)
    ticks = os.sysconf("SC_CLK_TCK")
    return Process(fields[0].decode("ascii"), (int(fields[11]) + int(fields[12])) / float(ticks), pages * 4096)


def look(path, now):
    """A Look at the worker whose board that is; None: it has not come to epl.init()."""
    seen = board.read(path)
    if seen is None:
        return None
    events, collectives, link = board.read_events(path)
    found = process(seen.pid) if seen.lives else Process(None, 0.0, 0)
    return Look(seen, found, events, collectives, link, now)


def verdicts(before, after):
    """A Verdict of each worker.

    Args:
      before, after: dicts of worker to its Look, some time apart.
    """
    return {worker: _verdict(worker, before.get(worker), after[worker]) for worker in sorted(after)}


def _verdict(worker, before, now):
    seen, since_s = now.seen, max(0.0, now.at - now.seen.since)

    def says(what, text, seconds=since_s):
        return Verdict(worker, what, seconds, text)

    waits = _under_way(now)
    if now.process.state in (None, "Z", "X"):
        return (
            says(ENDED, "at its end") if seen.state == board.LEFT else says(GONE, "its process is gone; %s" % _was(now))
        )
    if now.process.state == "T":
        return says(STOPPED, "stopped (SIGSTOP); %s" % _was(now))
    if waits is not None and now.at - waits.begin_s >= _WAITING_S:
        return says(WAITS, "in %s" % _collective(waits), now.at - waits.begin_s)
    if seen.state == board.OTHERS:
        return says(WAITS, "waits for %s" % seen.texts.get("doing", "the others"))
    if seen.state == board.LEFT:
        return says(ENDED, "at its end")
    if seen.state == board.PROGRAM:
        return says(PROGRAM, "in its own Python")
    if seen.state == board.PREPARES:
        return says(PREPARES, seen.texts.get("doing", "gets ready"))
    runs, sources = kind_of(seen)
    # It says nothing of a process that was not there at the first look.
    idle = before is not None and before.seen.pid == seen.pid and _used(before, now) < _BUSY
    if sources and idle and waits is None:
        return says(DATA, "waits for data (%s)" % sources)
    return says(COMPUTES, "in a step of %s" % runs if runs else "in a step")


def _used(before, now):
    """Cores that a process has used between two looks."""
    return (now.process.cpu_s - before.process.cpu_s) / max(1e-3, now.at - before.at)


def kind_of(seen):
    """(what the call runs that a worker is in or was last, from what that takes data), in words, perhaps ""."""
    kinds = seen.texts.get("kinds") or []
    return tuple(kinds[int(seen.kind)]) if int(seen.kind) < len(kinds) else ("", "")


def _under_way(now):
    """The collective that a worker has been in for longest, an Event, or None."""
    return next((event for event in now.collectives if event.end_s is None), None)


def _collective(event):
    if event.name == board.AGREEMENT:
        return "the exchange before a step, for which all workers have to come to it"
    kind = board.KINDS[event.kind] if 0 <= event.kind < len(board.KINDS) else "collective"
    return "%s '%s'" % (kind, event.name)


def _was(now):
    """What a process was at that does nothing any more."""
    waits = _under_way(now)
    if waits is not None:
        return "it was in %s" % _collective(waits)
    doing = {
        board.PROGRAM: "its own Python",
        board.STEP: "a step of %s" % (kind_of(now.seen)[0] or "some operations"),
        board.OTHERS: "a wait for %s" % now.seen.texts.get("doing", "the others"),
        board.LEFT: "its end",
    }
    return "it was in %s" % doing.get(int(now.seen.state), now.seen.texts.get("doing", "its start"))


def late(before, after, found):
    """The workers that the others wait for, in the order of how sure that is; none where the job goes on evenly.

    Args:
      before, after: dicts of worker to its Look.
      found: what `verdicts` gives for these.
    """
    alive = [verdict for verdict in found.values() if verdict.what != ENDED]
    held = [verdict for verdict in alive if verdict.what in (GONE, STOPPED)]
    if held:
        return [verdict.worker for verdict in held]
    if any(worker in before and after[worker].seen.steps > before[worker].seen.steps for worker in after):
        return _slow(before, after)
    waiting = [verdict for verdict in alive if verdict.what == WAITS]
    others = sorted((verdict for verdict in alive if verdict.what != WAITS), key=lambda verdict: -verdict.since_s)
    if (
        any(verdict.since_s > STILL_S for verdict in waiting)
        or len(alive) == len(others) == 1
        and others[0].since_s > _LONG_STEP_S
    ):
        return [verdict.worker for verdict in others]
    return []


def _slow(before, after):
    """The one that the others wait for in every step."""
    waited = {}
    for worker in after:
        if worker in before:
            shares = shares_of({worker: after[worker].seen}, {worker: before[worker].seen})
            if shares:
                waited[worker] = shares["others"]
    if len(waited) < 2:
        return []
    slowest = min(waited, key=waited.get)
    rest = [share for worker, share in waited.items() if worker != slowest]
    least = min(rest)
    return [slowest] if least > _SLOW_SHARE and least > waited[slowest] + _SLOW_SHARE else []
