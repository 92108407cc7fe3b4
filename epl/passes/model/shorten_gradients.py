r"""Keeps gradients in 16 bits until they are aggregated (amp.level "O2").

    MatMul in 16 bits -> Cast -> grad -> Apply   becomes   MatMul in 16 bits -> Cast (-> grad, for who fetches it)
                                                                             \-> Cast -> (1 / scale) -> Apply

What is aggregated is the 16-bit tensor, with the loss scale on it; the optimizer gets float32. A gradient that was
computed in float32, such as that of a bias, is cast to 16 bits first.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.graph.node_defs import Type, make_node, set_attr
from epl.graph.types import FLOAT32
from epl.passes.nodes import with_originals
from epl.plan.facts.names import PREFIX
from epl.program.program import Gradient, Unscaled


def shorten_gradients(program, decided):
    """The Program whose gradients are aggregated as an epl.plan.sync.short_gradients.ShortGradients says."""
    short = _Short(program, decided.dtype)
    for call, tensor, consumers in decided.gradients:
        short.add(call, tensor, consumers)
    return short.program()


class _Short(object):
    """The edit, gradient by gradient.

    Args:
      program: the Program.
      dtype: DataType number of the 16-bit type.
    """

    def __init__(self, program, dtype):
        self._program, self._graph, self._dtype = program, program.graph, dtype
        self._edit = program.graph.editor()
        self._short, self._taken = {}, set()
        self._cast_to_16_bits, self._cast_to_32_bits = {}, {}

    def add(self, call, tensor, consumers):
        """Lets those that take a gradient for a call take what is made of its 16-bit form.

        Args:
          call: number of the ApplyCall.
          tensor: canonical name, as tf.gradients returned it.
          consumers: (node, input position) pairs.
        """
        known = self._program.unscaled.get(tensor, Unscaled(tensor, None))
        stem = "%s_gradient_16_bits/%s/call_%d" % (PREFIX, tensor.replace(":", "_output_"), call)
        short, near = self._short_form(tensor, known.scaled), self._graph.nodes[node_of(tensor)]
        whole = make_node("Cast", stem, [short], near.device, SrcT=Type(self._dtype), DstT=Type(FLOAT32))
        made = self._add(whole, near, tags.APPLY, tensor, call)
        if known.inverse is not None:
            product = make_node("Mul", stem + "/unscaled", [made, known.inverse], near.device, T=Type(FLOAT32))
            made = self._add(product, near, tags.APPLY, tensor, call)
        for edge in consumers:
            if edge not in self._taken:
                self._edit.set_input(edge[0], edge[1], made)
        self._taken.update(consumers)

    def _short_form(self, tensor, whole):
        """The 16-bit tensor whose value, in float32, `whole` is or becomes."""
        if tensor not in self._short:
            node = self._edit.peek(node_of(whole))
            if node.op == "Cast" and node.attr["SrcT"].type == self._dtype:
                self._short[tensor] = canonical_tensor(node.input[0])
            else:
                near = self._graph.nodes[node_of(tensor)]
                name = "%s_gradient_16_bits/%s" % (PREFIX, tensor.replace(":", "_output_"))
                cast = make_node("Cast", name, [whole], near.device, SrcT=Type(FLOAT32), DstT=Type(self._dtype))
                self._short[tensor] = self._add(cast, near, tags.BACKWARD, tensor)
        return self._short[tensor]

    def _add(self, node, near, phase, tensor, call=None):
        set_attr(node, tags.PHASE, phase)
        if tags.TASKGRAPH in near.attr:
            set_attr(node, tags.TASKGRAPH, near.attr[tags.TASKGRAPH].i)
        if call is not None:
            set_attr(node, tags.APPLY_CALL, call)
        known = self._cast_to_16_bits if call is None else self._cast_to_32_bits
        known[node.name] = tensor
        return self._edit.add(node).name

    def program(self):
        """The Program with all of them."""
        program = replace(self._program, graph=self._edit.finish())
        program = with_originals(program, self._cast_to_16_bits, self._dtype)
        program = with_originals(program, self._cast_to_32_bits)
        calls = [
            replace(call, gradients=tuple((self._in_short(g), v) for g, v in call.gradients))
            for call in program.apply_calls
        ]
        computed = [(self._in_short(gradient), variable) for gradient, variable in program.computed]
        short = {tensor: self._dtype for tensor in self._short.values()}
        return replace(program, apply_calls=calls, computed=computed, short=short)

    def _in_short(self, gradient):
        if gradient.indices is not None:
            return gradient
        return Gradient(self._short.get(canonical_tensor(gradient.values), gradient.values), None)
