"""The link between workers of this host, measured by some that exchange tensors as a training step does."""

import math
import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl import api, ops
from epl.cluster.machine import Link
from epl.config import Config
from epl.launch.function import run

SIZES = (4, 1 << 16, 1 << 20, 1 << 23)  # bytes
_CHAIN = 10
_RUNS = (20, 12, 10, 6)  # by size
_WIDTH = 4  # bytes of a number
_START_TIMEOUT_S = 60


def measure_link(ranks):
    """The Link between workers of this host, from all-reduces by size and number of ranks.

    Args:
      ranks: numbers of workers with which it is measured, each above 1.

    Returns:
      (Link, dict of (ranks, bytes) to seconds of one all-reduce).

    Raises:
      LaunchError, WorkerError: the workers cannot be started, or fail.
    """
    found = {}
    for count in ranks:
        options = ["--progress", "plain"]
        for size, seconds in run(_worker, count, 1, options=options).items():
            found[count, size] = seconds
    return fitted(found), found


def fitted(found):
    """The Link whose latency and speed explain some all-reduces over rings best.

    An all-reduce of n ranks takes the latency for each doubling of them, and the time to send 2 (n - 1) / n of what it
    reduces (epl.plan.estimate.exchanged).

    Args:
      found: dict of (ranks, bytes) to seconds.
    """
    least, most = min(size for _, size in found), max(size for _, size in found)
    latencies = [s / math.ceil(math.log2(n)) for (n, size), s in found.items() if size == least]
    latency_s = float(np.median(latencies))
    speeds = []
    for (ranks, size), seconds in found.items():
        if size == most:
            rest = max(seconds - latency_s * math.ceil(math.log2(ranks)), seconds / 2)
            speeds.append(2.0 * (ranks - 1) / ranks * size / rest)
    return Link(latency_s, float(np.median(speeds)), "measured by %d workers" % max(ranks for ranks, _ in found))


def _worker():
    """One worker's part: dict of bytes to seconds of one all-reduce."""
    tf.disable_eager_execution()
    api.init(Config({"communication.start_timeout_s": _START_TIMEOUT_S}))
    chains = {}
    with tf.Graph().as_default():
        for size in SIZES:
            x = tf.get_variable("x%d" % size, [size // _WIDTH], tf.float32, tf.ones_initializer(), trainable=False)
            alone = x = tf.identity(x) * 1.0
            for i in range(_CHAIN):
                x = ops.all_reduce(x, "mean", name="chain_%d_%d" % (size, i))
            with tf.control_dependencies([x]):
                chains[size] = tf.no_op("done_%d" % size), alone.op
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return {size: _seconds(session, runs, *chains[size]) for size, runs in zip(SIZES, _RUNS)}


def _seconds(session, runs, chain, alone):
    times = []
    for _ in range(runs + 2):
        began = time.perf_counter()
        session.run(chain)
        middle = time.perf_counter()
        session.run(alone)
        times.append((middle - began) - (time.perf_counter() - middle))
    return max(float(np.median(times[2:])) / _CHAIN, 1e-7)
