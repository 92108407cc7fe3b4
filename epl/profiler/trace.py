"""The hook that has single runs traced, and what all its kinds need."""

import json
import logging
import time
import zlib

import tensorflow.compat.v1 as tf

from epl.communicators.wire import MAX_MESSAGE_BYTES
from epl.env import Env
from epl.errors import CommunicationError
from epl.graph.index import node_of, parse_input
from epl.session.hooks import current_job, driver_of

_LOG = logging.getLogger("epl")
# How long the chief waits for the traces of the others, which come to the same step at about the same time.
_COLLECT_S = 10.0


class Shapes(object):
    """Shapes of tensors in a traced step, by the spelling of a node's input."""

    def __init__(self, found):
        self._of = {each.name: each.shapes for each in found}

    def get(self, text):
        shapes = self._of.get(node_of(text))
        index = parse_input(text).index
        return shapes[index] if shapes is not None and index < len(shapes) else None


class TraceHook(tf.train.SessionRunHook):
    """Has every `every_n_steps`-th run of the session traced, beginning with the second, and calls `on_trace`.

    Every worker needs the hook. A traced run takes longer than others.

    Args:
      every_n_steps: runs from one trace to the next, at least 1; 0: trace the second run only.

    Raises:
      ValueError: every_n_steps is no whole number of at least 0.
    """

    def __init__(self, every_n_steps):
        if isinstance(every_n_steps, bool) or not isinstance(every_n_steps, int) or every_n_steps < 0:
            raise ValueError(
                "every_n_steps=%r: it is the number of runs from one trace to the next, a whole number of at least 0 "
                "(0: trace one run only)" % (every_n_steps,)
            )
        self._every = every_n_steps
        self._run = 0
        self._traced = False
        self._graph = None
        self._driver = None

    def after_create_session(self, session, coord):
        self._run = 0

    def before_run(self, run_context):
        # The first run warms up: TensorFlow chooses kernels and grows its pools.
        self._traced = self._run == 1 or (self._every > 0 and self._run > 1 and (self._run - 1) % self._every == 0)
        if not self._traced:
            return None
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        return tf.train.SessionRunArgs(fetches=None, options=options)

    def after_run(self, run_context, run_values):
        self._run += 1
        if self._traced:
            self._driver = driver_of(run_context.session)
            self._graph = self._driver.graph if self._driver is not None else None
            self.on_trace(self._run - 1, run_values.run_metadata)

    def on_trace(self, run, metadata):
        """Called after a traced run.

        Args:
          run: its number in this session, from 0: the first that is traced has number 1.
          metadata: its RunMetadata.
        """
        raise AssertionError("a TraceHook has to say what it does with a trace")


def gather(name, run, payload):
    """Gives the chief what all workers know of a traced run.

    Args:
      name: of the kind of hook.
      run: number of the run.
      payload: what json takes.

    Returns:
      On the chief a dict of worker index to payload, without those that sent none; None on other workers.
    """
    cluster = Env.get().cluster
    job = current_job()
    if cluster.worker_num == 1 or job is None:
        return {cluster.worker_index: payload}
    data = zlib.compress(json.dumps(payload).encode())
    if len(data) > MAX_MESSAGE_BYTES // 2:
        _LOG.warning(
            "%s: the trace of worker %d is too large to be sent (%d bytes)", name, cluster.worker_index, len(data)
        )
        data = b""
    if cluster.worker_index:
        job.hand_in(name, run, data)
        return None
    found = {0: payload}
    deadline = time.monotonic() + _COLLECT_S
    for worker in range(1, cluster.worker_num):
        try:
            received = job.handed_in(name, run, worker, max(0.1, deadline - time.monotonic()))
        except CommunicationError as error:
            _LOG.warning("%s: no trace of worker %d for run %d: %s", name, worker, run, error)
            continue
        if received:
            found[worker] = json.loads(zlib.decompress(received).decode())
    return found
