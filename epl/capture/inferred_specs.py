"""Shapes and types of the tensors of a captured graph, from what capture wrote down and what its operations say."""

from epl import tf_compat
from epl.graph import types
from epl.program.specs import TensorSpec

# Their gradients give them further outputs, which their attribute tells.
_GROWING = frozenset("While StatelessWhile If StatelessIf Case StatelessCase".split())


def specs_of(graph, shapes):
    """dict of node to a tuple with the TensorSpec of each output; without operations that this process does not know.

    Args:
      graph: the Graph as it was captured.
      shapes: dict of node to a tuple with a shape for each output: a tuple with -1 where a size is not known, None for
        an unknown rank.
    """
    functions = {function.signature.name: function.signature for function in graph.library.function}
    signatures = types.Signatures(lambda op: functions.get(op) or tf_compat.known_op_def(op))
    found, equal = {}, {}  # equal ones are one object
    for name, node in graph.nodes.items():
        signature = signatures.of(node)
        if signature is None:
            continue
        own, dtypes = tuple(shapes.get(name, ())), signature[1]
        if node.op in _GROWING:
            own += tuple(map(_sizes, node.attr["output_shapes"].list.shape[len(own) :]))
        if (own, dtypes) not in equal:
            equal[own, dtypes] = tuple(map(TensorSpec, own + (None,) * (len(dtypes) - len(own)), dtypes))
        found[name] = equal[own, dtypes]
    return found


def _sizes(shape):
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
