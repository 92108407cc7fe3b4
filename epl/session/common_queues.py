"""Host functions through which a graph asks for queues that all workers share (epl.passes.worker.share_queues)."""

import json

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import tensor_pb2

from epl import tf_compat
from epl.plan.facts.names import queue_of


def functions(graph, queues, prefix):
    """{token: function} of what a Graph asks; the functions are called for as long as they are kept.

    Args:
      queues: the SharedQueues of this worker.
      prefix: what comes before the queues' names there, so that each start of a graph has its own.
    """
    found = {}
    for name in graph.find("PyFunc".__eq__):
        node = graph.nodes[name]
        token = node.attr["token"].s.decode()
        asked = queue_of(token)
        if asked is not None and token not in found:
            found[token] = _function(queues, asked, prefix, list(node.attr["Tin"].list.type))
            tf_compat.host_function(token, found[token])
    return found


def _function(queues, asked, prefix, dtypes):
    kind, name, capacity = asked
    name = prefix + name

    def put(*values):
        queues.put(name, packed(values, dtypes), capacity)
        return []

    def take():
        return unpacked(queues.take(name))

    def size():
        return np.int32(queues.size(name))

    return {"put": put, "take": take, "size": size}[kind]


def packed(values, dtypes):
    """One element, of several tensors, as bytes."""
    protos = [tf.make_tensor_proto(value, dtype) for value, dtype in zip(values, dtypes)]
    texts = [proto.SerializeToString() for proto in protos]
    return json.dumps([len(text) for text in texts]).encode() + b"\n" + b"".join(texts)


def unpacked(element):
    lengths, rest = element.split(b"\n", 1)
    values, start = [], 0
    for length in json.loads(lengths.decode()):
        values.append(tf.make_ndarray(tensor_pb2.TensorProto.FromString(rest[start : start + length])))
        start += length
    return values
