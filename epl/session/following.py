"""Keeps the board of this worker, from which others see how far it is and what holds it (epl.launch.board)."""

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.launch import board, notes
from epl.plan.facts.analysis import batch_placeholder
from epl.plan.input.batch_rows import rows_of_data

_LOG = logging.getLogger("epl")
# At this signal a worker writes the Python stacks of all its threads into a file; nothing else is known to use it.
STACKS_SIGNAL = signal.SIGRTMIN + 11
# The values of fetches are noted so often.
_VALUES_S = 0.1
_MOST_KINDS, _MOST_NAMES = 8, 3  # of calls, and of what each runs, that the board names
_PLACE = {name: 1 + number for number, name in enumerate(board.FIELDS)}
_STATE, _SINCE, _STEPS, _RUNS, _KIND, _LAST = map(
    _PLACE.get, ("state", "since", "steps", "runs", "kind", "last_step_at")
)
_IN_PROGRAM, _IN_STEPS, _OTHERS, _LOSS = map(_PLACE.get, ("in_program_s", "in_steps_s", "waited_others_s", "loss"))


class Following(object):
    """Notes the calls of sessions of one process: a few stores into memory for each.

    Only the thread that trains counts, as others, those of queues for instance, do what they do beside it; until one
    has trained it is the one that has made this.

    Args:
      environ: variables of the process. Without a launcher the board is in this process's memory alone.
    """

    def __init__(self, environ):
        note = environ.get(notes.VARIABLE)
        path = board.path_beside(note) if note else None
        self.board = board.Board(path)
        self._numbers = self.board.numbers
        self._thread = threading.get_ident()
        self._begin()
        if path:
            self._offer_stacks(path)
            atexit.register(self._settle)

    def _begin(self):
        self._ended = None  # when the latest call of a session did, after the first training step
        self._values_at = 0.0  # when the values of fetches are noted next
        self._steps_wanted = lambda: None
        self._kinds, self._told = {}, []  # of calls: their places among what the board says of them, and that
        self._watched = {}  # of kinds of training steps: the places of the loss and of the global step in their fetches
        self._loss = None  # the latest that was fetched, where it is not noted yet

    def begin_anew(self):
        """The program begins another training (epl.init is called again)."""
        self.board.begin_anew()
        self._begin()

    def _settle(self):
        """At the end of the process: the loss of the last step is what is read then."""
        if self._loss is not None:
            self._numbers[_LOSS] = _number(self._loss)

    def _offer_stacks(self, path):
        if signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            try:
                # It is written to by a signal's handler, so it stays open.
                self._stacks = open(os.open(board.stacks_beside(path), flags, 0o600), "ab")
            except OSError as error:
                _LOG.debug("nobody can have this worker's Python stacks: %s", error)
                return
            faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True, chain=False)
            self.board["signal"] = STACKS_SIGNAL

    # What takes the worker until it trains, and what it waits for

    @contextlib.contextmanager
    def preparing(self, what):
        """The worker is at something that takes it a while, in words that go on after "worker 0 is"."""
        before, began = self._at(), time.monotonic()
        self.board.say(doing=what)
        self.board.state(board.PREPARES, began)
        try:
            yield
        finally:
            self.board.note(board.PHASE_EVENT, began, time.monotonic(), what)
            self._back(before)

    @contextlib.contextmanager
    def waiting(self, what):
        """The worker waits for others, in words that go on after "worker 0 waits for"."""
        before, began = self._at(), time.monotonic()
        self.board.say(doing=what)
        self.board.state(board.OTHERS, began)
        try:
            yield
        finally:
            self.waited(time.monotonic() - began)
            self._back(before)

    def _at(self):
        return self._numbers[_STATE], self._numbers[_SINCE], self.board.text("doing")

    def _back(self, before):
        state, since, doing = before
        self.board.say(doing=doing)
        self.board.state(state, time.monotonic() if state == board.PROGRAM else since)

    @property
    def waited_s(self):
        """For how long the worker has waited for others, since its first training step."""
        return self._numbers[_OTHERS]

    def waited(self, seconds):
        """The worker has waited so long for others."""
        if self._ended is not None:
            self._numbers[_OTHERS] += seconds

    def waited_for_data(self, seconds):
        """A training step has waited so long for its data (io.stats)."""
        if self._ended is not None:
            before = self.board["waited_data_s"]
            self.board["waited_data_s"] = seconds + (before if before == before else 0.0)

    def message(self, text):
        """Something is worth to be read after a bad end; an error is told on its way through several places."""
        if text == self.board.text("message"):
            return
        now = time.monotonic()
        self.board.note(board.MESSAGE_EVENT, now, now, text)
        self.board.say(message=text)

    def left(self):
        """This worker has come to its end in good order."""
        self.board.state(board.LEFT)

    # Calls of sessions

    def begins(self, step):
        """A call begins; returns what `ends` wants: when that was, or None for one of a thread beside."""
        if threading.get_ident() != self._thread:
            if not step.changes.trains:
                return None
            self._thread = threading.get_ident()
            self.board["thread"] = self._thread
        now, numbers = time.monotonic(), self._numbers
        if self._ended is not None:
            numbers[_IN_PROGRAM] += now - self._ended
        kind = self._kinds.get(step)
        numbers[_KIND] = self._new_kind(step) if kind is None else kind
        numbers[_SINCE] = now
        numbers[_STATE] = board.STEP
        return now

    def _new_kind(self, step):
        """Says what a call runs, so that others know what it is in; of many kinds, only of the first ones."""
        kind = self._kinds[step] = len(self._kinds)
        if kind < _MOST_KINDS:
            ran = [node_of(name) for name in step.run.fetches + step.targets]
            self._told.append([_shortened(ran), _shortened(step.reading.sources)])
            self.board.say(kinds=self._told)
        return kind

    def ends(self, began, step=None, fetches=(), values=(), rewritten=None, user_graph=None):
        """The call that `begins` has told of is through; without a step it has failed."""
        if began is None:
            return
        now, numbers = time.monotonic(), self._numbers
        numbers[_STATE] = board.PROGRAM
        numbers[_SINCE] = now
        numbers[_RUNS] += 1
        if self._ended is not None:
            numbers[_IN_STEPS] += now - began
            self._ended = now
        if step is None:
            return
        if step.changes.trains:
            steps = numbers[_STEPS] = numbers[_STEPS] + step.run.repeats
            numbers[_LAST] = now
            if self._ended is None:
                self._first(now)
            self.board.note_step(began, now, int(steps))
        # Nobody looks more often than that; but where steps are few, each counts.
        places = self._watched.get(step)
        if places is None or now > self._values_at:
            self._values_at = now + _VALUES_S
            self._note_values(step, fetches, values, rewritten, user_graph)
        elif places[0] is not None:
            self._loss = values[places[0]]

    def _note_values(self, step, fetches, values, rewritten, user_graph):
        places = self._watched.get(step)
        if places is None:
            places = self._watched[step] = _watched(step, fetches, rewritten, user_graph)
        if places[0] is not None:
            self._numbers[_LOSS], self._loss = _number(values[places[0]]), None
        if places[1] is not None:
            self._is_at(_number(values[places[1]]))

    def _first(self, now):
        self._ended = now
        self.board["first_step_at"] = now
        wanted = self._steps_wanted()
        if wanted is not None:
            self.board["total"] = wanted

    def _is_at(self, global_step):
        """The program has fetched the global step, perhaps as it was before the step that it was fetched with."""
        offset, known = global_step - self._numbers[_STEPS], self.board["offset"]
        if offset == offset and not known >= offset:  # it is not known, or was one too little
            self.board["offset"] = offset

    def takes(self, step, feeds, rewritten):
        """A training step is fed something, or takes a batch itself: how many rows, before the first of its kind."""
        if not step.changes.trains or step in self._watched:
            return
        mesh, graph = rewritten.plan.mesh, rewritten.program.source.graph
        fed = [
            len(value) for name, value in feeds.items() if np.ndim(value) and batch_placeholder(graph, node_of(name))
        ]
        if fed:
            self.board["rows"] = max(fed) / float(mesh.pipeline_workers)
            return
        rows = rows_of_data(graph)
        if rows is not None:
            copies = mesh.shape["data"] * rewritten.micro_batches.count
            self.board["rows"] = float(rows) * copies / mesh.num_workers

    def ends_at(self, step):
        """The program says at which global step it will end."""
        self.board["total"] = step

    def wants(self, steps):
        """The program will make so many training steps more; a function that gives them, or None, at the first step."""
        self._values_at = 0.0  # when the values of fetches are noted next
        self._steps_wanted = steps
        if self._ended is not None:
            wanted = steps()
            self.board["total"] = float("nan") if wanted is None else wanted + self._numbers[_STEPS]


def _shortened(names):
    more = " and %d more" % (len(names) - _MOST_NAMES) if len(names) > _MOST_NAMES else ""
    return ", ".join(name[:60] for name in names[:_MOST_NAMES]) + more


def _watched(step, fetches, rewritten, user_graph):
    """(place of a loss among the fetches, place of the global step); None for what is not among them."""
    # Not tf.train.get_global_step, which refuses a variable that only has the name of one.
    counters = user_graph.get_collection(tf.GraphKeys.GLOBAL_STEP)
    name = counters[0].op.name if len(counters) == 1 else None
    names = [node_of(fetch) for fetch in fetches]
    at = next((place for place, each in enumerate(names) if name and (each + "/").startswith(name + "/")), None)
    if not step.changes.trains:
        return None, at
    nodes = rewritten.program.source.graph.nodes.values()
    losses = {
        tags.get_str(node, tags.SEED) for node in nodes if tags.SEED in node.attr
    }  # of which gradients were taken
    losses.update(loss.tensor for loss in rewritten.program.losses)  # those that are reported too
    return next((place for place, each in enumerate(fetches) if losses & {each, canonical_tensor(each)}), None), at


def _number(value):
    """A scalar as a float; NaN for anything else."""
    return float(value) if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number) else float("nan")
