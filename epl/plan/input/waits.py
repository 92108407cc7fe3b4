"""How long steps have waited for data (io.stats), and what to change: arithmetic and words."""

from epl.plan.facts import data_ops

# Below this part of a step nobody needs to do anything.
_LITTLE = 0.05
_MAPS = frozenset(["MapDataset", "MapAndBatchDataset"])  # the second one takes elements one after the other by default


def covered(intervals):
    """The length of the union of some (begin, end)."""
    total, latest = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, latest))
        latest = max(latest, end)
    return total


def line(first, last, step_s, waited_s, types):
    """What to tell of some steps.

    Args:
      first, last: their numbers.
      step_s, waited_s: seconds that one took on average, and how long of that a batch was still to come.
      types: of all operations of the program's graph.
    """
    part = waited_s / step_s if step_s else 0.0
    return "io.stats: steps %d to %d took %.1f ms each, and waited %.1f ms of them (%.0f %%) for data. %s" % (
        first,
        last,
        step_s * 1e3,
        waited_s * 1e3,
        part * 100,
        "The input keeps up." if part < _LITTLE else _hint(types),
    )


def _hint(types):
    if types & data_ops.DEQUEUES and not types & data_ops.GET_NEXT:
        return "Let more threads fill the queue (num_threads of tf.train.batch), or use tf.data."
    if "PrefetchDataset" not in types:
        return "End the data set with .prefetch(1), so that a batch is made while the step before it runs."
    if types & _MAPS:
        return "Give .map num_parallel_calls, the number of cores for instance."
    return "Making a batch takes longer than a step: do less for each record, or store records as steps take them."
