"""A light, read-only index over a GraphDef: nodes by name, consumers, reachability. Knows nothing of parallelism."""

import collections
import functools

NodeInput = collections.namedtuple("NodeInput", "node index")  # index: output of the producer; -1 = control input


@functools.lru_cache(maxsize=1 << 18)  # the same few strings are asked for again and again
def parse_input(text):
    """Splits an input of a NodeDef: "a" -> (a, 0), "a:2" -> (a, 2), "^a" -> (a, -1)."""
    if text[0] == "^":
        return NodeInput(text[1:], -1)
    name, colon, index = text.rpartition(":")
    if colon and index.isdigit():
        return NodeInput(name, int(index))
    return NodeInput(text, 0)


@functools.lru_cache(maxsize=1 << 18)
def node_of(text):
    """The node name of an input or a tensor name."""
    if text[0] == "^":
        return text[1:]
    name, colon, index = text.rpartition(":")
    return name if colon and index.isdigit() else text


def format_input(node, index):
    """The inverse of parse_input, in TensorFlow's own spelling (no ":0")."""
    if index < 0:
        return "^" + node
    return node if index == 0 else "%s:%d" % (node, index)


def canonical_tensor(name):
    """A tensor name as NodeDef inputs spell it: "a:0" -> "a"."""
    return format_input(*parse_input(name))


class Graph(object):
    """Nodes by name in creation order. Never changed after it is made; `editor()` gives a copy that can be.

    Attributes:
      nodes: ordered dict of name to NodeDef; treat the NodeDefs as read-only, they are shared between graphs.
      library: FunctionDefLibrary of the GraphDef.
      versions: VersionDef of the GraphDef.
    """

    def __init__(self, nodes, library, versions):
        self.nodes = nodes
        self.library = library
        self.versions = versions
        self._consumers = None
        self._positions = None

    @classmethod
    def from_graph_def(cls, graph_def):
        return cls(collections.OrderedDict((n.name, n) for n in graph_def.node), graph_def.library, graph_def.versions)

    def to_graph_def(self, make, names=None):
        """A GraphDef (made by calling `make`) of all nodes, or of those in `names`."""
        graph_def = make()
        chosen = self.nodes.values() if names is None else [self.nodes[n] for n in names]
        graph_def.node.extend(chosen)
        graph_def.library.CopyFrom(self.library)
        graph_def.versions.CopyFrom(self.versions)
        return graph_def

    @property
    def consumers(self):
        """dict of node name to a list of (consumer name, position in the consumer's inputs)."""
        if self._consumers is None:
            found = collections.defaultdict(list)
            for node in self.nodes.values():
                for position, text in enumerate(node.input):
                    found[node_of(text)].append((node.name, position))
            self._consumers = found
        return self._consumers

    @property
    def positions(self):
        """dict of node name to its place in creation order."""
        if self._positions is None:
            self._positions = {name: i for i, name in enumerate(self.nodes)}
        return self._positions

    def ancestors(self, names, stop=(), data_only=False):
        """All nodes that `names` need, themselves included; does not look behind nodes in `stop`.

        Args:
          names: node names.
          stop: container of node names at which the walk ends (they are included).
          data_only: leave control inputs out.
        """
        nodes = self.nodes
        seen = set()
        stack = [n for n in names if n in nodes]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in stop:
                continue
            for text in nodes[name].input:
                if data_only and text[0] == "^":
                    continue
                producer = node_of(text)
                if producer not in seen:
                    stack.append(producer)
        return seen

    def descendants(self, names, stop=(), data_only=False):
        """All nodes that depend on `names`, themselves included; does not look beyond nodes in `stop`."""
        consumers = self.consumers
        seen = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in stop:
                continue
            for consumer, position in consumers.get(name, ()):
                if consumer in seen or (data_only and self.nodes[consumer].input[position][0] == "^"):
                    continue
                stack.append(consumer)
        return seen

    def in_order(self, names):
        """`names` sorted by creation, so that every process sees the same order."""
        positions = self.positions
        return sorted(names, key=positions.__getitem__)

    def editor(self):
        return Editor(self)


class Editor(object):
    """Makes a new Graph out of an old one. Nodes that are not touched are shared, so large constants are not copied."""

    def __init__(self, graph):
        self._graph = graph
        self._nodes = collections.OrderedDict(graph.nodes)
        self._own = set()
        self._library = graph.library

    def __contains__(self, name):
        return name in self._nodes

    def peek(self, name):
        """The node as it stands; not to be changed."""
        return self._nodes[name]

    def node(self, name):
        """The node, made this editor's own so that it may be changed."""
        if name not in self._own:
            copy = type(self._nodes[name])()
            copy.CopyFrom(self._nodes[name])
            self._nodes[name] = copy
            self._own.add(name)
        return self._nodes[name]

    def add(self, node):
        """Adds a NodeDef; its name must be free."""
        if node.name in self._nodes:
            raise ValueError("a node named '%s' exists already" % node.name)
        self._nodes[node.name] = node
        self._own.add(node.name)
        return node

    def set_input(self, name, position, text):
        self.node(name).input[position] = text

    def set_library(self, library):
        self._library = library

    def finish(self):
        """The new Graph. The editor must not be used any more."""
        return Graph(self._nodes, self._library, self._graph.versions)
