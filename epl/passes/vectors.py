"""Tensors as parts of a vector, and back: nodes that several passes add for what travels in one piece.

Each function takes `add`, a function (editor, node) that adds a node and returns its name.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, constant, make_node, set_attr
from epl.graph.types import DTYPE_BYTES
from epl.plan.memory import SHARES_MEMORY

_INT32, _INT64 = 3, 9
# As TensorFlow aligns tensors.
_LINE_BYTES = 64


def everywhere(edit, node):
    """Adds a node that all workers have."""
    set_attr(node, tags.EVERYWHERE, True)
    return edit.add(node).name


class Whereabouts(object):
    """Which workers have the nodes that a pass adds, as the Plan will say.

    Args:
      plan: the Plan.
    """

    def __init__(self, plan):
        self._plan, self._owners, self._keepers = plan, dict(plan.owners), dict(plan.keepers)

    def of_stage(self, name):
        """A function that adds what all workers have that have the stage of a node."""
        place = self._plan.owners.get(name)
        return everywhere if place is None else self._adding(place, None)

    def of_place(self, place):
        """A function that adds what all workers have that are at a place of a pipeline."""
        return self._adding(place, None)

    def of_worker(self, place, keeper):
        """A function that adds what the one worker has that is at a place of a pipeline, of the keeper's copy of it."""
        return self._adding(place, keeper)

    def of_keeper(self, keeper, name):
        """A function that adds what one of these alone has (`Plan.keepers`)."""
        return self._adding(self._plan.owners.get(name), keeper)

    def _adding(self, place, keeper):
        def add(edit, node):
            if place is not None:
                self._owners[node.name] = place
            if keeper is not None:
                self._keepers[node.name] = keeper
            return edit.add(node).name

        return add

    def planned(self):
        """The Plan that knows of them."""
        return replace(self._plan, owners=self._owners, keepers=self._keepers)


def empty(edit, name, dtype, device, add):
    """The name of a node with a vector of no elements."""
    shape = add(edit, constant(name + "/shape", [0], _INT32, device))
    return add(edit, make_node("Empty", name, [shape], device, dtype=Type(dtype), init=False))


def split(edit, name, vector, sizes, dtype, device, add):
    """The names of nodes with the parts of a vector, which have these sizes.

    A Slice whose ends lie on whole lines of memory shares the vector's; SplitV always copies parts of a vector.
    """
    found, start, line = [], 0, _LINE_BYTES // DTYPE_BYTES[dtype]
    for index, size in enumerate(sizes):
        stem = "%s/%d" % (name, index)
        begin = add(edit, constant(stem + "/begin", [start], _INT64, device))
        length = add(edit, constant(stem + "/size", [int(size)], _INT64, device))
        node = make_node("Slice", stem, [vector, begin, length], device, T=Type(dtype), Index=Type(_INT64))
        if start % line == 0 and size % line == 0:
            set_attr(node, tags.ROLE, SHARES_MEMORY)
        found.append(add(edit, node))
        start += int(size)
    return found


def reshape(edit, name, tensor, shape, dtype, device, add):
    """The name of a node that gives a tensor another shape."""
    dims = add(edit, constant(name + "/shape", [int(dim) for dim in shape], _INT32, device))
    node = make_node("Reshape", name, [tensor, dims], device, T=Type(dtype), Tshape=Type(_INT32))
    return add(edit, node)
