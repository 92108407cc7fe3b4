"""The main graph and the bodies of its functions, changed in one way: a one-shot iterator has its data sets in one."""

import collections

from epl.graph.index import format_input, parse_input


class EditedBodies(object):
    """Of a Graph that stays as it is.

    Args:
      graph: the Graph.
      device: of what is added to the main graph.
    """

    def __init__(self, graph, device):
        self._edit = graph.editor()
        self._library = type(graph.library)()
        self._library.CopyFrom(graph.library)
        self._main = _Main(graph, self._edit, device)
        self._functions = {function.signature.name: function for function in self._library.function}
        self._changed = {}

    def of(self, name):
        """What changes the body of a function; "": the main graph."""
        if not name:
            return self._main
        if name not in self._changed:
            self._changed[name] = _Function(self._functions[name])
        return self._changed[name]

    def finish(self):
        """The changed Graph."""
        self._edit.set_library(self._library)
        return self._edit.finish()


class _Main(object):
    """Adds nodes to the main graph."""

    def __init__(self, graph, edit, device):
        self._graph = graph
        self._edit = edit
        self._device = device

    def node(self, name):
        return self._edit.node(name)

    def add(self, node):
        node.device = self._device
        self._edit.add(node)

    def output(self, name, index, argument):
        del argument
        return format_input(name, index)

    def consumers(self, name):
        """(NodeDef, input position) of what takes the only output of a node."""
        return [
            (self._edit.node(consumer), position)
            for consumer, position in self._graph.consumers.get(name, ())
            if parse_input(self._graph.nodes[consumer].input[position]).index >= 0
        ]

    def replace_result(self, old, new):
        pass


class _Function(object):
    """Adds nodes to the body of a function."""

    def __init__(self, function):
        self._function = function
        self._nodes = collections.OrderedDict((node.name, node) for node in function.node_def)

    def node(self, name):
        return self._nodes[name]

    def add(self, node):
        self._function.node_def.add().CopyFrom(node)

    def output(self, name, index, argument):
        return "%s:%s:%d" % (name, argument, index)

    def consumers(self, name):
        return [
            (node, position)
            for node in self._function.node_def
            for position, text in enumerate(node.input)
            if text[0] != "^" and text.split(":")[0] == name
        ]

    def replace_result(self, old, new):
        """What the function returns of node `old` becomes `new`."""
        for key, text in self._function.ret.items():
            if text.split(":")[0] == old:
                self._function.ret[key] = new

    @property
    def result(self):
        """What the function returns, of one that returns one thing."""
        (text,) = self._function.ret.values()
        return text

    def set_result(self, text):
        (key,) = self._function.ret
        self._function.ret[key] = text
