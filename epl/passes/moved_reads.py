"""Reads of data under another name, so that what is fetched of a read, or fed for it, is what a pass makes of it."""

from epl.graph.lazy import node_def_of
from epl.partition.emit import type_list
from epl.plan.facts.names import PREFIX


def moved(edit, node):
    """The name of a node like this one, under which data is read from now on."""
    copy = type(node_def_of(node))()
    copy.CopyFrom(node_def_of(node))
    copy.name = "%s_read/%s" % (PREFIX, node.name)
    return edit.add(copy).name


def hand_on(node, tensors, types, waits=()):
    """Makes of a node, in place, one that hands tensors on.

    Args:
      node: NodeDef of a graph that is edited.
      tensors: input strings; they become its outputs.
      types: their DataType numbers.
      waits: control inputs.
    """
    node.op = "IdentityN"
    del node.input[:]
    node.input.extend(list(tensors) + list(waits))
    for key in list(node.attr):
        if not key.startswith("_epl_"):
            del node.attr[key]
    node.attr["T"].CopyFrom(type_list(types))
