"""Nodes that are made when they are looked at: of the many copies of a model, most workers need a few."""


class Lazy(object):
    """Stands for a NodeDef in a Graph; all but its name and its type is read from the NodeDef, which is made for that.

    Args:
      name: of the node.
      op: its operation type.
      recipe: function without arguments that returns the NodeDef, a new one each time.
      like: of copies of one node the same object, whichever it is: they have the types that the node takes and gives,
        and copies of its colocation groups, so that to check one of them is to check all; None: of no other's kind.
    """

    __slots__ = ("name", "op", "recipe", "like", "_made")

    def __init__(self, name, op, recipe, like=None):
        self.name = name
        self.op = op
        self.recipe = recipe
        self.like = like
        self._made = None

    def __getattr__(self, attribute):
        return getattr(self.made(), attribute)

    def made(self):
        """The NodeDef, the same one each time."""
        if self._made is None:
            self._made = self.recipe()
        return self._made

    def copied(self):
        """A NodeDef of the caller's own."""
        return self.recipe()


def node_def_of(node):
    """The NodeDef, of a NodeDef or of what stands for one."""
    return node.made() if type(node) is Lazy else node


def copy_of(node):
    """A NodeDef of the caller's own that is like a NodeDef, or as what stands for one will be."""
    if type(node) is Lazy:
        return node.copied()
    copy = type(node)()
    copy.CopyFrom(node)
    return copy
