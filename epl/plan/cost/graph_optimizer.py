"""What TensorFlow's graph optimizer leaves of a graph: constants folded, and one operation of those that are alike.

It computes what follows from constants before the first step. Operations that compute the same of the same become one,
whatever made them: two losses of the same scores, say, whose gradients then go side by side.
"""

import collections

from epl.graph import tags
from epl.graph.index import NodeInput
from epl.graph.lazy import node_def_of
from epl.rules import effects, tensors

_OF_LOOPS_AND_BRANCHES = frozenset("Enter Exit NextIteration Merge Switch LoopCond".split())
_COLOCATION = "_class"  # is gone when operations are compared
_LARGEST_CONSTANT = 100 << 10  # bytes that it makes of fewer


# serves: dict of a node's name to that of the one that serves in its place, itself for most; inputs: dict of those that
# are left to the tuple of their NodeInputs; folded: frozenset of those among them that are constants by then.
Optimized = collections.namedtuple("Optimized", "serves inputs folded")


def optimized(graph, names, inputs, stay, device_of, num_bytes, shapes_of, is_reversed=False):
    """The graph as it is run.

    Args:
      graph: the epl.graph.index.Graph.
      names: names of nodes, each behind those that it takes of.
      inputs: dict of each to its NodeInputs.
      stay: names of those that are to be what they are.
      device_of: function of a node's name to its device.
      num_bytes: function of a node's name to the bytes of its outputs, a list.
      shapes_of: function of the name of a node that tells of the shapes of tensors alone, to what it tells; None where
        that is not known before the step, and for other nodes.
      is_reversed: of operations that are alike only once it is seen that what they wait for are constants, those
        that take of the later ones come first.

    Returns:
      An Optimized; its `inputs` are in the order in which nodes are looked at.
    """
    serves, left, folded = {}, {}, set()
    constants = _Constants(graph, num_bytes, shapes_of)
    alike = _Alike(graph, constants.before)
    for name in names:
        first, taken = name, tuple(NodeInput(serves.get(each.node, each.node), each.index) for each in inputs[name])
        constants.note(name, taken)
        if name not in stay and _is_pure(graph.nodes[name].op):
            value = constants.value(name, taken)
            if value is None:
                first = alike.first(name, taken, device_of(name))
            else:
                first = alike.first_constant(name, value, taken, device_of(name))
                folded.add(first)
        serves[name] = first
        if first == name:
            left[name] = taken
    places = {name: place for place, name in enumerate(graph.in_order(left))}
    if is_reversed:
        for first, others in alike.late.items():
            _reverse(places, [_takers(graph, each, left) for each in [first] + others])
    left = {name: left[name] for name in sorted(left, key=places.__getitem__)}
    return Optimized(serves, left, frozenset(folded))


def _takers(graph, name, left):
    return [each for each, _ in graph.consumers.get(name, ()) if each in left]


def _reverse(places, groups):
    """Lets the last group of some names come first, in the places that all of them have."""
    if sum(map(bool, groups)) > 1:
        names = list(dict.fromkeys(name for group in reversed(groups) for name in group))
        places.update(zip(names, sorted(places[name] for name in names)))


def _is_pure(op):
    return op not in _OF_LOOPS_AND_BRANCHES and effects.kind_of(op) in (None, effects.PURE)


def _attributes(node, with_tags=True):
    """Something comparable."""
    return tuple(
        sorted(
            (key, value.SerializeToString(deterministic=True))
            for key, value in node_def_of(node).attr.items()
            if key != _COLOCATION and (with_tags or not key.startswith(tags.PREFIX))
        )
    )


class _Constants(object):
    """What is known of constants, and of what follows from them."""

    def __init__(self, graph, num_bytes, shapes_of):
        self._graph, self._num_bytes, self._shapes_of = graph, num_bytes, shapes_of
        self._values, self._numbers = {}, {}  # a node to the number of its value, and that to its number
        self._waits = {}  # a constant, or what only waits, to those that it comes after

    def before(self, taken):
        """Names of those that inputs come after, besides constants and what only waits."""
        return frozenset(name for each in taken for name in self._waits.get(each.node, (each.node,)))

    def note(self, name, taken):
        """Of a node that may be a constant or may only wait."""
        node = self._graph.nodes[name]
        if node.op in ("Const", "NoOp"):
            self._waits[name] = self.before(taken)
        if node.op == "Const":
            value = node.attr["value"].tensor.SerializeToString(deterministic=True)
            self._values[name] = self._number(("Const", value))

    def value(self, name, taken):
        """The number of what a node gives, the same for equal ones; None unless it is folded."""
        node, data = self._graph.nodes[name], [each for each in taken if each.index >= 0]
        shapes = self._shapes_of(name)
        if not data or node.op == "Const":
            return None
        if shapes is None and (not all(each.node in self._values for each in data) or not self._is_small(name, data)):
            return None
        self._waits[name] = self.before(taken)
        given = shapes if shapes is not None else tuple((self._values[each.node], each.index) for each in data)
        same = node.op in tensors.SAME and data[0].index == 0
        # Constants that the graph optimizer makes have no tags.
        self._values[name] = given[0][0] if same else self._number((node.op, _attributes(node, with_tags=False), given))
        return self._values[name]

    def _is_small(self, name, data):
        size = sum(self._num_bytes(name))
        return size <= max(_LARGEST_CONSTANT, sum(sum(self._num_bytes(each.node)) for each in data))

    def _number(self, value):
        return self._numbers.setdefault(value, len(self._numbers))


class _Alike(object):
    """The first of all that are alike.

    Attributes:
      late: dict of such a first one to those that are alike only without the constants that they wait for.
    """

    def __init__(self, graph, before):
        self._graph, self._before, self._constants = graph, before, {}
        self._alone, self._among, self._waited = {}, {}, {}
        self.late = collections.defaultdict(list)

    def first(self, name, taken, device):
        """Tensors count in order; what is waited for only, in any."""
        node, controls = self._graph.nodes[name], [each for each in taken if each.index < 0]
        data = tuple(each for each in taken if each.index >= 0)
        key = (node.op, device, data, self._before(controls))
        found = self._alone.setdefault(key, name)
        if found != name:  # attributes are looked at only where there are several
            among = self._among.setdefault(key, {})
            if not among:
                among[_attributes(self._graph.nodes[found])] = found
            found = among.setdefault(_attributes(node), name)
        if found == name:
            self._waited[name] = set(controls)
        elif set(controls) != self._waited[found] or any(each.node in self.late for each in data):
            self.late[found].append(name)
        return found

    def first_constant(self, name, value, taken, device):
        return self._constants.setdefault((value, self._before(taken), device), name)
