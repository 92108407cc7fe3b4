"""The first operation at which a job and one device part, in one step of which the job has recorded all tensors.

Each copy of the model should have, for its own rows, what one device has for these; so tensor after tensor of the
forward and the backward pass is compared copy by copy. Where all of them agree, the fault is in what joins gradients;
where these agree too, in an update.
"""

import itertools
from dataclasses import dataclass
from typing import Tuple

import numpy as np

from epl.graph import tags
from epl.graph.index import node_of, parse_input
from epl.verify import guesses
from epl.verify.comparison import (
    DIFFERENT,
    RUNS,
    Difference,
    compare_steps,
    largest_of,
    mover,
    rounding_movers,
    unit_of,
)
from epl.verify.one_device import LOSS, UPDATE, VARIABLE

FORWARD, BACKWARD, JOINED, UPDATED = "forward pass", "backward pass", "joining of gradients", "update"


@dataclass(frozen=True)
class FirstOperation:
    """The first operation whose result differs though what it takes does not.

    Attributes:
      step: its number.
      part: FORWARD, BACKWARD, JOINED or UPDATED.
      operation: its name in the program; where gradients are joined, that of the operation that makes the gradient.
      type: of the operation.
      lines: lines of the user's program that make it, the innermost first.
      passes: names of the passes that have changed it, or have made copies of it.
      there: what the rewritten graph has in its place: (what it takes there, or what gives the gradient; what that is).
      where: whose value it is, in words.
      difference: its Difference.
      guess: what may be wrong, in words; "" for no idea.
    """

    step: int
    part: str
    operation: str
    type: str
    lines: Tuple[str, ...]
    passes: Tuple[str, ...]
    there: Tuple[Tuple[str, str], ...]
    where: str
    difference: Difference
    guess: str = ""


def first_operation(one_device, step, number):
    """The FirstOperation of a step; None where nothing differs in it.

    Args:
      one_device: a OneDevice of that step alone.
      step: the RecordedStep, with its Trace.
      number: what the step is called.
    """
    exact = one_device.trace()
    found = None if step.layout["normalises_alike"] else _in_passes(one_device, step, number, exact)
    if found is not None:
        return found
    different = [each for each in compare_steps(one_device, [step]).steps[0] if each.verdict == DIFFERENT]
    joined = [each for each in different if each.kind == UPDATE]
    if joined:
        return _joined(one_device, step, number, max(joined, key=lambda each: _telling(step, each)), exact)
    updates = [(_last(one_device, each.key[1]), each) for each in different if each.kind == VARIABLE]
    if updates:
        _, first = min(updates, key=lambda pair: pair[0])
        return _updated(one_device, step, number, first)
    losses = [each for each in different if each.kind == LOSS]
    return _loss(one_device, step, number, losses[0]) if losses else None


def _in_passes(one_device, step, number, exact):
    again = one_device.trace()
    moved = [one_device.trace(mover(seed)) for seed in range(RUNS)]
    rounded = [one_device.trace(given) for given, _ in rounding_movers(step, 0)]
    trace, scaled = step.trace, _is_weighed(step)
    for tensor in trace.order:
        is_backward = tags.phase(one_device.node(node_of(tensor))) == tags.BACKWARD
        worst = None
        for place, there in sorted(trace.values.get(tensor, {}).items()):
            key = tensor, place
            if key not in exact or largest_of(exact[key], again[key])[0]:
                continue
            here = _to(exact[key])
            there = _in_units(here, _to(there)) if is_backward and scaled else _to(there)
            largest, elements = largest_of(here, there)
            unit = unit_of(here, [_to(run[key]) for run in moved], np.float32)
            expected = unit_of(here, [_to(run[key]) for run in rounded], np.float32) if rounded else 0.0
            kind = BACKWARD if is_backward else FORWARD
            difference = Difference(kind, tensor, largest, unit, tuple(elements), key=key, expected=expected)
            if difference.verdict == DIFFERENT and (worst is None or difference.ratio > worst.ratio):
                worst = difference
        if worst is not None:
            return _of_tensor(one_device, step, number, tensor, worst)
    return None


def _is_weighed(step):
    """Whether gradients begin with other numbers than on one device, as copies' losses count by their rows."""
    return any(set(kinds).difference(("mean", "same")) for kinds in step.layout["losses"].values())


def _in_units(here, there):
    """A tensor, divided by the one number by which it differs most from another one."""
    if here.shape != there.shape or not np.all(np.isfinite(there)):
        return there
    own, both = float(np.sum(here * here)), float(np.sum(here * there))
    return there * (own / both) if own and both else there


def _to(value):
    return np.asarray(value, np.float64) if np.asarray(value).dtype.itemsize == 8 else np.asarray(value, np.float32)


