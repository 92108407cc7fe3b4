"""What the partition asks about tensors: shapes, types, sizes, values."""

from epl.cluster.machine import NOMINAL
from epl.graph import types
from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.partition.shapes import REFINED, refined
from epl.partition.values import Values
from epl.rules import effects

# What a size that the graph does not know (the batch, usually) counts as.
_UNKNOWN_SIZE = 32


class Facts(object):
    """Facts about the tensors of one copy of a model; a tensor is a NodeInput. The handle of a variable counts as it.

    Args:
      graph: the Graph.
      spec_of: function of a canonical tensor name to its TensorSpec, or None.
      machine: the epl.cluster.machine.Machine by which costs are compared.
    """

    def __init__(self, graph, spec_of, machine=NOMINAL):
        self.graph = graph
        self.machine = machine
        self._spec_of = spec_of
        self._known = {}
        self._guesses = {}
        self._assigned = None
        self._values = Values(graph, self.shape, self._dtype_of_node)

    def _spec(self, tensor):
        if tensor not in self._known:
            node = self.graph.nodes[tensor.node]
            if node.op == "VarHandleOp":
                shape = node.attr["shape"].shape
                dims = None if shape.unknown_rank else tuple(None if d.size < 0 else d.size for d in shape.dim)
                self._known[tensor] = dims, node.attr["dtype"].type
            else:
                spec = self._spec_of(format_input(*tensor))
                dims = None if spec is None or spec.shape is None else tuple(None if d < 0 else d for d in spec.shape)
                dims = self._refined(tensor, node, dims) if dims is None or None in dims else dims
                dims = self._of_variable(tensor) if dims is None else dims
                self._known[tensor] = dims, 0 if spec is None else types.base(spec.dtype)
        return self._known[tensor]

    def _of_variable(self, tensor):
        """The shape of the variable that a tensor is assigned to, such as what is read from a checkpoint."""
        if self._assigned is None:
            self._assigned = {}
            for name in self.graph.find(effects.SETS.__contains__):
                inputs = self.inputs(name)
                if self.is_variable(inputs[0]):
                    self._assigned[inputs[effects.VALUE_INPUT]] = inputs[0]
        holder = self._assigned.get(tensor)
        return None if holder is None else self.shape(holder)

    def _refined(self, tensor, node, dims):
        if node.op not in REFINED:
            return dims
        found = refined(node, tensor.index, self.inputs(tensor.node), self)
        if dims is None or found is None or len(found) != len(dims):
            return dims if found is None else found
        return tuple(known if known is not None else other for known, other in zip(dims, found))

    def shape(self, tensor):
        """Tuple of sizes, None for those that are not known; None where the rank is not known."""
        return self._spec(tensor)[0]

    def dtype(self, tensor):
        """DataType number; of a handle that of the variable, 0 where nothing is known."""
        return self._spec(tensor)[1]

    def _dtype_of_node(self, name):
        return self.dtype(Tensor(name, 0))

    def is_variable(self, tensor):
        return self.graph.nodes[tensor.node].op in effects.VARIABLES

    def guess(self, tensor):
        """The shape with guesses of what is not known."""
        if tensor in self._guesses:
            return self._guesses[tensor]
        return tuple(_UNKNOWN_SIZE if size is None else size for size in self.shape(tensor) or ())

    def set_guess(self, tensor, sizes):
        """Guesses the sizes of a tensor that are not known; None for those of which nothing is known. A reshape has as
        many elements as what it is made of."""
        shape = self.shape(tensor)
        found = [known if known is not None else size for known, size in zip(shape, sizes)]
        if self.graph.nodes[tensor.node].op == "Reshape" and shape.count(None) == 1:
            others = _product(size for size in shape if size is not None)
            found[shape.index(None)] = _product(self.guess(self.inputs(tensor.node)[0])) // max(1, others)
        self._guesses[tensor] = tuple(_UNKNOWN_SIZE if size is None else size for size in found)

    def num_bytes(self, tensor):
        """Size of the whole tensor, with sizes that are not known as they are guessed."""
        return types.DTYPE_BYTES.get(self.dtype(tensor), 4) * _product(self.guess(tensor))

    def value(self, tensor):
        """The small integer array that a tensor holds (None for elements that are not known), or None."""
        return self._values.of(*tensor)

    def inputs(self, name):
        """The tensors that a node takes."""
        return [each for each in self.graph.inputs[name] if each.index >= 0]


def _product(sizes):
    count = 1
    for size in sizes:
        count *= size
    return count
