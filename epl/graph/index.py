"""A light, read-only index over a GraphDef: nodes by name, consumers, reachability. Knows nothing of parallelism."""

import collections
import functools
import itertools
import sys
import weakref

from epl.graph.frames import find_gates, without_circles
from epl.graph.lazy import Lazy, copy_of, node_def_of
from epl.graph.tags import phase
from epl.rules import effects

NodeInput = collections.namedtuple("NodeInput", "node index")  # index: output of the producer; -1 = control input


@functools.lru_cache(maxsize=1 << 18)  # the same few strings are asked for again and again
def parse_input(text):
    """Splits an input of a NodeDef: "a" -> (a, 0), "a:2" -> (a, 2), "^a" -> (a, -1). The name is interned."""
    if text[0] == "^":
        return NodeInput(sys.intern(text[1:]), -1)
    name, colon, index = text.rpartition(":")
    if colon and index.isdigit():
        return NodeInput(sys.intern(name), int(index))
    return NodeInput(sys.intern(text), 0)


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


def _inputs_of(node):
    return tuple(map(parse_input, node.input[:]))


class Edges(object):
    """The edges of a graph in Python's own objects: to read them from NodeDefs takes many times as long.

    Graphs that differ in other things than edges share them.

    Attributes:
      inputs: dict of node name to a tuple of NodeInputs, in creation order.
    """

    def __init__(self, inputs):
        self.inputs = inputs
        self._consumers = None
        self._data_consumers = None

    @property
    def consumers(self):
        if self._consumers is None:
            found = collections.defaultdict(list)
            for name, inputs in self.inputs.items():
                for position, (producer, _) in enumerate(inputs):
                    found[producer].append((name, position))
            self._consumers = found
        return self._consumers

    @property
    def data_consumers(self):
        """dict of node name to the names of those that take a tensor of it."""
        if self._data_consumers is None:
            found = collections.defaultdict(list)
            for name, inputs in self.inputs.items():
                for producer, index in inputs:
                    if index >= 0:
                        found[producer].append(name)
            self._data_consumers = found
        return self._data_consumers

    def changed(self, nodes, known):
        """The Edges after some nodes were changed or added.

        Args:
          nodes: dict of name to NodeDef; new ones in creation order.
          known: dict of name to the inputs of those new ones whose NodeDef need not be read.
        """
        before = self.inputs
        others = {name: _inputs_of(nodes[name]) for name in nodes.keys() - known.keys()}
        if not known and all(name in before and before[name] == inputs for name, inputs in others.items()):
            return self
        merged = dict(before)
        merged.update(zip(nodes, map(known.get, nodes)))  # for the order; what is not known follows
        merged.update(others)
        return Edges(merged)


