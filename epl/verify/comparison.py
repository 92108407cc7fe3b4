"""How far a job is from one device, in units of what rounding explains there.

One device is run several times more with each number that it is given, and each variable before each step, moved by one
rounding: how far its results move is what rounding explains. No tolerance is fixed.
"""

from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

import numpy as np

from epl.verify.one_device import LOSS, UPDATE, VARIABLE

EQUAL, ROUNDING, DIFFERENT = "equal", "equal up to rounding", "different"
BY_DESIGN = "as its strategy rounds"
# Between the inputs, which are moved, and a result there are as many roundings as operations.
LIMIT = 16.0
RUNS = 4
# One rounding of numbers that a strategy rounds by design, of the number; of int8 of the largest one beside it.
_ROUNDINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "int8": 1.0 / 127}


@dataclass(frozen=True)
class Difference:
    """Of one tensor in one step.

    Attributes:
      kind: "loss", "gradient" or "variable".
      name: what is shown of it; `variable` is that of it, if any.
      largest: the largest difference of an element; inf where shapes differ or one side is not finite.
      unit: how large one is that rounding explains.
      worst: [(place, value on one device, value under the strategy)] of the elements that differ most.
      worker, copy: whose value differs most: of which worker, and of which copy of the model among its own.
      key: what it is of, as in epl.verify.one_device.
      size: how many elements it has.
      expected: as `unit`, where the strategy rounds numbers by design; 0 where it does not.
    """

    kind: str
    name: str
    largest: float
    unit: float
    worst: Tuple = ()
    worker: int = 0
    copy: int = 0
    key: Tuple = ()
    expected: float = 0.0
    size: int = 0

    @property
    def ratio(self):
        if not self.largest:
            return 0.0
        return self.largest / self.unit if self.unit else float("inf")

    @property
    def verdict(self):
        if not self.largest:
            return EQUAL
        if self.ratio <= LIMIT:
            return ROUNDING
        return BY_DESIGN if self.largest <= LIMIT * self.expected else DIFFERENT


@dataclass
class Comparison:
    """Of all steps.

    Attributes:
      steps: for each step its Differences.
      races: what differs between two runs of one device, which is not compared: names.
      notes: what else is to be known, in words.
      first: the FirstOperation at which the two part; None where they do not, or none was found.
    """

    steps: List[List[Difference]]
    races: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    first: Optional[Any] = None

    @property
    def verdict(self):
        found = {difference.verdict for step in self.steps for difference in step}
        return next((each for each in (DIFFERENT, BY_DESIGN, ROUNDING) if each in found), EQUAL)


def compare_steps(one_device, steps, seed=0):
    """The Comparison of RecordedSteps with a OneDevice."""
    first, again = one_device.run(), one_device.run()
    # Whatever comes of a race differs later too, though not each time.
    races = {key for one, other in zip(first, again) for key in one if not _same(one[key], other[key])}
    moved = [one_device.run(mover(seed + number)) for number in range(RUNS)]
    own = one_device.own_state() if one_device.in_parts else frozenset()
    rounded = [one_device.run(*movers) for movers in rounding_movers(steps[0], seed)]
    found = []
    for number, step in enumerate(steps):
        there = {k: v for k, v in _of_job(step).items() if k not in races and k[1] not in own and k in first[number]}
        runs = [_dense(run[number]) for run in [first] + moved]
        by_design = [_dense(run[number]) for run in rounded]
        job = sorted(_dense_job(there).items(), key=str)
        found.append([_difference(key, runs, values, by_design) for key, values in job])
    return Comparison(found, sorted({_name(key) for key in races}))


def rounding_movers(step, seed):
    """For runs of one device that show how far results move by what a strategy rounds by design, for each run (what
    moves what it is given, what moves gradients); nothing for a strategy that does not round."""
    rounded = step.layout.get("rounded", {})
    given, gradients = rounded.get("products"), rounded.get("gradients")
    for number in range(RUNS if rounded else 0):
        yield mover(seed + number, given), gradients and mover(seed + RUNS + number, gradients)


