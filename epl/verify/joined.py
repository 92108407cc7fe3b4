"""What the workers of a job have recorded, joined: the global batch of each step, and what copies of the model made."""

import glob
import os
from dataclasses import dataclass
from typing import Any, Dict, Tuple

import numpy as np

from epl.errors import VerifyError
from epl.session import plain


@dataclass(frozen=True)
class RecordedStep:
    """A training step as the whole job took it.

    Attributes:
      fetches, targets: names, as the program's call had them.
      given: {tensor: {(replica, micro-batch): value}} of what was fed, read and drawn.
      open: those of them whose number of rows the program leaves open.
      losses: {(tensor, replica, micro-batch): {worker: value}}, as far as copies of the model have them.
      updates: {(variable, operation, position): {worker: value}} of what updates take that comes from gradients.
      before, after: {variable: {worker: value}} at the step's beginning and end.
      outside: operations whose values come from a clock, Python or the like.
      layout: of the first worker.
    """

    fetches: Tuple[str, ...]
    targets: Tuple[str, ...]
    given: Dict[str, Dict[Tuple[int, int], Any]]
    open: frozenset
    losses: Dict[Tuple[str, int, int], Dict[int, Any]]
    updates: Dict[Tuple[str, str, int], Dict[int, Any]]
    before: Dict[str, Dict[int, Any]]
    after: Dict[str, Dict[int, Any]]
    outside: Tuple[str, ...]
    layout: Dict[str, Any]


def read_steps(folder, workers):
    """The RecordedSteps of a job that has ended.

    Args:
      folder: where its workers have written.
      workers: how many there were.

    Raises:
      VerifyError: there is none that all workers have taken.
    """
    found = []
    while True:
        paths = [os.path.join(folder, "step-%d.worker-%d" % (len(found), index)) for index in range(workers)]
        if not all(map(os.path.exists, paths)):
            break
        found.append(_joined([_read(path) for path in paths]))
    if not found:
        raise VerifyError(
            "the program has taken no training step under the strategy: none of its session runs has applied "
            "gradients%s. Give a script that trains, and has steps left where it continues from a checkpoint."
            % (" on all workers" if glob.glob(os.path.join(folder, "step-0.worker-*")) else "")
        )
    return found


def _read(path):
    with open(path, "rb") as stream:
        return plain.unpack(stream.read())


def _joined(calls):
    first, given, losses, updates = calls[0], {}, {}, {}
    for worker, call in enumerate(calls):
        for kind, *what, value in call.get("seen", ()):
            value = value_of(value)
            if kind == "given":
                tensor, replica, micro_batch = what
                given.setdefault(tensor, {}).setdefault((replica, micro_batch), value)
            elif kind == "loss":
                losses.setdefault(tuple(what), {})[worker] = value
            else:
                updates.setdefault(tuple(what), {})[worker] = value
    return RecordedStep(
        tuple(first["fetches"]),
        tuple(first["targets"]),
        given,
        frozenset(first["open"]),
        losses,
        updates,
        _by_variable(calls, "before"),
        _by_variable(calls, "after"),
        tuple(sorted({name for call in calls for name in call["outside"]})),
        first["layout"],
    )


def _by_variable(calls, when):
    found = {}
    for worker, call in enumerate(calls):
        for name, value in call[when].items():
            found.setdefault(name, {})[worker] = value_of(value)
    return found


def value_of(recorded):
    """The array that was recorded."""
    if isinstance(recorded, dict):
        return np.array(recorded["texts"], object).reshape(recorded["shape"])
    return np.asarray(recorded)


class NotWhole(Exception):
    """The parts of a batch cannot be put together; says which and why."""


def whole_batch(step):
    """{tensor: value} of what one device is given so that it computes the global batch.

    Raises:
      NotWhole: it cannot be given that in one piece.
    """
    found, rows = {}, {}
    for tensor, parts in step.given.items():
        values = [parts[place] for place in sorted(parts)]
        if tensor in step.open and values[0].ndim:
            if any(value.shape[1:] != values[0].shape[1:] for value in values):
                raise NotWhole("the parts of '%s' have different shapes" % tensor)
            found[tensor] = np.concatenate(values) if len(values) > 1 else values[0]
            rows[tensor] = tuple(len(value) for value in values)
        elif all(_same(value, values[0]) for value in values):
            found[tensor] = values[0]
        else:
            raise NotWhole("each copy of the model has its own '%s', whose number of rows is fixed" % tensor)
    return found


def _same(value, other):
    return value.shape == other.shape and value.dtype == other.dtype and value.tobytes() == other.tobytes()


def places(step):
    """(replica, micro-batch) of all parts of a step's global batch, in order."""
    return sorted({place for parts in step.given.values() for place in parts})


def part(step, place):
    """{tensor: value} of one of these parts."""
    return {tensor: parts.get(place, parts[min(parts)]) for tensor, parts in step.given.items()}
