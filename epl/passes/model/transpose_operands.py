r"""Transposes tensors by EPL's own kernel on CPUs, and operands of products beforehand.

    x, dy -> MatMul (transpose_a)      becomes      x -> EplTranspose, dy -> MatMul
    y -> Transpose -> z                becomes      y -> EplTranspose -> z

Where TensorFlow does not compute by oneDNN, a product takes 1.2 to 2.5 times as long if an operand lies the other way
in memory, as one does in each of both gradients of a product; and its own transpositions are slow as well. A product
of transposed operands is also the transposed product of both in the other order: what has fewer elements to move is
made of it.
"""

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node, set_attr
from epl.graph.types import FLOAT32
from epl.plan.facts.names import PREFIX
from epl.plan.layout.transpositions import FLAGS


def transpose_operands(program, transpositions):
    """The Program whose operands lie as the kernels take them: epl.plan.layout.transpositions.Transpositions."""
    edits = _Edits(program)
    for name, order in transpositions.kernels.items():
        edits.take_over(name, order)
    for name in program.graph.in_order(transpositions.turned + transpositions.operands):
        edits.multiply(name, name in transpositions.turned)
    return edits.finish()


class _Edits(object):
    """Edits a Program.

    Args:
      program: the Program.
    """

    def __init__(self, program):
        self._program, self._graph = program, program.graph
        self._edit = program.graph.editor()

    def finish(self):
        return self._program.with_graph(self._edit.finish())

    def take_over(self, name, order):
        """EPL's kernel in the place of a Transpose that stays one."""
        self._becomes(name, self._graph.nodes[name].input[:1], list(order))

    def multiply(self, name, is_turned):
        """A product of operands as they are, and transpositions."""
        node = self._graph.nodes[name]
        flags = [node.attr[flag].b for flag in FLAGS]
        if is_turned:
            self._turn(node, flags)
            return
        own = self._edit.node(name)
        for position, (flag, each) in enumerate(zip(flags, FLAGS)):
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