def mover(seed, dtype=None):
    """A function that moves each number of a floating array by at most a rounding, of a type or of the array's own."""
    random = np.random.RandomState(seed)

    def move(value, number):
        del number
        value = np.asarray(value)
        if value.dtype.kind != "f":
            return value
        by = random.randint(-1, 2, value.shape) * _ROUNDINGS.get(dtype, np.finfo(value.dtype).eps)
        if dtype == "int8":
            return (value + by * np.max(np.abs(value), initial=0.0)).astype(value.dtype)
        return (value * (1 + by)).astype(value.dtype)

    return move


def _of_job(step):
    """{what is compared: {(worker, copy): value}} of a RecordedStep."""
    found = {(UPDATE, key): values for key, values in step.updates.items()}
    found.update({(VARIABLE, name): values for name, values in step.after.items()})
    found.update({(LOSS, key): values for key, values in step.losses.items()})
    return found


def _dense(values):
    """Sparse gradients, whose rows come in any order, as one tensor: of each row that any has, their sum."""
    found = dict(values)
    for rows_key, indices in _indices(values):
        rest = [k for k in values if k[0] == UPDATE and k[1][0] == rows_key[1][0] and k != rows_key]
        del found[rows_key]
        for key in rest:
            if len(np.atleast_1d(values[key])) == len(indices):
                found[key] = _summed(np.asarray(values[key]), indices)
    return found


def _indices(values):
    return [(k, np.asarray(v)) for k, v in values.items() if k[0] == UPDATE and np.asarray(v).dtype.kind in "iu"]


def _summed(rows, indices):
    total = np.zeros((int(indices.max(initial=-1)) + 1,) + rows.shape[1:], np.float64)
    np.add.at(total, indices, rows)
    return total


def _dense_job(there):
    """{what is compared: {(worker, copy): value}}, with sparse gradients as in `_dense`."""
    found = {}
    for worker in sorted({worker for values in there.values() for worker in values}):
        for key, value in _dense({k: v[worker] for k, v in there.items() if worker in v}).items():
            found.setdefault(key, {})[worker] = value
    return found


def _difference(key, runs, values, by_design):
    base = np.asarray(runs[0][key])
    found = (largest_of(base, value) + (where,) for where, value in values.items())
    largest, elements, (worker, copy) = max(found, key=lambda each: each[0])
    # Sums in float64 are of numbers in float32.
    dtype = np.float32 if base.dtype == np.float64 and key[0] != VARIABLE else base.dtype
    unit = unit_of(base, [run[key] for run in runs[1:]], dtype)
    expected = unit_of(base, [run[key] for run in by_design], dtype) if by_design else 0.0
    return Difference(key[0], _name(key), largest, unit, tuple(elements), worker, copy, key, expected, base.size)


def unit_of(base, moved, dtype):
    """How large a difference is that one rounding of each input, and of the tensor itself, explains.

    Args:
      base: the tensor.
      moved: what it is where inputs were moved by a rounding.
      dtype: NumPy's type of which a rounding of the tensor is.
    """
    if base.dtype.kind != "f" or not base.size:
        return 0.0
    moves = [largest_of(base, value)[0] for value in moved]
    return float(max(moves + [0.0]) + np.finfo(dtype).eps * np.max(np.abs(base), initial=0.0))


def largest_of(base, value):
    """(the largest difference, the worst elements)."""
    value = np.asarray(value)
    if base.shape != value.shape:
        return float("inf"), [("shape", str(base.shape), str(value.shape))]
    if not base.size or _same(base, value):
        return 0.0, []
    if base.dtype.kind not in "fciub":
        return (0.0, []) if np.array_equal(base, value) else (float("inf"), [])
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(base.astype(np.complex128) - value.astype(np.complex128))
    off = np.where((base == value) | (np.isnan(base) & np.isnan(value)), 0.0, np.where(np.isnan(off), np.inf, off))
    order = np.argsort(-off, axis=None)[:3]
    places = [np.unravel_index(each, base.shape) for each in order]
    shown = [(list(map(int, place)), base[place].item(), value[place].item()) for place in places if off[place]]
    return float(off.max()), shown


def _same(value, other):
    value, other = np.asarray(value), np.asarray(other)
    return value.shape == other.shape and value.dtype == other.dtype and value.tobytes() == other.tobytes()


def _name(key):
    kind, what = key
    if kind == UPDATE:
        return "gradient of %s (taken by %s)" % what[:2]
    return "loss %s of replica %d, micro-batch %d" % what if kind == LOSS else "variable %s" % what
