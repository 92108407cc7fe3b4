"""Floating-point operations of a training step, counted from what ran, and their rate."""

import collections
import logging
import time

from epl.env import Env
from epl.profiler.trace import Shapes, TraceHook
from epl.session.executions import executions

_LOG = logging.getLogger("epl")

Count = collections.namedtuple("Count", "total by_op unknown")


class FlopsProfilerHook(TraceHook):
    """Counts the floating-point operations of a run, and logs them and their rate.

    The count is of what this worker ran, all its replicas and the backward pass included: an addition, a
    multiplication, an exponential are one each, so a product of [m, k] and [k, n] is 2 * m * k * n.

    Attributes:
      flops: of the last traced run on this worker; None before.
      by_op: the same for each type of operation.
      flops_per_second: mean rate of this worker from one trace to the next, or from the only one to the session's end;
        None until then.

    Args:
      every_n_steps: runs from one count to the next; 0: count once.
    """

    def __init__(self, every_n_steps=100):
        super(FlopsProfilerHook, self).__init__(every_n_steps)
        self.flops = None
        self.by_op = {}
        self.flops_per_second = None
        self._since = None

    def end(self, session):
        """A training too short for two traces has a rate all the same: of the runs after the only one."""
        if self._since is not None and self.flops_per_second is None and self._run - 1 > self._since[1]:
            self._rate(self._run - 1)
            _LOG.info(
                "FLOPs of runs %d to %d on worker %d: %s/s",
                self._since[1] + 1,
                self._run - 1,
                Env.get().cluster.worker_index,
                readable(self.flops_per_second),
            )

    def _rate(self, run):
        before, number = self._since
        self.flops_per_second = self.flops * (run - number) / max(time.monotonic() - before, 1e-9)

    def on_trace(self, run, metadata):
        count = count_flops(executions(metadata))
        if self._since is not None:
            self._rate(run)
        self.flops, self.by_op = count.total, count.by_op
        self._since = (time.monotonic(), run)
        if count.unknown:
            _LOG.warning(
                "FLOPs: the shapes of %d operations are not known, so they are not counted ('%s'%s)",
                len(count.unknown),
                count.unknown[0],
                ", ..." if len(count.unknown) > 1 else "",
            )
        rate = ", %s/s" % readable(self.flops_per_second) if self.flops_per_second is not None else ""
        _LOG.info("FLOPs of run %d on worker %d: %s%s", run, Env.get().cluster.worker_index, readable(self.flops), rate)


def readable(flops):
    """ "1.23 GFLOP" of 1.23e9."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if flops >= size:
            return "%.2f %sFLOP" % (flops / size, unit)
    return "%d FLOP" % flops


def count_flops(found):
    """Counts the floating-point operations of Executions.

    Returns:
      A Count: total; dict of operation type to its part; names of operations whose shapes are not known.
    """
    shapes = Shapes(found)
    by_op, unknown = collections.Counter(), []
    for each in found:
        kind = plain_op(each.op)
        rule = _RULES.get(kind)
        if rule is None:
            continue
        flops = rule(each, shapes)
        if flops is None:
            unknown.append(each.name)
        else:
            by_op[kind] += flops
    return Count(sum(by_op.values()), dict(by_op), unknown)


def plain_op(op):
    """The type of an operation without what TensorFlow puts before it when it chooses another kernel."""
    for prefix in ("_MklNative", "_Mkl", "_Fused", "_"):
        if op.startswith(prefix):
            op = op[len(prefix) :]
    return op[len("Fused") :] if op in ("FusedMatMul", "FusedConv2D", "FusedBatchMatMulV2") else op


def _size(shape):
    product = 1
    for dim in shape:
        product *= dim
    return product


def _output(each):
    return each.shapes[0] if each.shapes else None


def _flag(each, *names):
    return any(each.node is not None and each.node.attr[name].b for name in names if name in each.node.attr)


def _matmul(each, shapes):
    """2 * (all of the output) * (the dimension that is summed over)."""
    output = _output(each)
    if output is None or len(each.inputs) < 2:
        return None
    first, second = shapes.get(each.inputs[0]), shapes.get(each.inputs[1])
    if first is not None:
        summed = first[-2] if _flag(each, "transpose_a", "adj_x") else first[-1]
    elif second is not None:
        summed = second[-1] if _flag(each, "transpose_b", "adj_y") else second[-2]
    else:
        return None
    return 2 * _size(output) * summed


def _convolution(each, shapes):
    """2 * (all of the output) * (weights of one output channel)."""
    output, kernel = _output(each), shapes.get(each.inputs[1])
    return None if output is None or kernel is None else 2 * _size(output) * _size(kernel[:-1])


def _depthwise(each, shapes):
    output, kernel = _output(each), shapes.get(each.inputs[1])
    return None if output is None or kernel is None else 2 * _size(output) * _size(kernel[:2])


def _input_gradient(each, shapes):
    """As many as forward, where the incoming gradient has the shape of the output."""
    gradient, kernel = shapes.get(each.inputs[2]), shapes.get(each.inputs[1])
    return None if gradient is None or kernel is None else 2 * _size(gradient) * _size(kernel[:-1])


def _kernel_gradient(each, shapes):
    gradient, kernel = shapes.get(each.inputs[2]), _output(each)
    return None if gradient is None or kernel is None else 2 * _size(gradient) * _size(kernel[:-1])


def _each_output(times):
    def rule(each, shapes):
        del shapes
        output = _output(each)
        return None if output is None else times * _size(output)

    return rule


def _each_input(times):
    def rule(each, shapes):
        shape = shapes.get(each.inputs[0]) if each.inputs else None
        return None if shape is None else times * _size(shape)

    return rule


def _added(each, shapes):
    output = _output(each)
    return None if output is None else (len(each.inputs) - 1) * _size(output)


_RULES = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Conv1D": _convolution,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "Conv2DBackpropInput": _input_gradient,
    "Conv3DBackpropInputV2": _input_gradient,
    "Conv2DBackpropFilter": _kernel_gradient,
    "Conv3DBackpropFilterV2": _kernel_gradient,
    "DepthwiseConv2dNative": _depthwise,
    "AddN": _added,
    "Softmax": _each_input(4),
    "LogSoftmax": _each_input(5),
    "SoftmaxCrossEntropyWithLogits": _each_input(6),
    "SparseSoftmaxCrossEntropyWithLogits": _each_input(6),
    "FusedBatchNorm": _each_input(8),
    "FusedBatchNormV2": _each_input(8),
    "FusedBatchNormV3": _each_input(8),
    "FusedBatchNormGrad": _each_input(11),
    "FusedBatchNormGradV2": _each_input(11),
    "FusedBatchNormGradV3": _each_input(11),
    "L2Loss": _each_input(2),
}
_RULES.update(
    (op, _each_input(1)) for op in ("Sum", "Mean", "Prod", "Max", "Min", "BiasAddGrad", "AvgPool", "MaxPool", "Cumsum")
)
_RULES.update(
    (op, _each_output(1))
    for op in (
        "Add AddV2 Sub Mul Div RealDiv Maximum Minimum Neg Abs Sign Square Sqrt Rsqrt Exp Log Log1p Pow Reciprocal Inv "
        "BiasAdd BiasAddV1 Relu Relu6 LeakyRelu Erf Sin Cos ReluGrad Relu6Grad LeakyReluGrad FloorDiv"
    ).split()
)
_RULES.update((op, _each_output(3)) for op in ("Tanh", "Sigmoid", "TanhGrad", "SigmoidGrad", "Elu", "Selu", "Softplus"))
_RULES["SquaredDifference"] = _each_output(2)