class Graph(object):
    """Nodes by name in creation order. Never changed after it is made; `editor()` gives a copy that can be.

    Attributes:
      nodes: dict of name to NodeDef, or a Lazy that stands for one, in creation order; treat them as read-only, graphs
        share them.
      library: FunctionDefLibrary of the GraphDef.
      versions: VersionDef of the GraphDef.
      edges: the Edges; read from the nodes when none are given.
    """

    def __init__(self, nodes, library, versions, edges=None, made=None, by_type=None):
        self.nodes = nodes
        self.library = library
        self.versions = versions
        self._edges = edges
        self._made = made  # (reference to the Graph it was made from, names changed or added)
        self._creation_index = None
        self._order = None
        self._gates = None
        self._by_type = by_type
        self._ops = None
        self._phases = None
        self._tagged = {}

    @classmethod
    def from_graph_def(cls, graph_def):
        # A name is one object wherever it stands: looking it up compares addresses instead of characters.
        return cls({sys.intern(node.name): node for node in graph_def.node}, graph_def.library, graph_def.versions)

    def to_graph_def(self, make, names=None):
        """A GraphDef (made by calling `make`) of all nodes, or of those in `names`."""
        graph_def = make()
        chosen = self.nodes.values() if names is None else [self.nodes[n] for n in names]
        graph_def.node.extend(node_def_of(node) for node in chosen)
        graph_def.library.CopyFrom(self.library)
        graph_def.versions.CopyFrom(self.versions)
        return graph_def

    def changes_since(self, before):
        """What is not as it was in another Graph that has no node which this one lacks.

        Returns:
          dict of name to NodeDef of what was changed or added, in creation order, not of what was only placed
          elsewhere. In a Graph that was not made by an editor of `before` all that differs counts as changed.
        """
        if self._made is not None and self._made[0]() is before:
            names = self._made[1]
            return {name: node for name, node in self.nodes.items() if name in names} if names else {}
        nodes = before.nodes
        return {name: node for name, node in self.nodes.items() if nodes.get(name) is not node}

    def names_changed_since(self, before):
        """The same as names, and of a Graph that may have nodes which this one lacks: a set or a list."""
        if self._made is not None and self._made[0]() is before:
            return self._made[1]
        nodes = before.nodes
        return [name for name, node in self.nodes.items() if nodes.get(name) is not node]

    def has_type(self, op):
        """Whether there is a node of an operation type."""
        if self._by_type is None:
            self._by_type = _by_type(self.nodes.items())
        return op in self._by_type

    @property
    def ops(self):
        """dict of node name to its operation type: to read these from NodeDefs takes many times as long."""
        if self._ops is None:
            if self._by_type is None:
                self._by_type = _by_type(self.nodes.items())
            self._ops = {name: op for op, names in self._by_type.items() for name in names}
        return self._ops

    @property
    def phases(self):
        """dict of node name to the phase of the step (epl.graph.tags), as tags say."""
        if self._phases is None:
            self._phases = {name: phase(node) for name, node in self.nodes.items()}
        return self._phases

    def tagged(self, key):
        """The names of the nodes that have a tag, as a frozenset."""
        if key not in self._tagged:
            self._tagged[key] = frozenset(name for name, node in self.nodes.items() if key in node.attr)
        return self._tagged[key]

    @property
    def edges(self):
        if self._edges is None:
            self._edges = Edges({name: _inputs_of(node) for name, node in self.nodes.items()})
        return self._edges

    @property
    def inputs(self):
        """dict of node name to a tuple of its NodeInputs."""
        return self.edges.inputs

    @property
    def consumers(self):
        """dict of node name to a list of (consumer name, position in the consumer's inputs)."""
        return self.edges.consumers

    @property
    def creation_index(self):
        """dict of node name to its place in creation order."""
        if self._creation_index is None:
            self._creation_index = {name: i for i, name in enumerate(self.nodes)}
        return self._creation_index

    @property
    def gates(self):
        """The epl.graph.frames.Gates of loops of control flow v1."""
        if self._gates is None:
            self._arrange()
        return self._gates

    @property
    def order(self):
        """dict of node name to a number such that no edge but a loop's goes to a lower one (Kahn's algorithm).

        What leaves a loop comes after all that enters it, as far as that can be: TensorFlow begins no more than so many
        iterations (parallel_iterations) before it has all that the first of them takes.

        The same for the same graph; in the order of the numbers. What stands in a cycle outside of loops, or behind
        one, is left out.
        """
        if self._order is None:
            self._arrange()
        return self._order

    def _arrange(self):
        found, gates = _sorted(self, ()), ()
        if self.find(effects.ENTERS.__contains__):
            plain, gates = found, find_gates(self, found)
            found = _sorted(self, gates)
            if len(found) < len(plain):
                gates = without_circles(self, gates, frozenset(plain).difference(found))
                found = _sorted(self, gates)
        self._gates, self._order = gates, {name: number for number, name in enumerate(found)}

    def find(self, test):
        """Names of the nodes whose operation type passes a test, in creation order.

        Args:
          test: function from an operation type to bool.
        """
        if self._by_type is None:
            self._by_type = _by_type(self.nodes.items())
        found = [names for op, names in self._by_type.items() if test(op)]
        return list(found[0]) if len(found) == 1 else self.in_order(itertools.chain.from_iterable(found))

    def ancestors(self, names, stop=(), data_only=False):
        """All nodes that `names` need, themselves included; does not look behind nodes in `stop`.

        Args:
          names: node names.
          stop: container of node names at which the walk ends (they are included).
          data_only: leave control inputs out.
        """
        inputs = self.inputs
        if data_only:
            return _reached(
                {name for name in names if name in inputs},
                stop,
                lambda found: {producer for name in found for producer, index in inputs[name] if index >= 0},
            )
        return _reached(
            {name for name in names if name in inputs},
            stop,
            lambda found: {producer for name in found for producer, _ in inputs[name]},
        )

    def descendants(self, names, stop=(), data_only=False):
        """All nodes that depend on `names`, themselves included; does not look beyond nodes in `stop`."""
        if data_only:
            consumers = self.edges.data_consumers
            return _reached(
                set(names), stop, lambda found: {c for name in found if name in consumers for c in consumers[name]}
            )
        consumers = self.consumers
        return _reached(
            set(names), stop, lambda found: {c for name in found if name in consumers for c, _ in consumers[name]}
        )

    def in_order(self, names):
        """`names` sorted by creation, so that every process sees the same order."""
        return sorted(names, key=self.creation_index.__getitem__)

    def editor(self):
        return Editor(self)


