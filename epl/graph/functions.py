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
