"""Lets operations run only in steps in which all gradients are finite (epl.program.gates)."""

from epl.graph.lazy import copy_of
from epl.graph.node_defs import Type, make_node
from epl.graph.types import BOOL


def gate(node, names, taken, left_out, waits=()):
    """NodeDefs that stand in the place of an operation that gives nothing.

    Args:
      node: NodeDef of the operation.
      names: of what runs where all is finite, of what says that it has, and of what has run in both cases.
      taken, left_out: the nodes of a FoundInf.
      waits: control inputs of the last one.

    Returns:
      A list; the first one does what the operation does, the last one has its name and has run in both cases.
    """
    own, done, both = copy_of(node), names[1], names[2]
    own.name = names[0]
    own.input.append("^" + taken)
    return [
        own,
        make_node("Identity", done, [taken, "^" + own.name], node.device, T=Type(BOOL)),
        make_node("Merge", both, [done, left_out], node.device, N=2, T=Type(BOOL)),
        make_node("NoOp", node.name, ["^" + both] + list(waits), node.device),
    ]