def _sorted(graph, gates):
    """A graph's nodes, each behind those that it needs but in a loop's last iteration, and behind what gates say."""
    consumers, back = graph.consumers, set(graph.find(effects.LOOP_EDGES.__contains__))
    waiting = {name: len(inputs) for name, inputs in graph.inputs.items()}
    for name in back:
        for consumer, _ in consumers.get(name, ()):
            waiting[consumer] -= 1
    gate_of, closed = {}, [len(gate.enters) for gate in gates]  # for each gate those to come
    for number, gate in enumerate(gates):
        gate_of.update((name, number) for name in gate.enters)
        for name in gate.exits:
            waiting[name] += 1
    ready = [name for name, count in waiting.items() if count == 0]
    for name in ready:  # it grows while it is gone through
        if name in back:
            continue
        following = [consumer for consumer, _ in consumers.get(name, ())]
        if name in gate_of:
            closed[gate_of[name]] -= 1
            following += gates[gate_of[name]].exits if not closed[gate_of[name]] else ()
        for consumer in following:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                ready.append(consumer)
    return ready


def _by_type(items):
    """dict of operation type to the names of its nodes, of (name, NodeDef) pairs."""
    found = collections.defaultdict(list)
    for name, node in items:
        found[node.op].append(name)
    return found


def _reached(names, stop, neighbours):
    """All that one comes to from a set of names, themselves included; not from those in `stop`.

    Args:
      neighbours: function from a collection of names to the set of those next to any of them.
    """
    seen, latest = set(names), names
    while latest:
        latest = neighbours([name for name in latest if name not in stop] if stop else latest)
        latest -= seen
        seen |= latest
    return seen


class Editor(object):
    """Makes a new Graph out of an old one. Nodes that are not touched are shared, so large constants are not copied."""

    def __init__(self, graph):
        self._graph = graph
        self._nodes = dict(graph.nodes)
        self._own = {}
        self._inputs = {}  # of those that were added with them and not changed since
        self._moved = set()
        self._library = graph.library

    def __contains__(self, name):
        return name in self._nodes

    def peek(self, name):
        """The node as it stands; not to be changed."""
        return self._nodes[name]

    def node(self, name):
        """The node, made this editor's own so that it may be changed."""
        if name not in self._own:
            self._own[name] = self._nodes[name] if name in self._moved else self._copy(name)
            self._moved.discard(name)
        elif type(self._nodes[name]) is Lazy:
            self._own[name] = self._copy(name)
        self._inputs.pop(name, None)
        return self._nodes[name]

    def _copy(self, name):
        self._nodes[name] = copy = copy_of(self._nodes[name])
        return copy

    def move(self, name, device, groups, tag=None):
        """Places a node elsewhere; what it takes and computes stays the same, and need not be checked again.

        Args:
          name: of the node.
          device: device string.
          groups: function from its colocation groups (bytes) to those of them that it keeps.
          tag: a boolean attribute that begins with an underscore and becomes true, or None.
        """
        if name in self._own:
            node = self.node(name)
        elif name in self._moved:
            node = self._nodes[name]
        else:
            node = self._copy(name)
            self._moved.add(name)
        node.device = device
        if tag is not None:
            node.attr[tag].b = True
        if "_class" in node.attr:
            named = node.attr["_class"].list.s[:]
            kept = groups(named)
            if not kept:
                del node.attr["_class"]
            elif kept != named:
                node.attr["_class"].list.s[:] = kept

    def add(self, node):
        """Adds a NodeDef; its name must be free."""
        name = sys.intern(node.name)
        if name in self._nodes:
            raise ValueError("a node named '%s' exists already" % name)
        self._nodes[name] = self._own[name] = node
        return node

    def add_all(self, nodes, inputs):
        """Adds many NodeDefs.

        Args:
          nodes: dict of their names, interned, to the NodeDefs or to a Lazy each.
          inputs: dict of name to a tuple of NodeInputs.
        """
        taken = nodes.keys() & self._nodes.keys()
        if taken:
            raise ValueError("a node named '%s' exists already" % min(taken))
        self._nodes.update(nodes)
        self._own.update(nodes)
        self._inputs.update(inputs)

    def set_input(self, name, position, text):
        self.node(name).input[position] = text

    def set_library(self, library):
        self._library = library

    def finish(self):
        """The new Graph. The editor must not be used any more."""
        graph = self._graph
        edges = graph.edges.changed(self._own, self._inputs)
        made = weakref.ref(graph), frozenset(self._own)
        return Graph(self._nodes, self._library, graph.versions, edges, made, self._types(graph))

    def _types(self, graph):
        """The new Graph's nodes by type, where the old one's are known and none of them has become another."""
        if graph._by_type is None:
            return None
        own, before = self._own, graph.nodes
        if any(own[name].op != before[name].op for name in own.keys() & before.keys()):
            return None
        found = dict(graph._by_type)
        added = _by_type([(name, node) for name, node in own.items() if name not in before])
        found.update((op, found.get(op, []) + names) for op, names in added.items())
        return found
