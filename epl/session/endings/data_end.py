"""What becomes of a call when data ends, at its first step or at a later one (execution.steps_per_run)."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.errors import NoDataError, UnsupportedError


def check_repeated(feeds, repeats):
    """Raises UnsupportedError for a fed array, a batch most likely: each of the steps would get the same.

    Args:
      feeds: dict of tensor name to value.
      repeats: the number of steps.
    """
    arrays = sorted(name for name, value in feeds.items() if np.ndim(value))
    if arrays:
        raise UnsupportedError(
            "execution.steps_per_run=%d makes %d training steps of one call, but '%s' is fed an array, so all of them "
            "would train with the same. Read the data by tf.data or queues (scalars, such as a learning rate, may be "
            "fed), or leave the key at 1." % (repeats, repeats, arrays[0])
        )


def no_data(error, cluster):
    """The error for a worker whose data had ended before it had any; `error` is TensorFlow's."""
    return NoDataError(
        "worker %d has no data: its input ended before the first step (%s). Every worker needs at least one batch for "
        "each of its copies of the model: look at how files or records are divided over the %d workers (io.slicing, "
        "io.shard_dataset, or the program itself) and at the size of the batch."
        % (cluster.worker_index, str(error.message).splitlines()[0], cluster.worker_num)
    )


def metadata_of(repeats, metadata):
    """What each run of a call takes its RunMetadata in: the last one does, as a TF_Buffer takes one run's alone."""
    return [None] * (repeats - 1) + [metadata]


def last_of(each, run):
    """What the last of several runs gives. Data that ends after the first of them is left to the next call.

    Args:
      each: what `run` gets, run by run.
      run: function that returns values.
    """
    values = run(each[0])
    for one in each[1:]:
        try:
            values = run(one)
        except tf.errors.OutOfRangeError:
            break
    return values


def data_has_ended(error):
    """Whether an error, another worker's perhaps, says that there is no more data."""
    return isinstance(getattr(error, "error", error), tf.errors.OutOfRangeError)
