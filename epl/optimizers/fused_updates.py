"""Updates of a variable that are built of TensorFlow's operations, for which EPL's native part has kernels.

What is built says what it is: each operation of an update is tagged with its place in it. When a session of TensorFlow
has given its operations devices, the native part (`csrc/ops/fuse_layer_wise.cc`) puts one operation in the place of
those that still are what was built, on CPUs. So programs, passes, checkpoints and exported models know TensorFlow's
operations alone, and where there is no kernel (GPUs, 16 bits) these compute.
"""

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.communicators import library
from epl.graph import tags

_DTYPES = (tf.float32, tf.float64)


def distinct(given):
    """The same dict of name to tensor, with copies of tensors that have several names."""
    first = {}
    for name, each in given.items():
        first.setdefault(id(each), name)
    return {name: each if first[id(each)] == name else tf.identity(each) for name, each in given.items()}


def mark(kind, given, values, named, writes):
    """Tags the operations of an update.

    Args:
      kind: "lamb", "lars", or these with "_excluded".
      given: dict of name to tensor that comes from outside; no tensor has two names.
      values: dict of a variable's name to the tensor that is read of it.
      named: dict of name to tensor inside of the update. Those that end in "_sum" are sums over the variable; where
        passes reduce them over devices, there is no kernel.
      writes: dict of a variable's name to the operation that assigns to it.
    """
    if tf.executing_eagerly() or next(iter(values.values())).dtype.base_dtype not in _DTYPES:
        return
    library.load()
    _Marks(kind, given, values, named, writes).make()


class _Marks(object):
    def __init__(self, kind, given, values, named, writes):
        self._kind, self._values, self._writes = kind, values, writes
        self._given = {each.name: name for name, each in given.items()}
        for name, write in writes.items():
            self._given[write.inputs[0].name] = name
        self._sums = {each.name: name for name, each in named.items() if name.endswith("_sum")}
        self._ids = {each.op.name: name for name, each in named.items()}
        self._ids.update((write.name, "write_" + name) for name, write in writes.items())
        self._read = {each.op.name: name for name, each in values.items()}

    def make(self):
        waiting, seen = list(self._writes.values()) + [self._op_of(tensor) for tensor in self._sums], set()
        while waiting:
            op = waiting.pop()
            if op.name not in seen:
                seen.add(op.name)
                inputs = ",".join(self._text(op, each, waiting) for each in op.inputs)
                parts = (self._kind, self._id(op), op.type, inputs)
                tf_compat.set_tag(op, tags.LAYER_WISE, "|".join(parts))

    def _op_of(self, tensor):
        return next(iter(self._writes.values())).graph.get_tensor_by_name(tensor).op

    def _id(self, op):
        return self._ids.setdefault(op.name, "n%d" % len(self._ids))

    def _text(self, op, tensor, waiting):
        """What the tag of an operation says of an input."""
        if op.name in self._read:
            return "=" + self._read[op.name]
        if tensor.name in self._given:
            return "@" + self._given[tensor.name]
        if tensor.name in self._sums:
            return "~" + self._sums[tensor.name]
        if tensor.op.type == "Const":
            return "*"
        waiting.append(tensor.op)
        return self._id(tensor.op)
