"""Nodes that give tensors one after the other on dimension 0, whatever their shapes and types are."""

from epl.graph import types
from epl.graph.node_defs import Type, make_node
from epl.graph.types import STRING, UINT8
from epl.passes.nodes import tagged


def add_rows(edit, name, dtype, what, make):
    """Adds an EplAllGather, and what it needs: scalars are rows of one, strings travel as bytes.

    Args:
      edit: the editor of a graph.
      name: of the node that gives all rows.
      dtype: of the tensors.
      what: what error messages call them.
      make: function from a name and a type to the EplAllGather of the tensors.

    Returns:
      The nodes, of which the last one is `name`.
    """
    text = types.base(dtype) == STRING
    gather = make(name + "/packed" if text else name, UINT8 if text else dtype)
    made = []
    for index, tensor in enumerate(list(gather.input)):
        rows = "%s/rows_%d" % (name, index)
        if text:
            made.append(make_node("EplPackStrings", rows, [tensor], gather.device))
        else:
            made.append(tagged(make_node("EplRows", rows, [tensor], gather.device, T=Type(dtype)), "join"))
        gather.input[index] = rows
    made.append(gather)
    if text:
        made.append(make_node("EplUnpackStrings", name, [gather.name], gather.device, what=what))
    for node in made:
        edit.add(node)
    return made
