r"""Transposes tensors by EPL's own kernel on CPUs, and operands of products beforehand.

    x, dy -> MatMul (transpose_a)      becomes      x -> EplTranspose, dy -> MatMul
    y -> Transpose -> z                becomes      y -> EplTranspose -> z

Where TensorFlow does not compute by oneDNN, a product takes 1.2 to 2.5 times as long if an operand lies the other way
in memory, as one does in each of both gradients of a product; and its own transpositions are slow as well. A product
of transposed operands is also the transposed product of both in the other order: what has fewer elements to move is
made of it.
"""

from dataclasses import replace

from epl import tf_compat
from epl.graph import tags, types
from epl.graph.build import Type, make_node, set_attr
from epl.graph.index import node_of
from epl.graph.types import FLOAT32
from epl.plan.cost.cost import UNKNOWN_SIZE
from epl.plan.facts.names import PREFIX
from epl.plan.facts.row_kinds import constant_of
from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import used_taskgraphs
from epl.rules import tensors

_FLAGS = ("transpose_a", "transpose_b")
# A product gains as much as moving one of its elements takes from about so many multiplications for each.
_WORTH = 256
# TensorFlow's graph optimizer joins transpositions with one another, and those of matrices with products.
_TRANSPOSES = frozenset(["Transpose", "ConjugateTranspose", "Conj"])
_MULTIPLIES = _TRANSPOSES | tensors.PRODUCTS


def transpose_operands(program, target):
    """The Program whose operands lie as the kernels take them, where something is split on CPUs.

    Elsewhere nothing changes: a product may be rounded otherwise.
    """
    if target.cluster.device_type != "CPU" or tf_compat.uses_onednn() or not is_split(used_taskgraphs(program)):
        return program
    work = _Transpositions(program)
    for name in program.graph.find("Transpose".__eq__):
        work.take_over(name)
    for name in program.graph.find("MatMul".__eq__):
        work.multiply(name)
    return work.finish()


class _Transpositions(object):
    """Edits a Program.

    Args:
      program: the Program.
    """

    def __init__(self, program):
        self._program, self._graph = program, program.graph
        self._edit = program.graph.editor()

    def finish(self):
        return replace(self._program, graph=self._edit.finish())

    def take_over(self, name):
        """EPL's kernel in the place of a Transpose that stays one."""
        graph, node = self._graph, self._graph.nodes[name]
        order = self._order(node_of(node.input[1]))
        if order is None or order == sorted(order):
            return
        others = [node_of(node.input[0])] + [consumer for consumer, _ in graph.consumers.get(name, ())]
        if any(graph.nodes[other].op in (_MULTIPLIES if _turns_matrices(order) else _TRANSPOSES) for other in others):
            return
        if types.DTYPE_BYTES.get(node.attr["T"].type, 0) not in (1, 2, 4, 8):
            return
        self._becomes(name, node.input[:1], order)

    def _order(self, name):
        """The numbers of a transposition's dimensions, where they are known; its gradient takes them inverted."""
        node = self._graph.nodes[name]
        inverse = node.op == "InvertPermutation"
        order = constant_of(self._graph, node_of(node.input[0]) if inverse else name)
        if order is None or sorted(order) != list(range(len(order))):
            return None
        return [order.index(dim) for dim in range(len(order))] if inverse else order

    def multiply(self, name):
        """A product of operands as they are, and transpositions."""
        node = self._graph.nodes[name]
        flags = [node.attr[flag].b for flag in _FLAGS]
        if not any(flags) or node.attr["T"].type != FLOAT32:
            return
        made, first, second = [self._shape(text) for text in [name] + list(node.input[:2])]
        if made is None or (first is None and second is None):
            return
        inner = first[0 if flags[0] else 1] if first is not None else second[1 if flags[1] else 0]
        rows, columns = made
        sizes = [rows * inner, inner * columns]
        direct = sum(size for size, flag in zip(sizes, flags) if flag)
        turned = sum(size for size, flag in zip(sizes, flags) if not flag) + rows * columns
        if rows * inner * columns < _WORTH * min(direct, turned):
            return
        if turned < direct:
            self._turn(node, flags)
            return
        own = self._edit.node(name)
        for position, (flag, each) in enumerate(zip(flags, _FLAGS)):
            if flag:
                own.input[position] = self._transposed(node, position)
                set_attr(own, each, False)

    def _turn(self, node, flags):
        """The node transposes the product of both operands in the other order."""
        operands = [
            node.input[position] if flag else self._transposed(node, position) for position, flag in enumerate(flags)
        ]
        product = self._beside(node, "MatMul", "product", operands[::-1], transpose_a=False, transpose_b=False)
        self._becomes(node.name, [product], [1, 0])

    def _becomes(self, name, data, perm):
        """Makes a node a transposition of another tensor; it waits for what it waited for."""
        own = self._edit.node(name)
        inputs = list(data) + [text for text in own.input if text[0] == "^"]
        del own.input[:]
        own.input.extend(inputs)
        own.op = "EplTranspose"
        for key in [key for key in own.attr if key[0] != "_" and key != "T"]:
            del own.attr[key]
        set_attr(own, "perm", perm)

    def _transposed(self, node, position):
        """The name of a node with an operand of a product the other way round: made when the other operand is there, so
        that what is made of a weight does not lie in memory from the beginning of a step to its backward pass."""
        operand, other = node.input[position], node_of(node.input[1 - position])
        waits = ["^" + other] if other != node_of(operand) else []
        return self._beside(node, "EplTranspose", str(position), [operand] + waits, perm=[1, 0])

    def _beside(self, node, op, stem, inputs, **attrs):
        """The name of a new node for a product: where that one is, and no sooner."""
        inputs = inputs + [text for text in node.input if text[0] == "^"]
        name = "%s_transposed/%s/%s" % (PREFIX, node.name, stem)
        made = make_node(op, name, inputs, node.device, T=Type(FLOAT32), **attrs)
        tags.inherit(made, node, (tags.TASKGRAPH, tags.PHASE, tags.APPLY_CALL))
        return self._edit.add(made).name

    def _shape(self, text):
        spec = self._program.spec_of(text)
        if spec is None or spec.shape is None or len(spec.shape) != 2:
            return None
        return tuple(UNKNOWN_SIZE if dim is None or dim < 0 else dim for dim in spec.shape)


def _turns_matrices(order):
    """The last two dimensions change places, and no others do."""
    return order[:-2] + order[:-3:-1] == list(range(len(order)))
