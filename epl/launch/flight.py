"""The flight recorder: the last events of all workers of a machine as one timeline, for Perfetto and Chrome."""

import json
import os

from epl.launch import board

NAME = "timeline.json"
_OWN, _COLLECTIVES = 1, 2  # the two rows of a worker


def timeline(paths, now=None):
    """A trace in the format of Chrome's about:tracing, which Perfetto reads too; {} where no worker has told anything.

    Args:
      paths: dict of worker to the path of its board.
      now: by time.monotonic(), the end of what was still under way; None: of the last event.
    """
    found = {worker: _events(path) for worker, path in sorted(paths.items())}
    ends = [event.end_s or event.begin_s for rows in found.values() for row in rows for event in row]
    if not ends:
        return {}
    now = max(ends) if now is None else now
    traced = []
    for worker, rows in found.items():
        traced.append(_name("process_name", worker, 0, "worker %d" % worker))
        for row, events in zip((_OWN, _COLLECTIVES), rows):
            traced.append(_name("thread_name", worker, row, "steps, messages" if row == _OWN else "collectives"))
            traced += [_traced(worker, row, event, now) for event in events]
    return {"traceEvents": traced, "displayTimeUnit": "ms"}


def write_timeline(path, paths, now=None):
    """Writes it; returns whether there was anything."""
    found = timeline(paths, now)
    if found:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as stream:
            json.dump(found, stream)
    return bool(found)


def _events(path):
    if board.read(path) is None:
        return [], []
    own, collectives, _ = board.read_events(path)
    return own, collectives


def _name(what, worker, row, name):
    return {"ph": "M", "name": what, "pid": worker, "tid": row, "args": {"name": name}}


def _traced(worker, row, event, now):
    """One event; what was under way lasts until `now`, and says so."""
    facts = {}
    if row == _COLLECTIVES:
        facts = {"bytes": event.bytes, "tag": event.number}
        if event.code:
            facts["failed"] = event.code
    traced = {"pid": worker, "tid": row, "ts": event.begin_s * 1e6, "name": _words(row, event), "args": facts}
    if event.kind == board.MESSAGE_EVENT and row == _OWN:
        return dict(traced, ph="i", s="p")
    if event.end_s is None:
        facts["unfinished"] = True
    end_s = max(now, event.begin_s) if event.end_s is None else event.end_s
    return dict(traced, ph="X", dur=(end_s - event.begin_s) * 1e6)


def _words(row, event):
    if row == _COLLECTIVES:
        kind = board.KINDS[event.kind] if 0 <= event.kind < len(board.KINDS) else "collective"
        return "agreement on a step" if event.name == board.AGREEMENT else "%s %s" % (kind, event.name)
    return "step %d" % event.number if event.kind == board.STEP_EVENT else event.name
