"""The part of a forward pass that may be computed again for the backward pass, and who uses it."""

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.rules import effects

# They ask for the shape of a tensor as soon as it is there, and do not keep it.
_SHAPE_ONLY = frozenset(["Shape", "ShapeN", "Size", "Rank"])
_VIEWS = frozenset(["Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient"])
_CONSTANTS = frozenset(["Const", "Fill"])


class Forward(object):
    """The part of the forward pass that may be computed again, and who uses it.

    Args:
      graph: the tagged Graph as the user built it.
      analysis: the Analysis of it.
      stateful: operation types that keep state.
      never: further nodes that are not to be repeated.

    Attributes:
      nodes: names in creation order: the nodes that depend on data and lead to what the backward pass uses.
      repeatable: those that may be computed again.
      uses: (node of the backward pass, input position, canonical tensor) that take a tensor of `nodes`.
    """

    def __init__(self, graph, analysis, stateful, never=frozenset()):
        self.graph = graph
        backward = {n for n, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD}
        self.backward = backward
        sources = graph.find(_is_data) or [n for n in graph.find(_CONSTANTS.__contains__) if _is_array(graph.nodes[n])]
        self.from_data = graph.descendants(sources, data_only=True) - backward
        self.uses = []
        for name in graph.in_order(backward):
            node = graph.nodes[name]
            if node.op in _SHAPE_ONLY:
                continue
            for position, text in enumerate(node.input):
                if text[0] != "^" and node_of(text) in self.from_data:
                    self.uses.append((name, position, canonical_tensor(text)))
        used = {node_of(tensor) for _, _, tensor in self.uses}
        outside = graph.nodes.keys() - self.from_data
        self.nodes = graph.in_order(graph.ancestors(used, stop=outside, data_only=True) & self.from_data)
        loops = inside_loops(graph)
        self.repeatable = frozenset(
            name
            for name in self.nodes
            if name not in loops
            and name not in never
            and effects.kind_of(graph.nodes[name].op) is None
            and graph.nodes[name].op not in stateful
            and tags.phase(graph.nodes[name]) == tags.FORWARD
            and not any(_is_reference(graph, text) for text in graph.nodes[name].input)
        )
        self._roots = {}

    def root(self, tensor):
        """The tensor whose memory a view of it uses."""
        if tensor not in self._roots:
            node, found = self.graph.nodes[node_of(tensor)], tensor
            if node.op in _VIEWS and node.input and node_of(node.input[0]) in self.from_data:
                found = self.root(canonical_tensor(node.input[0]))
            self._roots[tensor] = found
        return self._roots[tensor]

    def roots(self):
        """All tensors that the backward pass or the repeatable part of the forward pass uses, views left out."""
        used = {self.root(tensor) for _, _, tensor in self.uses}
        return used.union(self.root(tensor) for name in self.nodes for tensor in self.inputs(name))

    def inputs(self, name):
        """Canonical names of the tensors from data that a node takes."""
        return [
            canonical_tensor(text)
            for text in self.graph.nodes[name].input
            if text[0] != "^" and node_of(text) in self.from_data
        ]


def inside_loops(graph):
    """Nodes inside the loops of control flow v1, what enters and leaves them included."""
    enters = graph.find(lambda op: op in ("Enter", "RefEnter"))
    exits = frozenset(graph.find(lambda op: op in ("Exit", "RefExit")))
    return graph.descendants(enters, stop=exits) if enters else set()


def _is_reference(graph, text):
    node = graph.nodes[node_of(text)]
    return text[0] != "^" and node.op in effects.VARIABLES and node.op != "VarHandleOp"


def _is_array(node):
    """True for floating-point constants that may stand for data, in models that are fed nothing."""
    dtype = node.attr["dtype" if node.op == "Const" else "T"].type
    return dtype in types.FLOAT_TYPES and (node.op != "Const" or len(node.attr["value"].tensor.tensor_shape.dim) > 1)


def _is_data(op):
    return op in effects.DIFFERING or op in effects.PLACEHOLDERS
