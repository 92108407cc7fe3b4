"""Compares the copies of variables that ought to be the same, over devices and workers."""

import hashlib

import numpy as np

from epl.errors import WorkerError
from epl.plan.names import read_name
from epl.session import plain

_ADVICE = (
    "The copies of the model do not compute the same any more, so this is not the training of one device. Look at what "
    "changes the variable besides the optimizer: a branch that the data choose, an update that is run by one worker "
    "alone. docs/troubleshooting.md tells more."
)


class Checks(object):
    """When copies are compared.

    Args:
      every: communication.check_replicas_every.

    Attributes:
      num_trained: training steps so far.
    """

    def __init__(self, every):
        self._every = every
        self.num_trained = 0

    def is_due(self, step):
        """Counts a Step that was run, if it trains; whether copies are to be compared after it."""
        if not step.updated:
            return False
        self.num_trained += 1
        return self.num_trained % self._every == 0


def digests(read, nodes, variables, copies, part_in=lambda variable, index: 0):
    """The digests of all local copies.

    Args:
      read: function from a tuple of tensor names to their values.
      nodes: container of the names of this worker's nodes.
      variables: names of those that are compared.
      copies: how many there may be of one.
      part_in: function from a variable and the number of a local copy to that of the part which it has.

    Returns:
      A list of (variable, [digest of each local copy], [its part]), in the order of the names.
    """
    found = []
    for variable in sorted(variables):
        here = [index for index in range(copies) if read_name(variable, index) in nodes]
        if here:
            found.append((variable, here))
    names = tuple(read_name(variable, index) + ":0" for variable, here in found for index in here)
    values = iter(read(names) if found else ())
    return [
        (variable, [_digest(next(values)) for _ in here], [part_in(variable, index) for index in here])
        for variable, here in found
    ]


def _digest(value):
    array = np.ascontiguousarray(value)
    return hashlib.sha256(("%s %s " % (array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()[:32]


def first_difference(everyone):
    """The first variable of which copies of a part differ, as (name, (worker, copy), (worker, copy)); None for none.

    Args:
      everyone: what `digests` returned, by worker. A worker without a variable has no part in its comparison.
    """
    known = {}
    for worker, found in enumerate(everyone):
        for variable, copies, parts in found:
            for copy, (digest, part) in enumerate(zip(copies, parts)):
                known.setdefault((variable, part), []).append((digest, (worker, copy)))
    for key in sorted(known):
        (digest, first), others = known[key][0], known[key][1:]
        for other, where in others:
            if other != digest:
                return key[0], first, where
    return None


def check(own, exchange, step):
    """Raises WorkerError, on all workers alike, when copies of a variable differ.

    Args:
      own: what `digests` returned here.
      exchange: function that gives each worker's bytes to every worker, in their order.
      step: number of training steps so far.
    """
    everyone = [plain.unpack(message) for message in exchange(plain.pack(own))]
    found = first_difference(everyone)
    if found is None:
        return
    variable, first, other = found
    places = ["worker %d, copy %d" % place for place in (first, other)]
    raise WorkerError(
        "variable '%s' is not the same everywhere after %d training steps: %s and %s hold different values. %s"
        % (variable, step, places[0], places[1], _ADVICE),
        worker=other[0],
        step=step,
        cause="variable '%s' differs from worker %d's" % (variable, first[0]),
    )
