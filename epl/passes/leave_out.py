r"""Operations that a step leaves out in which not all gradients are finite (`epl.program.program.Verdict`).

    write   becomes   taken -> write (if_finite) -> done \
                                                          Merge -> NoOp, of the write's name
                                              left_out   /
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, make_node
from epl.graph.lazy import copy_of
from epl.graph.types import BOOL


def gate(node, names, taken, left_out, waits=()):
    """NodeDefs that stand in the place of an operation that gives nothing.

    Args:
      node: NodeDef of the operation.
      names: of what runs where all is finite, of what says that it has, and of what has run in both cases.
      taken, left_out: the nodes of a Verdict.
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


def ungated(program, wanted=None):
    """The Program in which some operations run in each step again, under their own names.

    Args:
      program: a Program.
      wanted: function from the name of an operation, that which has run in both cases, to whether it is meant; None:
        all.
    """
    edit, verdicts = program.graph.editor(), []
    for verdict in program.scaled:
        kept = {}
        for name, around in verdict.gates.items():
            last = around[-1]
            if wanted is not None and not wanted(last):
                kept[name] = around
                continue
            own = copy_of(edit.peek(name))
            own.name = last
            own.input[:] = [text for text in own.input if text != "^" + verdict.taken]
            for other in (name,) + around[:-1]:
                become(edit.node(other), "NoOp", [])
            edit.node(last).CopyFrom(own)
        verdicts.append(replace(verdict, gates=kept))
    return replace(program.with_graph(edit.finish()), scaled=tuple(verdicts))


def gate_of(program):
    """dict of each operation that a step may leave out, by what has run in both cases, to the index of its Verdict."""
    return {around[-1]: index for index, verdict in enumerate(program.scaled) for around in verdict.gates.values()}


def become(node, op, inputs, **attrs):
    """Makes of a node another one of the same name, with its tags."""
    made = make_node(op, node.name, inputs, **attrs)
    for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
        del node.attr[key]
    node.op = op
    node.input[:] = made.input
    for key, value in made.attr.items():
        node.attr[key].CopyFrom(value)
