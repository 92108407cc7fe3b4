"""How far a job is, in one line: on a terminal below all other output and kept up to date, elsewhere now and then.

The launcher writes the line itself, byte by byte as the terminal takes it: packages for progress bars write from a
thread or wait for the terminal, and the loop that watches the workers must wait for nobody.
"""

import collections
import os

from epl.launch import board, diagnosis
from epl.launch.time_shares import shares_text

LINE, PLAIN, OFF = "line", "plain", "off"
# A line on a terminal is made anew so often; elsewhere there is one so often, and sooner for the first one.
_LOOK_S = 0.5
_PLAIN_S, _FIRST_PLAIN_S = 30.0, 10.0
# Rates and shares are of so long a time until now.
_WINDOW_S = 10.0
_SHOWN_AFTER_S = 5.0  # a worker that has been at one thing for so long
_COLUMNS = 80  # of a terminal that does not say


def mode_of(choice, environ, is_terminal):
    """LINE, PLAIN or OFF for the value of `--progress`."""
    if choice == "auto":
        return LINE if is_terminal and environ.get("TERM", "dumb") != "dumb" else PLAIN
    return choice


class Progress(object):
    """Shows it.

    Args:
      mode: LINE, PLAIN or OFF.
      paths: dict of each worker of this machine to its board's path.
      num_workers: of the job.
      began: when it did, by time.monotonic().
      record: a record.Record that gets every look too, or None.
    """

    def __init__(self, mode, paths, num_workers, began, record=None):
        self._mode = mode
        self._paths = paths
        self._num_workers = num_workers
        self._began = began
        self._look_at = began
        self._plain_at = began + _FIRST_PLAIN_S
        self._history = collections.deque()  # (when, {worker: Seen})
        self._latest = {}
        self._record = record
        self._looks = {}  # the latest diagnosis.Looks, of a job that has not moved for a while

    def show(self, console, now):
        """Shows it if that is due."""
        if self._mode == OFF and self._record is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        text = self.text(now)
        if self._record is not None:
            self._record.add(self._latest)
        if self._mode == OFF:
            return
        if self._mode == LINE:
            console.status(text)
        elif now >= self._plain_at:
            self._plain_at = now + _PLAIN_S
            console.say(text)

    def text(self, now):
        """The line now."""
        self._latest = {worker: seen for worker, seen in self._seen() if seen is not None}
        if self._latest:
            self._history.append((now, self._latest))
        while len(self._history) > 2 and now - self._history[1][0] > _WINDOW_S:
            self._history.popleft()
        if not any(seen.steps for seen in self._latest.values()):
            text = before_training(self._latest, now, self._began)
            steps = [now - seen.since for seen in self._latest.values() if seen.state == board.STEP]
            return text + (self._late(now) if steps and max(steps) > _SHOWN_AFTER_S else "")
        trained = ({w: seen for w, seen in each.items() if seen.steps} for _, each in self._history)
        text = training(self._latest, next(filter(None, trained)), self._num_workers)
        if now - max(seen.last_step_at for seen in self._latest.values()) < _SHOWN_AFTER_S:
            self._looks = {}
            return text
        return text + self._late(now)

    def _late(self, now):
        """Of a job that has not moved for a while: who holds it up."""
        before, self._looks = self._looks, {}
        for worker in self._latest:
            look = diagnosis.look(self._paths[worker], now)
            if look is not None:
                self._looks[worker] = look
        found = diagnosis.verdicts(before, self._looks)
        late = [found[worker] for worker in diagnosis.late(before, self._looks, found)] if before else []
        return "  late: worker %d, %s for %.0f s" % (late[0].worker, late[0].text, late[0].since_s) if late else ""

    def _seen(self):
        return [(worker, board.read(path)) for worker, path in sorted(self._paths.items())]

    def end(self, console):
        """Says at the end how far the job has come, if it has trained."""
        if self._mode == OFF:
            return
        console.status("")
        self._latest = {worker: seen for worker, seen in self._seen() if seen is not None}
        text = at_the_end(self._latest, self._num_workers)
        if text:
            console.say(text)


