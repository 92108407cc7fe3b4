"""Softmax and its losses with the classes divided: shards exchange a few numbers per row, never the logits.

    largest of each row:                  all-reduce, maximum
    sum of exp(logit - largest):          all-reduce
    the logit of the right class:         all-reduce, together with the sum where both are known at once

Megatron-LM (Shoeybi et al., 2019, section 3) computes the loss of a divided vocabulary so.
"""

from tensorflow.core.framework import attr_value_pb2

from epl.graph.node_defs import Type
from epl.graph.types import BOOL, INT32
from epl.partition.conversion import shard_sizes


class _Rows(object):
    """What the shards know of the rows of a tensor whose last dimension is divided.

    Attributes:
      shifted: each element less the largest one of its row.
      exps: of that.
      own_sums: of a shard's part of each row, with a last dimension of 1.
    """

    def __init__(self, emit, node, text, tensor):
        self._emit, self._node = emit, node
        self.dtype = emit.facts.dtype(tensor)
        self.rank = len(emit.facts.shape(tensor))
        size = emit.facts.shape(tensor)[-1]
        self.row_bytes = emit.facts.num_bytes(tensor) // max(1, size or 32)
        largest = self.reduced("Max", text, "largest")
        self.shifted = self.add("Sub", "shifted", text, self.all_reduced(largest, "max"))
        self.exps = self.add("Exp", "exps", self.shifted)
        self.own_sums = self.reduced("Sum", self.exps, "own_sums")

    def add(self, op, name, *texts):
        return self._emit.add(op, name, list(texts), T=Type(self.dtype))

    def reduced(self, op, text, name, keep_dims=True):
        dims = self._emit.integers("last", [[self.rank - 1]] * self._emit.shards)
        return self._emit.add(op, name, [text, dims], T=Type(self.dtype), Tidx=Type(INT32), keep_dims=keep_dims)

    def all_reduced(self, text, combine="sum", times=1):
        return self._emit.collective("all_reduce", text, self.dtype, self._node.name, times * self.row_bytes, combine)

    def without_last(self, text):
        """A tensor with a last dimension of 1, without that."""
        return self._emit.add("Squeeze", "rows", [text], T=Type(self.dtype), squeeze_dims=_ints([self.rank - 1]))


def _ints(values):
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=values))


def _is_divided(strategy, rule):
    return strategy.factor is not None and strategy.factor in rule.notation.resolved


def softmax(emit, node, texts, strategy, rule, choices):
    if not _is_divided(strategy, rule):
        return False
    rows = _Rows(emit, node, texts[0], emit.facts.inputs(node.name)[0])
    emit.outputs(node, [rows.add("RealDiv", "softmax", rows.exps, rows.all_reduced(rows.own_sums))], [rows.dtype])
    return True


def log_softmax(emit, node, texts, strategy, rule, choices):
    if not _is_divided(strategy, rule):
        return False
    rows = _Rows(emit, node, texts[0], emit.facts.inputs(node.name)[0])
    logs = rows.add("Log", "logs", rows.all_reduced(rows.own_sums))
    emit.outputs(node, [rows.add("Sub", "log_softmax", rows.shifted, logs)], [rows.dtype])
    return True


def softmax_loss(emit, node, texts, strategy, rule, choices):
    """Labels are probabilities: loss = sum of label * (log sum of exps - shifted logit)."""
    if not _is_divided(strategy, rule):
        return False
    rows = _Rows(emit, node, texts[0], emit.facts.inputs(node.name)[0])
    sums = rows.all_reduced(rows.own_sums)
    each = rows.add("Sub", "minus_log", rows.add("Log", "logs", sums), rows.shifted)
    own = rows.reduced("Sum", rows.add("Mul", "weighted", texts[1], each), "own_loss", keep_dims=False)
    gradient = rows.add("Sub", "gradient", rows.add("RealDiv", "softmax", rows.exps, sums), texts[1])
    emit.outputs(node, [rows.all_reduced(own), gradient], [rows.dtype] * 2)
    return True


def sparse_softmax_loss(emit, node, texts, strategy, rule, choices):
    """Labels are numbers of classes, of which one shard has each. A label that is no class gives NaN."""
    if not _is_divided(strategy, rule):
        return False
    logits, labels = emit.facts.inputs(node.name)
    rows = _Rows(emit, node, texts[0], logits)
    size, label_type = emit.facts.shape(logits)[-1], emit.facts.dtype(labels)
    own = emit.add("Sub", "own_label", [texts[1], emit.starts("start", size, label_type)], T=Type(label_type))
    depth = emit.integers("classes", shard_sizes(size, emit.shards))
    truth = [emit.number("true", 1, BOOL), emit.number("false", 0, BOOL)]
    is_label = emit.add("OneHot", "is_label", [own, depth] + truth, T=Type(BOOL), TI=Type(label_type), axis=-1)
    zeros = rows.add("ZerosLike", "zeros", rows.shifted)
    picked = emit.add("Select", "picked", [is_label, rows.shifted, zeros], T=Type(rows.dtype))
    picked = rows.reduced("Sum", picked, "own_logit")
    packed = emit.add("Pack", "both", [rows.own_sums, picked], T=Type(rows.dtype), N=2, axis=0)
    both = emit.add("Unpack", "both_of_all", [rows.all_reduced(packed, times=2)], T=Type(rows.dtype), num=2, axis=0)
    loss = rows.without_last(rows.add("Sub", "loss", rows.add("Log", "logs", both), both + ":1"))
    gradient = rows.add(
        "Sub", "gradient", rows.add("RealDiv", "softmax", rows.exps, both), emit.cast(is_label, BOOL, rows.dtype)
    )
    loss = _or_nan(emit, rows, loss, texts[1], label_type, size)
    emit.outputs(node, [loss, gradient], [rows.dtype] * 2)
    return True


def _or_nan(emit, rows, loss, labels, label_type, size):
    """Not a number where a label is no class, as TensorFlow gives on GPUs (on CPUs it raises)."""
    zero = emit.integers("zero", [0] * emit.shards, label_type)
    end = emit.integers("end", [size] * emit.shards, label_type)
    low = emit.add("GreaterEqual", "not_below", [labels, zero], T=Type(label_type))
    high = emit.add("Less", "not_above", [labels, end], T=Type(label_type))
    valid = emit.add("LogicalAnd", "is_class", [low, high])
    nothing = emit.number("nan", float("nan"), rows.dtype)
    return emit.add("SelectV2", "loss_or_nan", [valid, loss, nothing], T=Type(rows.dtype))
