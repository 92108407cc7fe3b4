"""What the workers of a job have recorded, joined: the global batch of each step, and what copies of the model made."""

import glob
import os
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from epl.errors import VerifyError
from epl.session import plain

_COMBINED = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


@dataclass(frozen=True)
class RecordedStep:
    """A training step as the whole job took it.

    Attributes:
      fetches, targets: names, as the program's call had them.
      given: {tensor: {(replica, micro-batch): value}} of what was fed, read and drawn.
      open: those of them whose number of rows the program leaves open.
      losses: {(tensor, replica, micro-batch): {(worker, copy): value}}, as far as copies of the model have them.
      updates: {(variable, operation, position): {(worker, copy): value}} of what updates take that comes from
        gradients; the copy is the number of that of the model among those of its worker.
      before, after: {variable: {(worker, copy): value}} at the step's beginning and end.
      outside: operations whose values come from a clock, Python or the like.
      layout: of the first worker.
      trace: the Trace of a step of which all tensors were written down; None of others.
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
    trace: Optional["Trace"] = None


@dataclass(frozen=True)
class Trace:
    """All tensors of a step between what it is given and what updates take.

    Attributes:
      order: names, none before one that it is made of.
      values: {tensor: {(replica, micro-batch): value}}, whole ones of those of which devices have parts.
      lines: {operation: lines of the user's program that make it, the innermost first}.
      passes: {tensor: names of the passes that have changed its operation or made a copy of it}.
      others: {(tensor, replica, micro-batch): [(what its operation takes in the program, what under the strategy, what
        that is), ...]} where these differ.
      ways: {(variable, operation, position): {(worker, copy): (who takes the gradient there, [(tensor of the worker's
        graph, what gives it in words, its value)])}} of what leads from copies' gradients to who takes the joined one.
    """

    order: Tuple[str, ...]
    values: Dict[str, Dict[Tuple[int, int], Any]]
    lines: Dict[str, Tuple[str, ...]]
    passes: Dict[str, Tuple[str, ...]]
    others: Dict[Tuple[str, int, int], Tuple]
    ways: Dict[Tuple[str, str, int], Dict[Tuple[int, int], Tuple]]


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
    first, given, losses, updates, after = calls[0], {}, {}, {}, _by_variable(calls, "after")
    for worker, call in enumerate(calls):
        for kind, *what, value in call.get("seen", ()):
            value = value_of(value)
            if kind == "given":
                tensor, replica, micro_batch = what
                given.setdefault(tensor, {}).setdefault((replica, micro_batch), value)
            elif kind == "loss":
                losses.setdefault(tuple(what), {})[worker, 0] = value
            elif kind == "update":
                updates.setdefault(tuple(what[:3]), {})[worker, what[3]] = value
        for name, copy, value in call["copies"]:
            after[name][worker, copy] = value_of(value)
    return RecordedStep(
        tuple(first["fetches"]),
        tuple(first["targets"]),
        given,
        frozenset(first["open"]),
        losses,
        updates,
        _by_variable(calls, "before"),
        after,
        tuple(sorted({name for call in calls for name in call["outside"]})),
        first["layout"],
        _trace(calls) if "order" in first else None,
    )


def _trace(calls):
    parts, others, ways, lines, passes = {}, {}, {}, {}, {}
    for worker, call in enumerate(calls):
        seen = call.get("seen", ())
        there = {tensor: value_of(value) for kind, tensor, *_, value in seen if kind == "way"}
        for (*key, copy, taker), way in call.get("ways", ()):
            way = [(tensor, words, there[tensor]) for tensor, words in way if tensor in there]
            ways.setdefault(tuple(key), {})[worker, copy] = taker, way
        for kind, tensor, *place, value in seen:
            if kind == "traced":
                replica, micro_batch, shard, placement, dim = place
                here = parts.setdefault(tensor, {}).setdefault((replica, micro_batch), (placement, dim, {}))
                here[2].setdefault(shard, value_of(value))
        for tensor, replica, micro_batch, *other in call.get("others", ()):
            others.setdefault((tensor, replica, micro_batch), []).append(tuple(other))
        lines.update(call["lines"])
        for tensor, names in call["passes"].items():
            passes[tensor] = tuple(dict.fromkeys(passes.get(tensor, ()) + tuple(names)))
    values = {}
    for tensor, places in parts.items():
        whole = {place: _whole(*there) for place, there in places.items()}
        values[tensor] = {place: value for place, value in whole.items() if value is not None}
    others = {key: tuple(dict.fromkeys(found)) for key, found in others.items()}
    return Trace(tuple(calls[0]["order"]), values, lines, passes, others, ways)


def _whole(kind, dim, parts):
    """A tensor of which each shard has a part; None where these do not tell it."""
    values = [parts[shard] for shard in sorted(parts)]
    if kind == "sharded":
        return np.concatenate(values, axis=dim)
    if kind in _COMBINED:
        return _COMBINED[kind](np.stack(values), axis=0)
    return values[0] if kind == "whole" else None


def _by_variable(calls, when):
    found = {}
    for worker, call in enumerate(calls):
        for name, value in call[when].items():
            found.setdefault(name, {})[worker, 0] = value_of(value)
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
