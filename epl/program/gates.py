r"""Operations that a step leaves out in which not all gradients are finite (`epl.program.program.FoundInf`).

    write   becomes   taken -> write (if_finite) -> done \
                                                          Merge -> NoOp, of the write's name
                                              left_out   /
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.lazy import copy_of


def ungated(program, wanted=None):
    """The Program in which some operations run in each step again, under their own names.

    Args:
      program: a Program.
      wanted: function from the name of an operation, that which has run in both cases, to whether it is meant; None:
        all.
    """
    edit, found_infs = program.graph.editor(), []
    for found_inf in program.scaled:
        kept = {}
        for name, around in found_inf.gates.items():
            last = around[-1]
            if wanted is not None and not wanted(last):
                kept[name] = around
                continue
            own = copy_of(edit.peek(name))
            own.name = last
            own.input[:] = [text for text in own.input if text != "^" + found_inf.taken]
            for other in (name,) + around[:-1]:
                _become_nothing(edit.node(other))
            edit.node(last).CopyFrom(own)
        found_infs.append(replace(found_inf, gates=kept))
    return replace(program.with_graph(edit.finish()), scaled=tuple(found_infs))


def gate_of(program):
    """dict of each operation that a step may leave out, by what has run in both cases, to the index of its FoundInf."""
    return {around[-1]: index for index, found_inf in enumerate(program.scaled) for around in found_inf.gates.values()}


def _become_nothing(node):
    """Makes of a node one that does nothing, of the same name and with its tags."""
    for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
        del node.attr[key]
    node.op = "NoOp"
    del node.input[:]
