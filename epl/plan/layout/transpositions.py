"""Which tensors EPL's own kernel transposes on CPUs, and operands of which products beforehand."""

from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph import types
from epl.graph.index import node_of
from epl.graph.types import FLOAT32
from epl.plan.cost.cost import UNKNOWN_SIZE
from epl.plan.facts.row_kinds import constant_of
from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import used_taskgraphs
from epl.rules import tensors

FLAGS = ("transpose_a", "transpose_b")
# A product gains as much as moving one of its elements takes from about so many multiplications for each.
_WORTH = 256
# TensorFlow's graph optimizer joins transpositions with one another, and those of matrices with products.
_TRANSPOSES = frozenset(["Transpose", "ConjugateTranspose", "Conj"])
_MULTIPLIES = _TRANSPOSES | tensors.PRODUCTS


@dataclass(frozen=True)
class Transpositions:
    """What is transposed by EPL.

    Attributes:
      kernels: Transpose to the numbers of its dimensions.
      turned: products that are made of both operands in the other order, and turned then.
      operands: products of which operands are turned beforehand.
    """

    kernels: Dict[str, Tuple[int, ...]]
    turned: Tuple[str, ...]
    operands: Tuple[str, ...]


def plan_transpositions(program, target):
    """The Transpositions of a program, where something is split on CPUs; else None.

    Elsewhere nothing changes: a product may be rounded otherwise.
    """
    if target.cluster.device_type != "CPU" or target.uses_onednn or not is_split(used_taskgraphs(program)):
        return None
    graph = program.graph
    kernels = {name: _taken_over(graph, name) for name in graph.find("Transpose".__eq__)}
    turned = {name: _is_turned(program, name) for name in graph.find("MatMul".__eq__)}
    return Transpositions(
        {name: tuple(order) for name, order in kernels.items() if order is not None},
        tuple(name for name, is_turned in turned.items() if is_turned),
        tuple(name for name, is_turned in turned.items() if is_turned is False),
    )


def _taken_over(graph, name):
    """The numbers of the dimensions of a Transpose that stays one; None for others."""
    node = graph.nodes[name]
    order = _order(graph, node_of(node.input[1]))
    if order is None or order == sorted(order):
        return None
    others = [node_of(node.input[0])] + [consumer for consumer, _ in graph.consumers.get(name, ())]
    if any(graph.nodes[other].op in (_MULTIPLIES if _turns_matrices(order) else _TRANSPOSES) for other in others):
        return None
    return order if types.DTYPE_BYTES.get(node.attr["T"].type, 0) in (1, 2, 4, 8) else None


def _order(graph, name):
    """The numbers of a transposition's dimensions, where they are known; its gradient takes them inverted."""
    node = graph.nodes[name]
    inverse = node.op == "InvertPermutation"
    order = constant_of(graph, node_of(node.input[0]) if inverse else name)
    if order is None or sorted(order) != list(range(len(order))):
        return None
    return [order.index(dim) for dim in range(len(order))] if inverse else order


def _is_turned(program, name):
    """Whether it is the product that is turned, or its operands (False); None: it stays as it is."""
    node = program.graph.nodes[name]
    flags = [node.attr[flag].b for flag in FLAGS]
    if not any(flags) or node.attr["T"].type != FLOAT32:
        return None
    made, first, second = [_shape(program, text) for text in [name] + list(node.input[:2])]
    if made is None or (first is None and second is None):
        return None
    inner = first[0 if flags[0] else 1] if first is not None else second[1 if flags[1] else 0]
    rows, columns = made
    sizes = [rows * inner, inner * columns]
    direct = sum(size for size, flag in zip(sizes, flags) if flag)
    turned = sum(size for size, flag in zip(sizes, flags) if not flag) + rows * columns
    if rows * inner * columns < _WORTH * min(direct, turned):
        return None
    return turned < direct


def _shape(program, text):
    spec = program.spec_of(text)
    if spec is None or spec.shape is None or len(spec.shape) != 2:
        return None
    return tuple(UNKNOWN_SIZE if dim is None or dim < 0 else dim for dim in spec.shape)


def _turns_matrices(order):
    """The last two dimensions change places, and no others do."""
    return order[:-2] + order[:-3:-1] == list(range(len(order)))
