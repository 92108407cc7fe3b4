"""How a node is copied under another name, for passes that copy the model or a part of it."""

from epl.graph.build import set_attr


def copy_node(node, rename, copied):
    """A copy whose names are its own: of the node, its loop's frame, its stateful resource, its colocation groups.

    The inputs stay those of the original; colocation with what is not copied is left out.

    Args:
      node: a NodeDef.
      rename: function from a name to the copy's.
      copied: container of the names of all nodes that are copied with it.
    """
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = rename(node.name)
    if "frame_name" in node.attr:
        set_attr(copy, "frame_name", rename(node.attr["frame_name"].s.decode()))
    if node.op == "VarHandleOp" or ("shared_name" in node.attr and node.attr["shared_name"].s):
        set_attr(copy, "shared_name", rename(node.attr["shared_name"].s.decode() or node.name))
    if "_class" in node.attr:
        _rename_groups(copy, node, rename, copied)
    return copy


def _rename_groups(copy, node, rename, copied):
    groups = [g.decode() for g in node.attr["_class"].list.s]
    kept = ["loc:@" + rename(g[5:]) for g in groups if g.startswith("loc:@") and g[5:] in copied]
    if kept:
        copy.attr["_class"].list.s[:] = [g.encode() for g in kept]
    else:
        del copy.attr["_class"]
