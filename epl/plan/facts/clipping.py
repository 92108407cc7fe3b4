r"""What a program makes of gradients before an optimizer takes them, such as clipping.

What concerns one variable alone its owner can compute (zero.level), with the sums that join all of them:

    grad w -> L2Loss \                       / Mul -> apply (w)
                      Pack -> Sum -> scale ->
    grad v -> L2Loss /                       \ Mul -> apply (v)

Here L2Loss and Mul are of one variable each, the sum joins them, and the scale is the same for all.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.graph.types import LONG_FLOATS
from epl.partition.values import constant_value
from epl.program.program import Gradient
from epl.rules import tensors

# What a node says: of all gradients together; of several, not yet added up.
_ALL, _SEVERAL = object(), object()


@dataclass(frozen=True)
class Sum:
    """A number that is a sum over gradients.

    Attributes:
      joined: the node that has it.
      parts: the nodes that it adds, each of one gradient.
      between: nodes that only lead from these to it.
      dtype: DataType number.
    """

    joined: str
    parts: Tuple[str, ...]
    between: Tuple[str, ...]
    dtype: int


@dataclass(frozen=True)
class Clipping:
    """What is made of the gradients of a call of apply_gradients.

    Attributes:
      call: its number.
      gradients: (Gradient as tf.gradients returned it, name of its variable) pairs in the place of the call's own.
      members: nodes that are computed for one variable, to its name.
      sums: the Sums.
    """

    call: int
    gradients: Tuple[Tuple[Gradient, str], ...]
    members: Dict[str, str]
    sums: Tuple[Sum, ...]


def find_clipping(program, analysis, call):
    """The Clipping of a call; None where it has none, or where gradients come together in another way than by sums.

    Args:
      program: an epl.program.program.Program.
      analysis: its Analysis.
      call: one of its ApplyCalls.
    """
    return _ClipSearch(program, analysis, call).found()


class _ClipSearch(object):
    def __init__(self, program, analysis, call):
        self._graph, self._program, self._analysis, self._call = program.graph, program, analysis, call
        self._computed = {canonical_tensor(g.values): (g, v) for g, v in program.computed if g.indices is None}
        self._label, self._sums, self._inner = {}, [], set()
        self._taken = {}  # variable to the gradient of it that is between

    def found(self):
        call, graph = self._call, self._graph
        given = {canonical_tensor(gradient.values): variable for gradient, variable in call.gradients}
        between = self._between(given)
        if not between or any(gradient.indices is not None for gradient, _ in call.gradients):
            return None
        for name in sorted(between, key=graph.order.__getitem__):
            if not self._tell(name):
                return None
        members = {name: label for name, label in self._label.items() if isinstance(label, str)}
        if not self._stay_apart(members):
            return None
        if any(self._of(tensor) != variable for tensor, variable in given.items()):
            return None
        pairs = tuple((self._taken[variable], variable) for _, variable in call.gradients)
        return Clipping(call.index, pairs, members, tuple(self._sums))

    def _between(self, given):
        """What leads from returned gradients to those that the call was given; nothing where it takes others."""
        found, stack = set(), list(given)
        while stack:
            tensor = stack.pop()
            name = node_of(tensor)
            if tensor in self._computed:
                gradient, variable = self._computed[tensor]
                if self._taken.setdefault(variable, gradient) != gradient:
                    return set()
            if tensor in self._computed or name in found:
                continue
            node = self._graph.nodes[name]
            if tags.phase(node) != tags.FORWARD or name in self._analysis.in_control_flow:
                return set()
            found.add(name)
            stack.extend(canonical_tensor(text) for text in node.input if text[0] != "^")
        return found

    def _of(self, tensor):
        """What a tensor says: the name of a variable, _ALL, _SEVERAL, or None."""
        if tensor in self._computed:
            return self._computed[tensor][1]
        return self._label.get(node_of(tensor))

    def _inputs(self, name):
        return [canonical_tensor(text) for text in self._graph.nodes[name].input if text[0] != "^"]

    def _tell(self, name):
        """Sets what a node says; False where that hinders."""
        labels = {self._of(tensor) for tensor in self._inputs(name)} - {None}
        variables = labels - {_ALL}
        if not labels:
            # What differs from copy to copy must not come into a gradient.
            self._label[name] = None
            return name not in self._analysis.varying
        if len(variables) < 2 and _SEVERAL not in labels:
            self._label[name] = next(iter(variables), _ALL)
            return True
        if self._graph.nodes[name].op == "Pack" or self._is_inner(name):
            self._label[name] = _SEVERAL
            self._inner.add(name)
            return _ALL not in labels
        found = self._sum(name)
        if found is None:
            return False
        self._label[name] = _ALL
        self._sums.append(found)
        return True

    def _users(self, name):
        return self._graph.edges.data_consumers.get(name, ())

    def _is_inner(self, name):
        """Whether a node adds numbers for another one that adds further ones."""
        users = self._users(name)
        return self._graph.nodes[name].op in tensors.SUMS and [
            self._graph.nodes[u].op in tensors.SUMS for u in users
        ] == [True]

    def _sum(self, name):
        """The Sum that a node has; None where it has another thing."""
        graph, node = self._graph, self._graph.nodes[name]
        if node.op not in tensors.SUMS and not (node.op == "Sum" and self._adds_packed(node)):
            return None
        parts, between, stack = [], [], self._inputs(name)[: 1 if node.op == "Sum" else None]
        while stack:
            tensor = stack.pop()
            source = node_of(tensor)
            if source in self._inner and all(u == name or u in between for u in self._users(source)):
                between.append(source)
                stack.extend(self._inputs(source))
                continue
            spec = self._program.spec_of(tensor)
            if not isinstance(self._of(tensor), str) or spec is None or spec.shape is None or len(spec.shape):
                return None
            if tensor in self._computed or source != tensor:
                return None
            parts.append(source)
        dtype = graph.nodes[name].attr["T"].type
        if dtype not in LONG_FLOATS or len(set(parts)) < len(parts):
            return None
        return Sum(name, tuple(graph.in_order(parts)), tuple(graph.in_order(between)), dtype)

    def _adds_packed(self, node):
        source, dims = self._graph.nodes[node_of(node.input[0])], self._graph.nodes[node_of(node.input[1])]
        value = constant_value(dims.attr["value"].tensor) if dims.op == "Const" else None
        whole = value is not None and value.reshape(-1).tolist() in ([0], [-1])
        return source.op == "Pack" and whole and not node.attr["keep_dims"].b

    def _stay_apart(self, members):
        """Whether nothing but the optimizer takes what is computed for one variable."""
        names = set(members).union(self._inner)
        joined = {each.joined for each in self._sums}
        for name in names:
            for user in self._users(name):
                node = self._graph.nodes[user]
                ours = tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == self._call.index
                if not ours and user not in names and user not in joined:
                    return False
        return self._inner == {name for each in self._sums for name in each.between}
