"""What a pass may do to a graph, whatever it does it for: which nodes it adds, and what of others it changes."""

import re
from dataclasses import dataclass
from typing import FrozenSet

from epl.rules import effects

# What nodes that are added do, beside computing outputs from inputs: the kinds of epl.rules.effects, and these.
PLAIN = "plain"
EXCHANGE = "exchange"  # between workers, users' own collectives included
_EXCHANGES = re.compile(
    r"Epl(Sparse)?(All(Gather|Reduce|ToAll)|Reduce(Scatter)?|Broadcast(Send|Receive)?|Send|Recv|Barrier)$"
)
_SHOWN = 5  # problems of one kind
_LOOKED_AT = 64  # nodes that a pass has changed, of which attributes are compared

VARIABLE, READ, WRITE, SOURCE, FED = effects.VARIABLE, effects.READ, effects.WRITE, effects.SOURCE, effects.FED
DATA_SET, EFFECT, FILE_WRITE, IMPURE = effects.DATA_SET, effects.EFFECT, effects.FILE_WRITE, effects.IMPURE
SEEDED, RUN = effects.SEEDED, effects.RUN


@dataclass(frozen=True)
class Footprint:
    """Nothing of it is allowed that is not said.

    Attributes:
      adds: kinds of nodes that may be added.
      copies: whether nodes of types that the graph has already may be added besides, whatever they do.
      becomes: types that nodes may change to, with what they take; None: any.
      rewires: whether nodes may take other tensors than before.
      waits: whether they may wait for other nodes than before, which those may that take other tensors.
      sets: whether their attributes may change, tags included.
      removes: whether nodes may be gone.
    """

    adds: FrozenSet[str] = frozenset()
    copies: bool = False
    becomes: FrozenSet[str] = frozenset()
    rewires: bool = False
    waits: bool = False
    sets: bool = False
    removes: bool = False


def allows(adds=(), becomes=(), **others):
    """A Footprint; `becomes` is a text with types in it, or None."""
    return Footprint(frozenset(adds), becomes=becomes if becomes is None else frozenset(becomes), **others)


def kind_of(op):
    """What an operation type does: a kind of epl.rules.effects, PLAIN or EXCHANGE."""
    if op.startswith("Epl"):
        return EXCHANGE if _EXCHANGES.match(op) else PLAIN
    kind = effects.kind_of(op)
    if op == "DestroyResourceOp":  # of a variable that holds something for a step
        return WRITE
    return PLAIN if kind in (None, effects.PURE) else kind


def trespasses(footprint, before, after):
    """What one Graph has other than another one, and the Footprint does not allow: a list of problems.

    Looks at what was added or changed, not at what only was placed elsewhere.
    """
    problems = []
    if not footprint.removes and not before.nodes.keys() <= after.nodes.keys():
        gone = [name for name in before.nodes if name not in after.nodes]
        problems += ["node '%s' is gone" % name for name in gone[:_SHOWN]]
    known, nodes, changed, allowed = before.nodes, after.nodes, [], {}
    for name in after.names_changed_since(before):
        if name in known:
            changed.append(name)
            continue
        op = nodes[name].op
        if op not in allowed:
            allowed[op] = kind_of(op) in footprint.adds or (footprint.copies and before.has_type(op))
        if not allowed[op]:
            problems.append("adds '%s', a node of the type %s" % (name, op))
    # To read attributes takes long. A pass does the same to many nodes, of which some tell what that is.
    stride = 1 + len(changed) // _LOOKED_AT
    for number, name in enumerate(sorted(changed)):
        inputs = before.inputs[name], after.inputs[name]
        problem = _change(footprint, known[name], nodes[name], inputs, not footprint.sets and number % stride == 0)
        if problem is not None:
            problems.append(problem)
    return sorted(problems)


def _change(footprint, old, node, inputs, with_attributes):
    """What a node is other than before without being allowed to; None for nothing.

    Args:
      inputs: what it took, and what it takes.
      with_attributes: whether to look at its attributes too.
    """
    if old.op != node.op:
        if footprint.becomes is None or node.op in footprint.becomes:
            return None
        return "makes '%s' (%s) a %s" % (node.name, old.op, node.op)
    if inputs[0] != inputs[1] and not footprint.rewires:
        data = [[each for each in some if each.index >= 0] for some in inputs]
        if data[0] != data[1]:
            return "changes what '%s' (%s) takes" % (node.name, node.op)
        if not footprint.waits:
            return "changes what '%s' (%s) waits for" % (node.name, node.op)
    if with_attributes and not _same(old.attr, node.attr):
        return "changes attributes of '%s' (%s)" % (node.name, node.op)
    return None


def _same(one, other):
    """Whether two maps of attributes are equal; many times as quick as `==`, which makes dictionaries of both."""
    if len(one) != len(other):
        return False
    for key in one:
        if key not in other or one[key] != other[key]:
            return False
    return True
