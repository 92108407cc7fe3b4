"""How a node is copied under another name, for passes that copy the model or a part of it."""

from epl.graph.build import set_attr


class Template(object):
    """A node of which copies are made, several as a rule: what there is to rename is looked up once.

    Args:
      node: a NodeDef.
      copied: container of the names of all nodes that are copied with it.
    """

    def __init__(self, node, copied):
        attrs = node.attr
        self._node = node
        self._frame = attrs["frame_name"].s.decode() if "frame_name" in attrs else None
        self._resource = attrs["shared_name"].s.decode() if "shared_name" in attrs else ""
        if node.op == "VarHandleOp":
            self._resource = self._resource or node.name
        self._groups = None
        if "_class" in attrs:
            groups = [g.decode() for g in attrs["_class"].list.s]
            self._groups = [g[5:] for g in groups if g.startswith("loc:@") and g[5:] in copied]

    def copy(self, rename):
        """A copy whose names are its own: of the node, its loop's frame, its stateful resource, its colocation groups.

        The inputs stay those of the original; colocation with what is not copied is left out.

        Args:
          rename: function from a name to the copy's.
        """
        copy = type(self._node)()
        copy.CopyFrom(self._node)
        copy.name = rename(self._node.name)
        if self._frame is not None:
            set_attr(copy, "frame_name", rename(self._frame))
        if self._resource:
            set_attr(copy, "shared_name", rename(self._resource))
        if self._groups:
            copy.attr["_class"].list.s[:] = [("loc:@" + rename(group)).encode() for group in self._groups]
        elif self._groups is not None:
            del copy.attr["_class"]
        return copy
