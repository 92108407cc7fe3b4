"""Compares the copies of variables that ought to be the same, over devices and workers."""

import hashlib
import math

import numpy as np

from epl.errors import WorkerError
from epl.plan.facts.names import read_name
from epl.session import plain

_ADVICE = (
    "The copies of the model do not compute the same any more, so this is not the training of one device. Look at what "
    "changes the variable besides the optimizer: a branch that the data choose, an update that is run by one worker "
    "alone. docs/troubleshooting.md tells more."
)

# Of the norm of a variable: far more than the rounding of many steps, far less than an update that a copy has not made.
_ROUNDING = 1e-3
_PROJECTIONS, _BLOCK = 4, 1 << 16


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
        if not step.changes.updated:
            return False
        self.num_trained += 1
        return self.num_trained % self._every == 0


def digests(read, nodes, variables, copies, shard_of=lambda variable, index: 0, rounded=False):
    """The digests of all local copies.

    Args:
      read: function from a tuple of tensor names to their values.
      nodes: container of the names of this worker's nodes.
      variables: names of those that are compared.
      copies: how many there may be of one.
      shard_of: function from a variable and the number of a local copy to that of the shard which it has.
      rounded: whether floating numbers may differ by rounding, as GPUs add up the rows of a sparse gradient in an order
        that chance decides.

    Returns:
      A list of (variable, [digest of each local copy], [its shard]), in the order of the names. A digest is a list, of
      a hash and, of what may differ by rounding, the norm and a few projections.
    """
    found = []
    for variable in sorted(variables):
        here = [index for index in range(copies) if read_name(variable, index) in nodes]
        if here:
            found.append((variable, here))
    names = tuple(read_name(variable, index) + ":0" for variable, here in found for index in here)
    values = iter(read(names) if found else ())
    return [
        (variable, [_digest(next(values), rounded) for _ in here], [shard_of(variable, index) for index in here])
        for variable, here in found
    ]


def _digest(value, rounded):
    array = np.ascontiguousarray(value)
    text = hashlib.sha256(("%s %s " % (array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()[:32]
    return [text] + (_sketch(array) if rounded and array.dtype.kind == "f" else [])


def _sketch(array):
    """The norm of an array, and its products with a few vectors of random signs, the same for all arrays.

    Each product of a difference is of the size of the difference's norm (Achlioptas, "Database-friendly random
    projections", 2003), so that large arrays need not travel to be compared.
    """
    random, square, products = np.random.RandomState(0), 0.0, np.zeros(_PROJECTIONS)
    signs = random.randint(0, 2, [_PROJECTIONS, _BLOCK]) * 2.0 - 1
    flat = array.ravel()
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : begin + _BLOCK].astype(np.float64)
        square += float(block.dot(block))
        products += signs[:, : block.size].dot(block) * (random.randint(0, 2, _PROJECTIONS) * 2.0 - 1)
    return [math.sqrt(square)] + products.tolist()


def _same(one, other):
    (text, *sketch), (other_text, *other_sketch) = one, other
    if text == other_text or len(sketch) != len(other_sketch):
        return text == other_text
    # A comparison with what is no number is false.
    return bool(sketch) and all(abs(a - b) <= _ROUNDING * sketch[0] for a, b in zip(sketch, other_sketch))


def first_difference(everyone):
    """The first variable of which copies of a shard differ, as (name, (worker, copy), (worker, copy)); None for none.

    Args:
      everyone: what `digests` returned, by worker. A worker without a variable has no part in its comparison.
    """
    known = {}
    for worker, found in enumerate(everyone):
        for variable, copies, shards in found:
            for copy, (digest, shard) in enumerate(zip(copies, shards)):
                known.setdefault((variable, shard), []).append((digest, (worker, copy)))
    for key in sorted(known):
        (digest, first), others = known[key][0], known[key][1:]
        for other, where in others:
            if not _same(digest, other):
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
