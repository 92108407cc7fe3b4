"""The loops of control flow v1: what enters each of them, what leaves it, and which of it waits for which."""

import collections

from epl.rules import effects

# Names of nodes in the order of their creation: all `exits` wait for all `enters`.
Gate = collections.namedtuple("Gate", "enters exits")


def find_gates(graph, order):
    """A Gate for each loop of a graph, nested ones too: all that enters it, and all that leaves it.

    A loop is what holds together inside, not what has one frame's name: a graph that was imported twice has two loops
    of each name, of which one may need what the other gives.

    Args:
      graph: a Graph.
      order: its nodes, each behind those that it takes or waits for, but for the edges that lead back in loops.
    """
    enters, exits = graph.find(effects.ENTERS.__contains__), graph.find(effects.EXITS.__contains__)
    if not exits:
        return ()
    found, entering, leaving = _Insides(), frozenset(enters), frozenset(exits)
    given, left = {}, {}  # node to the inside in which its consumers are; Exit to that in which it is itself
    for name in order:
        inside = None
        for producer, _ in graph.inputs[name]:
            inside = found.join(inside, given.get(producer))
        if name in entering:
            given[name] = found.new(name, inside)
        elif inside is not None:
            if name in leaving:
                left[name], inside = inside, found.around(inside)
            if inside is not None:
                given[name] = inside
    for name in graph.find(effects.LOOP_EDGES.__contains__):
        for consumer, _ in graph.consumers.get(name, ()):
            found.join(given.get(name), given.get(consumer))
    loops = collections.OrderedDict()
    for name in enters:
        if name in given:
            loops.setdefault(found.of(given[name]), ([], []))[0].append(name)
    for name in exits:
        if name in left:
            loops[found.of(left[name])][1].append(name)
    return tuple(Gate(tuple(enters), tuple(exits)) for enters, exits in loops.values() if exits)


class _Insides(object):
    """Insides of loops, named by what enters them; two that hold together become one (disjoint sets)."""

    def __init__(self):
        self._joined = {}  # an inside to the one that it has become a part of
        self._around = {}  # an inside to the one around its loop, or None
        self._depth = {}

    def new(self, name, around):
        self._joined[name], self._around[name] = name, around
        self._depth[name] = 1 if around is None else 1 + self._depth[self.of(around)]
        return name

    def of(self, inside):
        """The one that stands for all that it was joined with."""
        while self._joined[inside] != inside:
            self._joined[inside] = inside = self._joined[self._joined[inside]]
        return inside

    def around(self, inside):
        return self._around[self.of(inside)]

    def join(self, one, other):
        """The inside of what takes something of both; None is outside of all loops."""
        if one is None or other is None:
            return other if one is None else one
        one, other = self.of(one), self.of(other)
        if one == other:
            return one
        if self._depth[one] != self._depth[other]:  # what comes from further out enters nothing here
            return max(one, other, key=self._depth.__getitem__)
        self._joined[other] = one
        self._around[one] = self.join(self._around[one], self._around[other])
        return one


def without_circles(graph, gates, names):
    """Gates of which nothing waits for itself.

    What enters a loop may wait for what leaves it, such as the counter that a gradient adds to the loop when it is
    built behind the loop's results. Such a result cannot wait for it. Neither do loops of which each waits for another.

    Args:
      graph: a Graph.
      gates: of `find_gates`.
      names: all nodes in circles through gates, and maybe others.
    """
    found = []
    for gate in gates:
        late = [] if names.isdisjoint(gate.enters) else graph.descendants(gate.exits).intersection(gate.enters)
        found.extend(_divided(gate, late, graph.ancestors(late)))
    return _without_other_circles(graph, tuple(found), names)


def _divided(gate, late, before):
    """A gate without what enters late, and one for that, of what is not `before` it."""
    early = Gate(tuple(name for name in gate.enters if name not in late), gate.exits)
    others = tuple(name for name in gate.exits if name not in before)
    gates = early, Gate(tuple(name for name in gate.enters if name in late), others)
    return [gate for gate in gates if gate.enters and gate.exits]


def _without_other_circles(graph, gates, names):
    """Gates that no strongly connected component of them and the graph goes through."""
    opened, consumers = collections.defaultdict(list), graph.consumers
    for number, gate in enumerate(gates):
        for name in gate.enters:
            opened[name].append(number)

    def following(node):
        if isinstance(node, int):
            return [name for name in gates[node].exits if name in names]
        back = graph.nodes[node].op in effects.LOOP_EDGES
        return ([] if back else [c for c, _ in consumers.get(node, ()) if c in names]) + opened.get(node, [])

    circle = _components([name for name in graph.nodes if name in names], following)
    found = []
    for number, gate in enumerate(gates):
        own = circle.get(number)
        late = {name for name in gate.enters if name in circle and circle[name] == own}
        found.extend(_divided(gate, late, {name for name in gate.exits if circle.get(name) == own}))
    return tuple(found)


def _components(nodes, following):
    """dict of node to the number of its strongly connected component (Tarjan's algorithm), of all that one comes to.

    Args:
      nodes: a list.
      following: function from a node to a list of others.
    """
    number, lowest, component, open_, path = {}, {}, {}, [], []
    for root in nodes:
        if root in number:
            continue
        path.append((root, None))
        while path:
            node, rest = path.pop()
            if rest is None:
                if node in number:
                    continue
                number[node] = lowest[node] = len(number)
                open_.append(node)
                rest = iter(following(node))
            deeper = None
            for other in rest:
                if other not in number:
                    deeper = other
                    break
                if other not in component:
                    lowest[node] = min(lowest[node], number[other])
            if deeper is not None:
                path.extend([(node, rest), (deeper, None)])
                continue
            if path:
                above = path[-1][0]
                lowest[above] = min(lowest[above], lowest[node])
            if lowest[node] == number[node]:
                while component.setdefault(open_[-1], number[node]) is not None and open_.pop() != node:
                    pass
    return component
