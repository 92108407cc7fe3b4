"""What a SaveV2 writes, as passes change it."""

from epl.graph.index import node_of
from epl.graph.node_defs import constant
from epl.graph.types import STRING
from epl.partition.checkpoints import FIRST_SAVED, strings_of


def saved_by(peek, node):
    """[(tensor, its name in the checkpoint, slice of it, DataType number)] of a SaveV2; None where the graph does not
    know the names.

    Args:
      peek: function from a node's name to its NodeDef.
      node: the NodeDef.
    """
    tensors = [text for text in node.input[FIRST_SAVED:] if text[0] != "^"]
    names, slices = [strings_of(peek(node_of(text)), len(tensors)) for text in node.input[1:FIRST_SAVED]]
    if names is None or slices is None:
        return None
    return list(zip(tensors, names, slices, node.attr["dtypes"].list.type))


def save_instead(edit, name, stem, saved, add=None):
    """Makes a SaveV2 write what `saved` has, as `saved_by` gives it.

    Args:
      edit: the Editor.
      name: of the SaveV2.
      stem: what the names of nodes begin with that are added.
      saved: as above.
      add: function (node, like) that adds a node for the sake of another one and returns its name; default: as it is.
    """
    node = edit.node(name)
    controls = [text for text in node.input if text[0] == "^"]
    tensors, names, slices, dtypes = map(list, zip(*saved))
    for position, kind, values in ((1, "names", names), (2, "slices", slices)):
        like = edit.peek(node_of(node.input[position]))
        made = constant("%s/%s" % (stem, kind), values, STRING, like.device)
        node.input[position] = add(made, like) if add is not None else edit.add(made).name
    node.input[FIRST_SAVED:] = tensors + controls
    node.attr["dtypes"].list.type[:] = dtypes
