"""What TensorFlow tells of one traced run of a session, as plain data."""

import collections
import re

from epl.graph import tags
from epl.rules.effects import COLLECTIVES

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


def kernels(metadata):
    """dict of device, such as "GPU:0", to (begin_us, end_us) of each of its kernels and whether it exchanges data."""
    found = {}
    for device in metadata.step_stats.dev_stats:
        stream = _STREAMS.search(device.device)
        if stream:
            found[stream.group(1)] = [
                (each.all_start_micros, each.all_start_micros + each.all_end_rel_micros, _exchanges(each))
                for each in device.node_stats
            ]
    return found


def _exchanges(stats):
    return any(word in (stats.node_name + stats.timeline_label).lower() for word in ("nccl", "memcpy"))


_STREAMS = re.compile(r"/device:(GPU:\d+)/stream:all$")


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


def is_exchange(op):
    """Whether operations of this type exchange data between devices."""
    return op in COLLECTIVES or op in _TRANSFERS


class Phases(object):
    """Tells the phase of an operation: by its tag, or by that of the node of its name in the rewritten graph."""

    def __init__(self, graph):
        self._graph = graph

    def of(self, execution):
        if is_exchange(execution.op):
            return COMMUNICATION
        nodes = self._graph.nodes if self._graph is not None else {}
        for node in (execution.node, nodes.get(execution.name), nodes.get(stem(execution.name))):
            if node is not None and tags.PHASE in node.attr:
                return tags.phase(node)
        if nodes.get(execution.name, nodes.get(stem(execution.name))) is None:
            return OTHER
        return FORWARD


RECEIVES = frozenset(["_Recv", "_HostRecv", "EplBroadcastReceive"])
_TRANSFERS = RECEIVES | {"_Send", "_HostSend", "EplBroadcastSend"}


def stem(name):
    """The node that one made by TensorFlow is named after: "a/b/_12" -> "a/b", "a/b-0-TransposeNHWCToNCHW" -> "a/b"."""
    head, _, tail = name.rpartition("/")
    if head and tail[:1] == "_":
        return head
    return name.partition("-")[0]
