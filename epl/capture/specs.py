"""Shapes and types of the tensors of a captured graph, from what capture wrote down and what its operations say."""

from epl import tf_compat
from epl.graph import types
from epl.graph.index import parse_input
from epl.plan.cost.cost import TensorSpec

# Their gradients give them further outputs, which their attribute tells.
_GROWING = frozenset("While StatelessWhile If StatelessIf Case StatelessCase".split())


class Specs(object):
    """A function of a canonical tensor name ("a", "a:1") to its TensorSpec; None for tensors that are not there.

    Args:
      graph: the Graph as it was captured.
      shapes: dict of node to a tuple with a shape for each output: a tuple with -1 where a size is not known, None for
        an unknown rank.
    """

    def __init__(self, graph, shapes):
        functions = {function.signature.name: function.signature for function in graph.library.function}
        self._signatures = types.Signatures(lambda op: functions.get(op) or tf_compat.known_op_def(op))
        self._nodes = graph.nodes
        self._shapes = shapes
        self._known = {}  # node to the specs of its outputs

    def __call__(self, name):
        name, index = parse_input(name)
        if name not in self._known:
            self._known[name] = self._specs(name)
        return self._known[name][index] if index < len(self._known[name]) else None

    def _specs(self, name):
        node = self._nodes.get(name)
        signature = self._signatures.of(node) if node is not None else None
        if signature is None:
            return []  # a node that a pass made, or an operation that this process does not know
        shapes, dtypes = list(self._shapes.get(name, ())), signature[1]
        if node.op in _GROWING:
            shapes += map(_sizes, node.attr["output_shapes"].list.shape[len(shapes) :])
        return list(map(TensorSpec, shapes + [None] * (len(dtypes) - len(shapes)), dtypes))


def _sizes(shape):
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
