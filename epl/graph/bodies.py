"""The main graph and the bodies of its functions, read in one way: nodes, arguments, and who calls whom.

Inputs are spelt differently in the two: "node:1" in a graph, "node:output:1" or "argument" in a function.
"""

import collections

from epl.graph.functions import Functions
from epl.graph.index import node_of

Call = collections.namedtuple("Call", "body node")


class Body(object):
    """Nodes by name, and the arguments of a function.

    Attributes:
      name: of the function; "" for the main graph.
      nodes: dict of name to NodeDef, in order.
      arguments: names, in order; the main graph has none.
      results: inputs that a function returns, in its own spelling; none for the main graph.
    """

    def __init__(self, name, nodes, arguments=(), results=()):
        self.name = name
        self.nodes = nodes
        self.arguments = tuple(arguments)
        self.results = tuple(results)

    def producer(self, text):
        """The node that an input comes from, or None for an argument."""
        name = text.lstrip("^").split(":")[0] if self.name else node_of(text)
        return self.nodes.get(name)

    def argument(self, text):
        """The position of the argument that an input is, or None."""
        return self.arguments.index(text) if text in self.arguments else None

    def ancestors(self, texts):
        """What inputs come from, without control inputs.

        Returns:
          (list of NodeDefs, sorted positions of the arguments among them).
        """
        nodes, arguments, stack = collections.OrderedDict(), set(), list(texts)
        while stack:
            text = stack.pop()
            if text[0] == "^":
                continue
            node = self.producer(text)
            if node is None:
                if text in self.arguments:
                    arguments.add(self.argument(text))
            elif node.name not in nodes:
                nodes[node.name] = node
                stack.extend(node.input)
        return list(nodes.values()), sorted(arguments)


class Bodies(object):
    """The main graph and all functions.

    Attributes:
      main: Body of the main graph.
      functions: dict of name to Body.
      index: the Functions.
    """

    def __init__(self, graph):
        self.index = Functions(graph.library)
        self.main = Body("", graph.nodes)
        self.functions = collections.OrderedDict(
            (name, _body(function)) for name, function in self.index.bodies.items()
        )
        self._calls = None

    def all(self):
        return [self.main] + list(self.functions.values())

    def calls_of(self, function):
        """The Calls of a function, by whatever attribute."""
        if self._calls is None:
            self._calls = collections.defaultdict(list)
            for body in self.all() if self.functions else ():
                for node in body.nodes.values():
                    for name in self.index.called_by(node):
                        self._calls[name].append(Call(body, node))
        return self._calls[function]


def _body(function):
    nodes = collections.OrderedDict((node.name, node) for node in function.node_def)
    results = [function.ret[arg.name] for arg in function.signature.output_arg]
    return Body(function.signature.name, nodes, [arg.name for arg in function.signature.input_arg], results)
