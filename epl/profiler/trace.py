"""What TensorFlow tells of one traced step, as plain data, and the hook that asks for it."""

import collections
import json
import logging
import time
import zlib

import tensorflow.compat.v1 as tf

from epl.communicators.wire import MAX_MESSAGE_BYTES
from epl.env import Env
from epl.errors import CommunicationError
from epl.graph import tags
from epl.graph.index import node_of, parse_input
from epl.rules.effects import COLLECTIVES
from epl.session.hooks import current_job, driver_of

_LOG = logging.getLogger("epl")
# How long the chief waits for the traces of the others, which come to the same step at about the same time.
_COLLECT_S = 10.0

FORWARD, BACKWARD, APPLY = tags.FORWARD, tags.BACKWARD, tags.APPLY
COMMUNICATION, OTHER = "communication", "other"
PHASES = (FORWARD, BACKWARD, COMMUNICATION, APPLY, OTHER)

# One run of an operation: start_us since the epoch; shapes of its outputs, None where unknown; `memory` is a list of
# (microseconds, change in bytes).
Execution = collections.namedtuple("Execution", "name op device start_us duration_us shapes inputs node memory")


def executions(metadata):
    """The Executions of a traced step (RunMetadata with partition graphs), in the order of their starts."""
    nodes = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
    found = []
    for device in metadata.step_stats.dev_stats:
        name = short_device(device.device)
        if name is None:
            continue
        for stats in device.node_stats:
            node = nodes.get(stats.node_name)
            op = node.op if node is not None else _op_in(stats.timeline_label)
            inputs = [text for text in node.input if text[0] != "^"] if node is not None else []
            duration = max(stats.all_end_rel_micros, stats.op_end_rel_micros, 0)
            memory = [(r.alloc_micros, r.alloc_bytes) for m in stats.memory for r in m.allocation_records]
            found.append(
                Execution(
                    stats.node_name, op, name, stats.all_start_micros, duration, _shapes(stats), inputs, node, memory
                )
            )
    return sorted(found, key=lambda each: (each.start_us, each.device, each.name))


def short_device(device):
    """ "/job:localhost/.../device:GPU:0" -> "GPU:0"; None for what is no device of its own (streams, pools)."""
    head, found, tail = device.partition("/device:")
    if not found or "/" in tail or not head.startswith("/job:"):
        return None
    return tail


def _op_in(label):
    """The operation in a label such as "a/b = MatMul(c, d)"."""
    return label.partition(" = ")[2].partition("(")[0]


def _shapes(stats):
    shapes = []
    for output in stats.output:
        while len(shapes) <= output.slot:
            shapes.append(None)
        shape = output.tensor_description.shape
        if not shape.unknown_rank:
            shapes[output.slot] = tuple(dim.size for dim in shape.dim)
    return shapes


class Phases(object):
    """Tells the phase of an operation: by its tag, or by that of the node of its name in the rewritten graph."""

    def __init__(self, graph):
        self._graph = graph

    def of(self, execution):
        if execution.op in COLLECTIVES or execution.op in _TRANSFERS:
            return COMMUNICATION
        nodes = self._graph.nodes if self._graph is not None else {}
        for node in (execution.node, nodes.get(execution.name), nodes.get(stem(execution.name))):
            if node is not None and tags.PHASE in node.attr:
                return tags.phase(node)
        if nodes.get(execution.name, nodes.get(stem(execution.name))) is None:
            return OTHER
        return FORWARD


_TRANSFERS = frozenset(["_Send", "_Recv", "_HostSend", "_HostRecv", "EplBroadcastSend", "EplBroadcastReceive"])


def stem(name):
    """The node that one made by TensorFlow is named after: "a/b/_12" -> "a/b", "a/b-0-TransposeNHWCToNCHW" -> "a/b"."""
    head, _, tail = name.rpartition("/")
    if head and tail[:1] == "_":
        return head
    return name.partition("-")[0]


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
