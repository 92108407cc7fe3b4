"""Makes the copies of many nodes, for micro-batches and for devices: each of them only when it is looked at.

A copy of a copy is made from what the first was made from, so it costs what any copy costs.
"""

import functools
import itertools
import operator
import sys
from typing import Any, Callable, NamedTuple, Optional, Tuple

from epl.graph.index import NodeInput, format_input
from epl.graph.lazy import Lazy
from epl.passes.node_copies import Template


class Stamp(object):
    """What copies are made of.

    Args:
      nodes: dict of the names of the nodes that are copied to these (NodeDefs, or a Lazy each), in creation order.
      inputs: function from a name to that node's NodeInputs.
    """

    def __init__(self, nodes, inputs):
        self._names, self._types, slots = list(nodes), [node.op for node in nodes.values()], {}
        self._sources = [_source_of(node, nodes) for node in nodes.values()]
        self._likes = [_first_source(source) for source in self._sources]
        self._picks = [_picker([slots.setdefault(each, len(slots)) for each in inputs(name)]) for name in nodes]
        self._producers, self._indices = zip(*slots) if slots else ((), ())

    def copies(self, edit, prefix, marks, adjust=None):
        """Adds a copy of each node to an Editor.

        Args:
          edit: the Editor.
          prefix: what the copies' names begin with.
          marks: attributes that they all have, see epl.passes.node_copies.marks_of.
          adjust: function of (a copy that was just made, the original's name, its type, its device) that changes the
            copy further.

        Returns:
          dict of original to copy, by name.
        """
        # There may be a million of them: what can be done without a line of Python for each is.
        originals = self._names
        names = dict(zip(originals, map(sys.intern, map(prefix.__add__, originals))))
        inputs = list(map(_as_input, zip(map(names.get, self._producers, self._producers), self._indices)))
        picked = [pick(inputs) for pick in self._picks]
        same = map(itertools.repeat, (prefix, marks))
        recipes = map(_as_recipe, zip(self._sources, *same, picked, originals, itertools.repeat(adjust)))
        nodes = dict(zip(names.values(), map(Lazy, names.values(), self._types, recipes, self._likes)))
        edit.add_all(nodes, dict(zip(nodes, picked)))
        return names


class _Source(object):
    """The node at the beginning: what its copies have in common.

    Args:
      node: a NodeDef.
      copied: container of the names of all that is copied with it.
    """

    __slots__ = ("op", "device", "template")

    def __init__(self, node, copied):
        self.op, self.device, self.template = node.op, node.device, Template(node, copied)


class _Recipe(NamedTuple):
    """Makes a copy. What it is made of can be read from it, for copies of the copy.

    Attributes:
      source: a _Source, or the _Recipe of what it is a copy of.
      prefix, marks, adjust: as `Stamp.copies` has them.
      inputs: NodeInputs.
      original: name of the node that is copied.
    """

    source: Any
    prefix: str
    marks: bytes
    inputs: Tuple[NodeInput, ...]
    original: str
    adjust: Optional[Callable]

    def __call__(self):
        source, prefix, marks = self[:3]
        while type(source) is _Recipe:
            source, prefix, marks = source.source, prefix + source.prefix, source.marks + marks
        copy = source.template.copy(prefix.__add__, list(itertools.starmap(format_input, self.inputs)), marks)
        if self.adjust is not None:
            self.adjust(copy, self.original, source.op, source.device)
        return copy


# As the constructors do it, from a tuple of all attributes.
_as_input, _as_recipe = (functools.partial(tuple.__new__, kind) for kind in (NodeInput, _Recipe))


def _source_of(node, copied):
    """A _Source, or the _Recipe of what has not been made."""
    recipe = node.recipe if type(node) is Lazy else None
    return recipe if isinstance(recipe, _Recipe) and recipe.adjust is None else _Source(node, copied)


def _first_source(source):
    """The _Source that a copy, or a copy of a copy, is made from."""
    while type(source) is _Recipe:
        source = source.source
    return source


def _picker(slots):
    """A function that gives a tuple of what stands in some slots of a list."""
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    return lambda values: tuple(values[slot] for slot in slots)
