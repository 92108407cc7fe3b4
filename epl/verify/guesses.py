"""What may be wrong where a job and one device part, in words: by what the numbers are that should be others."""

import itertools

import numpy as np

from epl.verify.one_device import VARIABLE

_CLOSE = 1e-4  # of the norm: far more than rounding, far less than any of these faults


def of_pass(one_device, step, tensor, place, others):
    """Of an operation of the forward or the backward pass.

    Args:
      one_device: the OneDevice.
      step: the RecordedStep.
      tensor: that differs.
      place: (replica, micro-batch).
      others: of the Trace, what it takes in the place of what it should.
    """
    for was, now, _ in others:
        if one_device.is_read(was):
            return "it computes with '%s', which is not this copy's '%s': another weight, or a stale one" % (now, was)
    apart = [variable for variable in one_device.read_by(tensor) if _differ(step.before.get(variable, {}))]
    if apart:
        what = "workers have different values of %s when the step begins: a first value, or an update, that not all had"
        return what % ", ".join(apart)
    values = step.trace.values.get(tensor, {})
    alike = [
        other
        for other, value in sorted(values.items())
        if other != place and close(value, values[place]) and not _same_rows(step, place, other)
    ]
    if alike:
        return "it is what replica %d, micro-batch %d has: that one's part of the batch counts twice" % alike[0]
    read = [(variable, one_device.updates_of(variable)) for variable in one_device.read_by(tensor)]
    read = ["%s, which '%s' changes" % (variable, updates[-1]) for variable, updates in read if updates]
    if read:
        return "it reads %s: too late, after this step's update, or a stale value" % " and ".join(read)
    return ""


def _same_rows(step, place, other):
    return all(_equal(parts.get(place), parts.get(other)) for parts in step.given.values())


def _equal(value, other):
    return value is None or other is None or np.array_equal(value, other)


def _differ(by_copy):
    values = list(by_copy.values())
    return any(not np.array_equal(value, values[0]) for value in values[1:])


def of_joining(step, difference, local):
    """Of a gradient that an update takes, though what the copies of the model made is right.

    Args:
      step: the RecordedStep.
      difference: the Difference.
      local: {(replica, micro-batch): the gradient there}.
    """
    there = step.updates[difference.key[1]].get((difference.worker, difference.copy))
    values = [np.asarray(local[place], np.float64) for place in sorted(local)]
    if there is None or not values or any(value.shape != np.shape(there) for value in values):
        return ""
    there, places, count = np.asarray(there, np.float64), sorted(local), len(values)
    mean = np.mean(values, axis=0)
    if not np.any(there):
        return "no gradient comes to the update"
    for factor in (count, 1.0 / count, 2.0, 0.5, count**2):
        if factor != 1 and close(there, factor * mean):
            return _of_factor(factor, count)
    for place, value in zip(places, values):
        if close(there, value):
            return "a gradient that is not reduced: it is that of replica %d, micro-batch %d alone" % place
        if close(there, value / count):
            return "of all copies replica %d, micro-batch %d alone is added up" % place
    for at, place in enumerate(places):
        if close(there, mean - values[at] / count) or close(there, (mean * count - values[at]) / max(count - 1, 1)):
            return "replica %d, micro-batch %d is left out" % place
    for one, other in itertools.permutations(range(count), 2):
        if close(there, mean + (values[one] - values[other]) / count):
            return "replica %d, micro-batch %d counts twice, and replica %d, micro-batch %d not at all" % (
                places[one] + places[other]
            )
    for at, place in enumerate(places):
        if close(there, mean + values[at] / count):
            return "replica %d, micro-batch %d counts twice" % place
    for replica in sorted({place[0] for place in places}):
        own = np.mean([value for place, value in zip(places, values) if place[0] == replica], axis=0)
        if close(there, own):
            return "a gradient that is not reduced: it is that of replica %d alone" % replica
    for (variable, _, _), values in sorted(step.updates.items()):
        if variable != difference.key[1][0]:
            for value in values.values():
                if np.shape(value) == there.shape and close(there, np.asarray(value, np.float64)):
                    return "it is the gradient of %s" % variable
    return _ratio(there, mean)


def _of_factor(factor, count):
    if factor == count:
        return "it is the sum over %d copies and micro-batches where their mean belongs; or a loss is no mean" % count
    if factor > 1:
        return "it is %g times what it should be: reduced twice, or with a wrong scale" % factor
    return (
        "it is %g times what it should be: divided twice by how many copies there are, or with a wrong scale" % factor
    )


def of_update(one_device, step, difference):
    """Of a variable that differs though what its update takes is right."""
    variable, where = difference.key[1], (difference.worker, difference.copy)
    before = step.before[variable].get((difference.worker, 0))
    there, here = step.after[variable].get(where), one_device.run()[0].get((VARIABLE, variable))
    if before is None or there is None or here is None or np.shape(before) != np.shape(there):
        return ""
    if np.asarray(there).dtype.kind not in "fiu":
        return ""
    before, there, here = (np.asarray(value, np.float64) for value in (before, there, here))
    if close(there, before) and not close(here, before):
        return "it is not updated"
    if close(there - before, 2 * (here - before)):
        return "it is updated twice"
    for each, values in sorted(step.after.items()):
        if each != variable and np.shape(values.get(where)) == there.shape and there.size > 1:
            if close(np.asarray(values[where], np.float64), there):
                return "it has the value of %s" % each
    return _ratio(there - before, here - before) or "it is updated twice, or by another rule"


def _ratio(there, here):
    own = float(np.sum(here * here))
    factor = float(np.sum(here * there)) / own if own else 0.0
    return "it is %.6g times what it should be" % factor if factor and close(there, factor * here) else ""


def close(value, other):
    """Whether two tensors are the same but for rounding; False where the second one is None or 0."""
    if other is None:
        return False
    value, other = np.asarray(value), np.asarray(other)
    if value.shape != other.shape:
        return False
    value, other = value.astype(np.float64), other.astype(np.float64)
    size = np.linalg.norm(other)
    return bool(size) and bool(np.linalg.norm(value - other) <= _CLOSE * size)
