"""How a node is copied under another name, for passes that copy the model or a part of it."""

from epl.graph.lazy import copy_of
from epl.graph.node_defs import make_node, set_attr


class Template(object):
    """A node of which copies are made, several as a rule: what there is to rename is looked up once.

    Args:
      node: a NodeDef.
      copied: container of the names of all nodes that are copied with it.
    """

    def __init__(self, node, copied):
        self.name = node.name
        bare = copy_of(node)
        bare.ClearField("name")
        bare.ClearField("input")
        attrs = bare.attr
        self._frame = attrs["frame_name"].s.decode() if "frame_name" in attrs else None
        self._resource = attrs["shared_name"].s.decode() if "shared_name" in attrs else ""
        if node.op == "VarHandleOp":
            self._resource = self._resource or node.name
        self._groups = []
        if "_class" in attrs:
            groups = [g.decode() for g in attrs["_class"].list.s]
            self._groups = [g[5:] for g in groups if g.startswith("loc:@") and g[5:] in copied]
            del attrs["_class"]
        # To read the rest of a node from bytes takes half as long as to copy it.
        self._bare = bare.SerializeToString()
        self._make = type(bare)

    def copy(self, rename, inputs, marks=b""):
        """A copy whose names are its own: of the node, its loop's frame, its stateful resource, its colocation groups.

        Colocation with what is not copied is left out.

        Args:
          rename: function from a name to the copy's.
          inputs: texts of the copy's inputs.
          marks: attributes that it has besides, see `marks_of`.
        """
        copy = self._make(name=rename(self.name), input=inputs)
        groups = _class_of(map(rename, self._groups)) if self._groups else b""
        copy.MergeFromString(self._bare + groups + marks)
        if self._frame is not None:
            set_attr(copy, "frame_name", rename(self._frame))
        if self._resource:
            set_attr(copy, "shared_name", rename(self._resource))
        return copy


def marks_of(**attrs):
    """Attributes for many copies, as the bytes of a NodeDef that has nothing else: joined to another's they add up.

    Args:
      **attrs: as for `make_node`.
    """
    return make_node("", "", **attrs).SerializeToString()


def _class_of(groups):
    """The same with "_class", of colocation groups; written by hand, as it is another one for each copy."""
    named = b"".join([_field(2, b"loc:@" + group.encode()) for group in groups])  # AttrValue.ListValue.s
    return _field(5, _field(1, b"_class") + _field(2, _field(1, named)))  # an entry of NodeDef.attr; AttrValue.list


def _field(number, content):
    """A field of a message in protobuf's encoding, with its length before it."""
    size, length = len(content), b""
    while size > 127:
        length += bytes(((size & 127) | 128,))
        size >>= 7
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + content
