"""Shapes that TensorFlow does not know while a graph is built, but that follow from values which it has not looked at.

The gradients of broadcasting sum over axes that an operation computes, `tensordot` reshapes to sizes that are products
of others: with a batch of unknown size TensorFlow forgets the sizes that are known.
"""

import numpy as np

_REDUCTIONS = frozenset("Sum Mean Max Min Prod All Any".split())
_BY_TARGET = {"Reshape": 1, "Fill": 0, "BroadcastTo": 1}
_SAME = frozenset(
    "Identity StopGradient PreventGradient Cast ZerosLike OnesLike Neg Square Relu Tanh Exp Rsqrt Abs Elu Log "
    "LogSoftmax Sigmoid Softmax Softplus Sqrt".split()
)
_BROADCAST = frozenset("Add AddV2 Sub Mul RealDiv SquaredDifference Maximum Minimum TanhGrad ReluGrad".split())
# Their second output is the gradient with respect to the first input.
_LOSSES = frozenset("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits".split())
REFINED = _LOSSES | _REDUCTIONS | frozenset(_BY_TARGET) | _SAME | _BROADCAST | frozenset(["Tile", "Transpose", "AddN"])


def refined(node, index, inputs, facts):
    """The shape of an output as it follows from the inputs, None for sizes that are not known; None where nothing does.

    Args:
      node: NodeDef, of a type in REFINED.
      index: of the output.
      inputs: the tensors that it takes.
      facts: epl.partition.facts.Facts.
    """
    if node.op in _LOSSES:
        shape = facts.shape(inputs[0])
        return shape if index or shape is None else shape[:1]
    if node.op in _BY_TARGET:
        target = facts.value(inputs[_BY_TARGET[node.op]])
        if target is None or target.ndim != 1:
            return None
        return tuple(None if size is None or size < 0 else int(size) for size in target)
    shape = facts.shape(inputs[0])
    if shape is None:
        return None
    if node.op in _SAME:
        return shape
    if node.op == "AddN":
        return next((s for s in map(facts.shape, inputs) if s is not None and None not in s), shape)
    if node.op in _BROADCAST:
        return _broadcast(shape, facts.shape(inputs[1]))
    values = facts.value(inputs[1])
    if values is None or any(value is None for value in np.ravel(values)):
        return None
    values = [int(value) for value in np.ravel(values)]
    if node.op == "Transpose":
        return tuple(shape[i] for i in values)
    if node.op == "Tile":
        return tuple(None if size is None else size * times for size, times in zip(shape, values))
    axes = set(axis % len(shape) for axis in values)
    kept = 1 if node.attr["keep_dims"].b else None
    sizes = [kept if i in axes else size for i, size in enumerate(shape)]
    return tuple(size for i, size in enumerate(sizes) if i not in axes or kept)


def _broadcast(one, other):
    if other is None:
        return None
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other)
    return tuple(b if a == 1 else a if b == 1 or b is None else b for a, b in pairs)