def _of_tensor(one_device, step, number, tensor, difference):
    name, (replica, micro_batch) = parse_input(tensor).node, difference.key[1]
    others = step.trace.others.get((tensor, replica, micro_batch), ())
    there = tuple(("takes '%s' in the place of '%s'" % (now, was), what) for was, now, what in others)
    where = "replica %d, micro-batch %d" % (replica, micro_batch)
    guess = guesses.of_pass(one_device, step, tensor, (replica, micro_batch), others)
    return _made(one_device, step, number, difference.kind, name, tensor, there, where, difference, guess)


def _made(one_device, step, number, part, name, tensor, there, where, difference, guess):
    trace = step.trace
    lines, passes = trace.lines.get(name, ()), trace.passes.get(tensor, ())
    kind = one_device.node(name).op
    return FirstOperation(number, part, name, kind, tuple(lines), tuple(passes), there, where, difference, guess)


def _telling(step, difference):
    """By how much a gradient tells what is wrong: sparse ones, of which each copy has other rows, least."""
    variable = difference.key[1][0]
    is_sparse = any(
        np.asarray(value).dtype.kind in "iu"
        for key, values in step.updates.items()
        if key[0] == variable
        for value in values.values()
    )
    return not is_sparse, difference.size, difference.ratio


def _joined(one_device, step, number, difference, exact):
    variable, taker, position = difference.key[1]
    tensor = one_device.takes(taker)[position]
    where = "worker %d, copy %d, the gradient of %s" % (difference.worker, difference.copy, variable)
    local = {place: _to(value) for (name, place), value in exact.items() if name == tensor}
    guess = guesses.of_joining(step, difference, local)
    ways = step.trace.ways.get(difference.key[1], {})
    found = ways.get((difference.worker, difference.copy))
    there = ()
    if found is not None:
        name, what = first_of_way(found[0], found[1], [local[place] for place in sorted(local)])
        there = (("'%s'" % name, what),)
    return _made(one_device, step, number, JOINED, node_of(tensor), tensor, there, where, difference, guess)


def first_of_way(taker, way, local):
    """(name, what it is) of the first operation that joins gradients wrongly.

    Each tensor on the way from the gradients of copies of the model to who takes the joined one is a sum of these, each
    times a number: the same for all of them that are in it, and in the end one by the count of all.

    Args:
      taker: the operation that takes the joined gradient.
      way: [(tensor, what gives it in words, its value)].
      local: the gradients of all copies.
    """
    mean = np.mean(local, axis=0) if local else None
    known = [(node_of(tensor), what, _numbers(value, local), guesses.close(value, mean)) for tensor, what, value in way]
    for name, what, numbers, _ in known:
        if numbers is not None:
            summed = numbers[np.abs(numbers) > _SMALL]
            if len(summed) and np.ptp(summed) > _SMALL or len(summed) == 1 < len(local) and what.startswith(_ADDS):
                return name, what
    right = [at for at, each in enumerate(known) if each[3]]
    if right:
        behind = known[right[-1] + 1 :]
        return behind[0][:2] if behind else (taker, "takes it")
    joins = [each for each in known if each[1].startswith("Epl")]
    if not joins or known[-1][2] is None or _leaves_out(known[-1][2]):
        return taker, "takes it"
    return joins[-1][:2]


_SMALL = 1e-3
_ADDS = ("Add", "EplAllReduce", "EplReduceScatter")  # they add up what several copies have


def _numbers(value, local):
    """The numbers times which gradients of copies add up to a tensor; None where they do not, or cannot be told."""
    if not local or any(each.shape != value.shape for each in local) or value.size < 3:
        return None
    parts = np.stack([each.ravel() for each in local], 1).astype(np.float64)
    wanted = value.ravel().astype(np.float64)
    if value.size >= 2 * len(local):
        numbers = np.linalg.lstsq(parts, wanted, rcond=None)[0]
        return numbers if guesses.close(parts.dot(numbers), wanted) else None
    # Too few elements: small whole numbers, all times one.
    for counts in itertools.product((0, 1, 2), repeat=len(local)) if len(local) <= _FEW else ():
        total = parts.dot(counts)
        scale = total.dot(wanted) / max(total.dot(total), 1e-30)
        if scale and guesses.close(scale * total, wanted):
            return scale * np.array(counts)
    return None


_FEW = 6


def _leaves_out(numbers):
    return numbers is not None and bool(np.any(np.abs(numbers) <= _SMALL))


def _last(one_device, variable):
    return max([one_device.place_of(name) for name in one_device.updates_of(variable)] or [0])


def _updated(one_device, step, number, difference):
    variable = difference.key[1]
    name = (one_device.updates_of(variable) or [variable])[-1]
    where = "worker %d, copy %d, variable %s" % (difference.worker, difference.copy, variable)
    guess = guesses.of_update(one_device, step, difference)
    return _made(one_device, step, number, UPDATED, name, name, (), where, difference, guess)


def _loss(one_device, step, number, difference):
    tensor, replica, micro_batch = difference.key[1]
    where = "replica %d, micro-batch %d" % (replica, micro_batch)
    return _made(one_device, step, number, FORWARD, node_of(tensor), tensor, (), where, difference, "")
