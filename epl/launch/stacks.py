"""Python stacks of a worker that runs, whatever it does: it writes them itself when it gets a signal (faulthandler).

That needs no rights but those of the same user, and no lock of the interpreter's, so a loop without end answers too. A
process that is stopped does not.
"""

import collections
import linecache
import os
import re
import time

from epl.launch import board
from epl.launch.tracebacks import is_deep

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]+)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_ANSWER_S = 1.0
_MOST_BYTES = 1 << 20

# thread: threading.get_ident(); frames: innermost first.
Stack = collections.namedtuple("Stack", "thread frames")
Frame = collections.namedtuple("Frame", "path line function")


def ask(seen, path, timeout_s=_ANSWER_S):
    """The Stacks of a worker now; none where it does not answer within `timeout_s` seconds.

    Args:
      seen: what its board shows, a board.Seen.
      path: of the board.
    """
    if not seen.signal or not seen.lives:  # another process would not survive the signal
        return []
    answers = board.stacks_beside(path)
    try:
        before = os.path.getsize(answers)
        os.kill(seen.pid, seen.signal)
    except OSError:
        return []
    deadline, size = time.monotonic() + timeout_s, before
    while time.monotonic() < deadline:
        time.sleep(0.05)
        last, size = size, os.path.getsize(answers)
        if size > before and size == last:
            break
    with open(answers, "rb") as stream:
        stream.seek(before)
        return parse(stream.read(_MOST_BYTES).decode("utf-8", "replace"))


def parse(text):
    """The Stacks that faulthandler has written."""
    found = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            found.append(Stack(int(thread.group(1), 16), []))
        elif frame and found:
            found[-1].frames.append(Frame(frame.group(1), int(frame.group(2)), frame.group(3)))
    return found


def place(stacks, thread, beside=False):
    """Where the program is: the innermost Frame of its own, or None.

    Args:
      stacks: all Stacks of the worker.
      thread: the one that trains.
      beside: the thread waits for TensorFlow, so that code of the program which that calls (data, py_func) says more.
    """
    own = {stack.thread: _of_program(stack) for stack in stacks}
    # What TensorFlow calls comes before threads that the program has started, which are often at rest.
    others = sorted((stack for stack in stacks if stack.thread != thread and own[stack.thread]), key=_is_started)
    frames = [own[stack.thread] for stack in others]
    if beside and frames:
        return frames[0]
    return own.get(thread) or next(iter(frames), None)


def _is_started(stack):
    """Whether it is that of a threading.Thread."""
    return bool(stack.frames) and stack.frames[-1].function == "_bootstrap"


def _of_program(stack):
    return next((frame for frame in stack.frames if not is_deep(frame.path)), None)


def place_text(frame):
    """A Frame in words, with its line of source where that can be read."""
    source = linecache.getline(frame.path, frame.line).strip()
    text = "%s:%d in %s" % (os.path.basename(frame.path), frame.line, frame.function)
    return "%s: %s" % (text, source) if source else text


def text(stacks, thread):
    """All stacks in full, that of the thread that trains first; a list of lines."""
    lines = []
    for stack in sorted(stacks, key=lambda stack: stack.thread != thread):
        if not stack.frames:
            continue
        lines.append("thread that trains:" if stack.thread == thread else "another thread:")
        lines += ["  %s" % place_text(frame) for frame in stack.frames]
    return lines
