"""Functions of a graph's library: which nodes call which, and what is in their bodies."""


class Functions(object):
    """An index over a FunctionDefLibrary."""

    def __init__(self, library):
        self.bodies = {function.signature.name: function for function in library.function}
        self._known = {}

    def called_by(self, node):
        """Names of the functions that a node calls."""
        if not self.bodies:
            return []
        names = [node.op] if node.op in self.bodies else []
        for attr in node.attr.values():
            if attr.HasField("func"):
                names.append(attr.func.name)
            names.extend(f.name for f in attr.list.func)
        return [name for name in names if name in self.bodies]

    def callers(self, nodes):
        """Those of the nodes that call any function."""
        return [node for node in nodes if self.called_by(node)] if self.bodies else []

    def calls(self, node, test, key):
        """True when any operation in the functions that the node calls, at any depth, passes the test.

        Args:
          test: function from a NodeDef to bool.
          key: a name of the test, under which its answers are kept.
        """
        return bool(self.bodies) and any(self.contains(name, test, key) for name in self.called_by(node))

    def contains(self, name, test, key):
        """The same for the body of a function."""
        if (name, key) not in self._known:
            self._known[name, key] = False  # for functions that call themselves
            body = self.bodies[name].node_def
            self._known[name, key] = any(test(n) or self.calls(n, test, key) for n in body)
        return self._known[name, key]

    def changed_inputs(self, node, is_write):
        """Positions of a caller's inputs that its functions, at any depth, write to; all where that cannot be told.

        Args:
          is_write: function from an operation type to bool; such an operation writes to its first input.
        """
        first = _FIRST_ARGUMENT.get(node.op, 0 if node.op in _WITH_ALL or node.op in self.bodies else None)
        if first is None:
            return set(range(len(node.input)))
        return {first + i for name in self.called_by(node) for i in self._changed_arguments(name, is_write)}

    def _changed_arguments(self, name, is_write):
        key = name, "changed"
        if key not in self._known:
            self._known[key] = frozenset()  # for functions that call themselves
            body = self.bodies[name]
            arguments = {arg.name: index for index, arg in enumerate(body.signature.input_arg)}
            nodes = {node.name: node for node in body.node_def}
            found = set()
            for node in body.node_def:
                positions = (
                    {0} if is_write(node.op) else self.changed_inputs(node, is_write) if self.called_by(node) else ()
                )
                found.update(arguments.get(_origin(nodes, node.input[p])) for p in positions if p < len(node.input))
            self._known[key] = frozenset(found - {None})
        return self._known[key]


# Operations that call functions with all of their inputs but for the first ones.
_FIRST_ARGUMENT = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
_WITH_ALL = frozenset(["While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"])
CALLS = _WITH_ALL.union(_FIRST_ARGUMENT)


def _origin(nodes, text):
    """The argument of a function, or the node in it, that a tensor has come from unchanged."""
    name = text.split(":")[0]
    while name in nodes and nodes[name].op == "Identity":
        name = nodes[name].input[0].split(":")[0]
    return name
