"""Makes the copies of many nodes, for micro-batches and for devices: each of them only when it is looked at.

A copy of a copy is made from what the first was made from, so it costs what any copy costs.
"""

import operator
import sys

from epl.graph.index import NodeInput, format_input
from epl.graph.lazy import Lazy
from epl.passes.copies.template import Template


class Stamp(object):
    """What copies are made of.

    Args:
      nodes: dict of the names of the nodes that are copied to these (NodeDefs, or a Lazy each), in creation order.
      inputs: function from a name to that node's NodeInputs.
    """

    def __init__(self, nodes, inputs):
        self._slots = slots = {}
        self._sources = []
        for name, node in nodes.items():
            pick = _picker([slots.setdefault(each, len(slots)) for each in inputs(name)])
            self._sources.append((name, _source_of(node, nodes), pick))

    def copies(self, edit, prefix, marks, adjust=None):
        """Adds a copy of each node to an Editor.

        Args:
          edit: the Editor.
          prefix: what the copies' names begin with.
          marks: attributes that they all have, see epl.passes.copies.template.marks_of.
          adjust: function of (a copy that was just made, the original's name, the original's device) that changes the
            copy further.

        Returns:
          dict of original to copy, by name.
        """
        names = {name: sys.intern(prefix + name) for name, _, _ in self._sources}
        inputs = [NodeInput(names.get(producer, producer), index) for producer, index in self._slots]
        nodes, picked = {}, {}
        for original, source, pick in self._sources:
            name = names[original]
            picked[name] = own = pick(inputs)
            nodes[name] = Lazy(name, source.op, _Recipe(source, prefix, marks, own, original, adjust))
        edit.add_all(nodes, picked)
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


class _Recipe(object):
    """Makes a copy. What it is made of can be read from it, for copies of the copy."""

    __slots__ = ("source", "prefix", "marks", "inputs", "original", "adjust")

    def __init__(self, source, prefix, marks, inputs, original, adjust):
        above = source if isinstance(source, _Recipe) else None
        self.source = above.source if above else source
        self.prefix = prefix + above.prefix if above else prefix
        self.marks = above.marks + marks if above else marks
        self.inputs, self.original, self.adjust = inputs, original, adjust

    @property
    def op(self):
        return self.source.op

    def __call__(self):
        rename, inputs = self.prefix.__add__, [format_input(*each) for each in self.inputs]
        copy = self.source.template.copy(rename, inputs, self.marks)
        if self.adjust is not None:
            self.adjust(copy, self.original, self.source.device)
        return copy


def _source_of(node, copied):
    """A _Source, or the _Recipe of what has not been made."""
    recipe = node.recipe if type(node) is Lazy else None
    return recipe if isinstance(recipe, _Recipe) and recipe.adjust is None else _Source(node, copied)


def _picker(positions):
    """A function that gives a tuple of what stands at some positions of a list."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: tuple(values[position] for position in positions)
