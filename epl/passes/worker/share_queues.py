"""Has worker 0 keep the queues that a program means all workers to share: those with a shared_name on another job.

FIFOQueueV2 -> QueueEnqueueV2   becomes   PyFunc, which asks worker 0 (epl.session.common_queues)
"""

from epl import tf_compat
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.types import INT32
from epl.plan.facts.names import queue_token

# What can be asked of such a queue, in the words of queue_token.
_SERVED = {"QueueEnqueueV2": "put", "QueueDequeueV2": "take", "QueueSizeV2": "size"}


def share_queues(program, plan):
    """Makes host functions of what takes the handle of a shared queue.

    Raises:
      UnsupportedError: something else is asked of it than putting, taking and counting single elements.
    """
    graph, edit = program.graph, program.graph.editor()
    queues = [name for name in graph.find("FIFOQueueV2".__eq__) if tags.SHARED in graph.nodes[name].attr]
    for queue in queues:
        for consumer in sorted(set(graph.edges.data_consumers.get(queue, ()))):
            _serve(graph.nodes[queue], edit.node(consumer), plan.mesh.host_device)
    return program.with_graph(edit.finish()) if queues else program


def _serve(queue, node, device):
    name = tags.get_str(queue, tags.SHARED)
    if node.op not in _SERVED:
        raise UnsupportedError(
            "operation '%s' (%s) cannot be used with the queue '%s' (shared_name=%r), which all workers share. EPL "
            "serves enqueue, dequeue and size of such a queue, of single elements."
            % (node.name, node.op, queue.name, name)
        )
    kind = _SERVED[node.op]
    takes = node.attr["Tcomponents"].list.type if kind == "put" else ()
    gives = {"put": (), "take": node.attr["component_types"].list.type, "size": (INT32,)}[kind]
    types = {"Tin": _types(takes), "Tout": _types(gives)}
    token = queue_token(kind, name, queue.attr["capacity"].i)
    del node.input[0]
    for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
        del node.attr[key]
    node.op, node.device = "PyFunc", device
    node.attr["token"].s = token.encode()
    for key, value in types.items():
        node.attr[key].CopyFrom(value)


def _types(numbers):
    return tf_compat.AttrValue(list=tf_compat.AttrValue.ListValue(type=numbers))