def doing(seen, now):
    """What a worker does until it trains, in words."""
    seconds = max(0.0, now - seen.since)
    what = {
        board.PROGRAM: "in the program's own Python" if seen.runs else "the program builds its model",
        board.STEP: "TensorFlow makes the first step ready" if seen.runs else "TensorFlow sets up variables",
        board.OTHERS: "waiting for %s" % seen.texts.get("doing", "the others"),
        board.PREPARES: seen.texts.get("doing", "getting ready"),
        board.LEFT: "at its end",
    }[int(seen.state)]
    return "%s, %.0f s" % (what, seconds)


def before_training(seen, now, began):
    """The line before the first training step.

    Args:
      seen: dict of worker to its Seen, of those that have come to epl.init().
      now, began: by time.monotonic().
    """
    if not seen:
        return "starting Python and TensorFlow, %.0f s" % (now - began)
    # The one that others wait for says more than those that wait.
    busy = [worker for worker in sorted(seen) if seen[worker].state not in (board.OTHERS, board.LEFT)]
    worker = (busy or sorted(seen))[0]
    return "worker %d: %s" % (worker, doing(seen[worker], now))


def training(seen, then, num_workers):
    """The line of a job that trains.

    Args:
      seen: dict of worker to its Seen, now.
      then: the same some time ago; of those that had made a step.
      num_workers: of the job.
    """
    first = seen[min(worker for worker in seen if seen[worker].steps)]
    parts = [_steps_text(first)]
    if first.loss is not None:
        parts.append("loss %.4g" % first.loss)
    rate = rate_of(seen, then)
    if rate:
        parts.append(_rate_text(rate, first.rows, num_workers))
        if first.total is not None and first.total > first.step:
            parts.append("%s left" % _duration((first.total - first.step) / rate))
    shares = shares_text(seen, then)
    if shares:
        parts.append(shares)
    return "  ".join(parts)


def at_the_end(seen, num_workers):
    """The line of a job that has ended; "" where no worker has trained."""
    trained = [seen[worker] for worker in sorted(seen) if seen[worker].steps]
    if not trained:
        return ""
    first = trained[0]
    seconds = first.last_step_at - first.first_step_at
    text = "%s in %s" % (_steps_text(first), _duration(seconds))
    if seconds > 0 and first.steps > 1:
        text += ", %s" % _rate_text((first.steps - 1) / seconds, first.rows, num_workers)
    return text if first.loss is None else text + ", loss %.4g" % first.loss


def _steps_text(seen):
    if seen.total is None:
        return "step {:,}".format(seen.step)
    return "step {:,} of {:,.0f}".format(min(seen.step, int(seen.total)), seen.total)


def _rate_text(rate, rows, num_workers):
    if rows is None:
        return "%s steps/s" % _number(rate)
    return "%s samples/s" % _number(rate * rows * num_workers)


def _number(value):
    return "{:,.0f}".format(value) if value >= 100 else "%.3g" % value


def rate_of(seen, then):
    """Steps a second between two looks, of the first worker that has made some between them; 0.0: none has."""
    for worker in sorted(seen):
        before, after = then.get(worker), seen[worker]
        if before is not None and before.pid == after.pid and after.last_step_at > before.last_step_at:
            return (after.steps - before.steps) / (after.last_step_at - before.last_step_at)
    return 0.0


def _duration(seconds):
    seconds = int(round(seconds))
    if seconds >= 3600:
        return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    return "%d:%02d" % (seconds // 60, seconds % 60)


def columns_of(descriptor):
    """How many characters fit into a line of a terminal."""
    try:
        return os.get_terminal_size(descriptor).columns or _COLUMNS
    except OSError:
        return _COLUMNS
