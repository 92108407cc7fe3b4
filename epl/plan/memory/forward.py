"""The part of a forward pass that may be computed again for the backward pass, and who uses it."""

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.loops import find_loops, is_write
from epl.rules import effects, tensors


class Forward(object):
    """The part of the forward pass that may be computed again, and who uses it.

    Args:
      graph: the tagged Graph as the user built it.
      analysis: the Analysis of it.
      stateful: operation types that keep state.
      never: further nodes that are not to be repeated.

    Attributes:
      nodes: names in creation order: the nodes that depend on data and lead to what the backward pass uses.
      loops: the Loops of control flow v1.
      repeatable: those that may be computed again, and what stands with them in a loop.
      inside: nodes for which nothing outside of their loop or branch can wait.
      uses: (node of the backward pass, input position, canonical tensor) that take a tensor of `nodes`.
    """

    def __init__(self, graph, analysis, stateful, never=frozenset()):
        self.graph = graph
        backward = {n for n, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD}
        self.backward = backward
        sources = graph.find(_is_data) or [
            n for n in graph.find(tensors.CONSTANTS.__contains__) if _is_array(graph.nodes[n])
        ]
        self.from_data = graph.descendants(sources, data_only=True) - backward
        self.uses = []
        for name in graph.in_order(backward):
            node = graph.nodes[name]
            if node.op in tensors.SHAPE_ONLY:
                continue
            for position, text in enumerate(node.input):
                if text[0] != "^" and node_of(text) in self.from_data:
                    self.uses.append((name, position, canonical_tensor(text)))
        used = {node_of(tensor) for _, _, tensor in self.uses}
        outside = graph.nodes.keys() - self.from_data
        self.nodes = graph.in_order(graph.ancestors(used, stop=outside, data_only=True) & self.from_data)
        self.loops = find_loops(graph, stateful, backward, never)
        self.inside = (analysis.in_control_flow | self.loops.inside) - self.loops.leaving
        self.repeatable = self.loops.repeatable.union(
            name
            for name in self.nodes
            if name not in self.loops.of
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
            if node.op in tensors.VIEWS and node.input and node_of(node.input[0]) in self.from_data:
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

    def taken(self, name, available, read_again):
        """What the copy of a node takes of other copies: tensors, and in a loop control inputs too.

        Args:
          name: of a node that is computed again.
          available: function from a canonical tensor name to whether the forward pass's own is taken.
          read_again: container of the TensorArrays that are read from again. Into others nothing is written again.

        Returns:
          A list of inputs as NodeDefs spell them.
        """
        node, loops = self.graph.nodes[name], self.loops
        loop, found = loops.of.get(name), []
        for text in self.passed_on(name, read_again) or node.input:
            producer = node_of(text)
            if loop is not None and loops.of.get(producer) is loop:
                found.append(text)
            elif text[0] == "^":
                continue
            elif producer in loops.carriers:
                if not loops.carriers[producer].isdisjoint(read_again):
                    found.append(text)
            elif producer in self.from_data and not available(canonical_tensor(text)):
                found.append(text)
        return found

    def passed_on(self, name, read_again):
        """The one input that the copy of a write into a TensorArray gives on where nobody reads that one again."""
        if not is_write(self.graph.nodes[name].op) or not self.loops.carriers[name].isdisjoint(read_again):
            return None
        data = [text for text in self.graph.nodes[name].input if text[0] != "^"]
        return data[-1:]


def _is_reference(graph, text):
    node = graph.nodes[node_of(text)]
    return text[0] != "^" and node.op in effects.VARIABLES and node.op != "VarHandleOp"


def _is_array(node):
    """True for floating-point constants that may stand for data, in models that are fed nothing."""
    dtype = node.attr["dtype" if node.op == "Const" else "T"].type
    return dtype in types.FLOAT_TYPES and (node.op != "Const" or len(node.attr["value"].tensor.tensor_shape.dim) > 1)


def _is_data(op):
    return op in effects.DIFFERING or op in effects.PLACEHOLDERS
