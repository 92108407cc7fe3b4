"""What all workers do at the same point of their program, however long some of them take to come there."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.errors import UnsupportedError, WorkerError
from epl.session import plain
from epl.session.front_ends.chief import is_chief, several_workers
from epl.session.hooks import job


def wait_for_all():
    """Returns when every worker has come here."""
    if several_workers():
        job().meet(b"")


def from_chief(make, limit_s=None):
    """The value of `make()`, which only the chief calls. Every worker must come here.

    Args:
      limit_s: seconds to wait for each of the others at most; None: as long as they live.

    Raises:
      WorkerError: on the others, when it raised on the chief.
      CommunicationError: a worker did not come in time.
    """
    if not several_workers():
        return make()
    if not is_chief():
        value, failure = plain.unpack(job().meet(b"", limit_s)[0])
        if failure is not None:
            raise WorkerError("worker 0 failed: %s" % failure, worker=0, cause=failure)
        return value
    try:
        value = make()
        message = plain.pack((value, None))
    except Exception as error:
        job().meet(plain.pack((None, "%s: %s" % (type(error).__name__, error))), limit_s)
        raise
    job().meet(message, limit_s)
    return value


def check_found_by_all(path, found):
    """Every worker says whether it has found a file of which each takes the variables of its own stages.

    Raises:
      UnsupportedError: on all workers, when some have not.
    """
    answers = job().meet(b"found" if found else b"")
    if not all(answers):
        raise UnsupportedError(
            "the workers restore '%s', which worker %d does not find, but has to take the variables of its stages "
            "from. Put such files into a folder that all machines share." % (path, answers.index(b""))
        )


class MergeMetrics(tf.train.SessionRunHook):
    """Before anyone reads the metrics at the end of an evaluation, their totals become those over all workers.

    A metric of tf.metrics is made of totals and counts in local variables: over all data they are the sums of the
    workers'. It needs no step in common, so workers may have different amounts of data.
    """

    def __init__(self):
        self._variables = []

    def begin(self):
        steps = tf.get_collection(tf.GraphKeys.EVAL_STEP)
        self._variables = [
            v for v in tf.local_variables() if not any(v is step for step in steps) and _adds_up(v.dtype.base_dtype)
        ]

    def end(self, session):
        own = session.run(self._variables)
        everyone = [plain.unpack(reply) for reply in job().meet(plain.pack(own))]
        merged = [_merge(v.op.name, values) for v, values in zip(self._variables, zip(*everyone))]
        feeds = {v.initializer.inputs[1]: value for v, value in zip(self._variables, merged)}
        session.run([v.initializer for v in self._variables], feeds)


def _adds_up(dtype):
    return dtype.is_floating or dtype.is_integer or dtype.is_bool


def _merge(name, values):
    """The sum over workers; for booleans whether it is so anywhere."""
    shapes = sorted(set(np.shape(value) for value in values))
    if len(shapes) > 1:
        raise UnsupportedError(
            "the metric variable '%s' has different shapes on the workers (%s), so it cannot be summed over them. Set "
            'estimator.evaluate_on="chief" to evaluate on worker 0 alone.' % (name, ", ".join(map(str, shapes)))
        )
    if np.asarray(values[0]).dtype == bool:
        return np.any(values, axis=0)
    return np.sum(values, axis=0, dtype=np.asarray(values[0]).dtype)
