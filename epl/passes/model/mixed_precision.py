r"""Computes in 16 bits what the tables of epl.rules.short_types say; weights stay float32 and are cast where used.

    x ---> MatMul -> loss              Cast(x) ------> MatMul in 16 bits -> Cast -> loss
           /              becomes                      /
    w ----                             w -> Cast(w) --

The node that was computed keeps its name, and becomes the cast back to float32: what is fetched of it, its gradients'
way to the optimizer and all else that takes it see float32. What is computed in 16 bits takes the 16-bit tensor.
"""

import collections
import logging
from dataclasses import replace

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.graph.lazy import copy_of
from epl.graph.node_defs import Type, make_node, set_attr
from epl.graph.types import FLOAT32
from epl.passes.nodes import with_originals
from epl.plan.facts.names import PREFIX
from epl.plan.precision.precision import is_weight
from epl.plan.report.precision_table import table

_LOG = logging.getLogger("epl")


def mixed_precision(program, casting):
    """Casts, as an epl.plan.precision.sixteen_bits.Casting says."""
    decisions = casting.precision
    program = replace(program, sixteen_bits=casting.chosen)
    if not decisions.computed:
        return program
    casts = _Casts(program, casting)
    graph = casts.make()
    if casting.is_told:
        _LOG.info("Mixed precision:\n%s", table(program, decisions, casts.added))
    checkpoints = [_in_16_bits(decisions, tensor) for tensor in program.checkpoints]
    return with_originals(replace(program, graph=graph, checkpoints=checkpoints), casts.originals, decisions.dtype)


def computed_name(name):
    """The node that computes in 16 bits what `name` holds in float32."""
    return "%s_16_bits/%s" % (PREFIX, name)


def _in_16_bits(decisions, tensor):
    return computed_name(node_of(tensor)) if node_of(canonical_tensor(tensor)) in decisions.computed else tensor


class _Casts(object):
    """Adds the casts.

    Args:
      program: the Program.
      casting: its Casting.

    Attributes:
      originals: node that was added to the tensor of the program whose value it has.
      added: (node that takes a cast, cast) pairs.
    """

    def __init__(self, program, casting):
        self._graph, self._decisions, self._lasting = program.graph, casting.precision, casting.lasting
        self._edit = self._graph.editor()
        self._loops = casting.in_control_flow
        self._first = {}
        self.originals, self.added = {}, []

    def make(self):
        graph, decisions, edit = self._graph, self._decisions, self._edit
        for known in decisions.computed.values():
            self._compute(known)
        for name in decisions.shapes:
            text = graph.nodes[name].input[0]
            set_attr(edit.node(name), "T", Type(decisions.dtype))
            edit.set_input(name, 0, computed_name(node_of(text)))
        self._wait_for_what_computes()
        return edit.finish()

    def _wait_for_what_computes(self):
        """Who waits for a node waits for what computes it: the cast back is made only for those that take it."""
        for name in self._decisions.computed:
            for consumer, position in self._graph.consumers.get(name, ()):
                if self._graph.nodes[consumer].input[position][0] == "^":
                    own = computed_name(consumer) if consumer in self._decisions.computed else consumer
                    self._edit.set_input(own, position, "^" + computed_name(name))

    def _compute(self, known):
        graph, decisions, edit = self._graph, self._decisions, self._edit
        node = graph.nodes[known.name]
        computed = copy_of(node)
        computed.name = computed_name(known.name)
        set_attr(computed, known.attr, Type(decisions.dtype))
        for position in known.inputs:
            text = node.input[position]
            if node_of(text) in decisions.computed:
                computed.input[position] = computed_name(node_of(text))
            else:
                computed.input[position] = self._cast(node, position)
        edit.add(computed)
        self.originals[computed.name] = known.name
        back = edit.node(known.name)
        kept = {key: value for key, value in back.attr.items() if key.startswith(tags.PREFIX) or key == "_class"}
        whole = make_node("Cast", known.name, [computed.name], node.device, **_types(decisions.dtype, FLOAT32))
        for key, value in kept.items():
            whole.attr[key].CopyFrom(value)
        back.CopyFrom(whole)

    def _cast(self, node, position):
        """The 16-bit value of a float32 tensor: one cast for all that take it in a stage; of a weight that has no
        lasting one, one for the forward and one for the backward pass, so that it does not lie there in between."""
        text, stage = canonical_tensor(node.input[position]), tags.get_int(node, tags.TASKGRAPH, -1)
        weight = is_weight(self._graph, text) and not self._lasting
        region = (text, stage, tags.phase(node) if weight else None)
        if region not in self._first:
            index = sum(1 for other in self._first if other[0] == text)
            name = "%s_cast/%s/%d" % (PREFIX, text.replace(":", "_output_"), index)
            cast = make_node("Cast", name, [text], node.device, **_types(FLOAT32, self._decisions.dtype))
            tags.inherit(cast, node)
            if weight and tags.phase(node) == tags.BACKWARD and node.name not in self._loops:
                cast.input.extend(self._awaited(node, text))
            self._first[region] = self._edit.add(cast).name
            self.originals[name] = text
        self.added.append((node.name, self._first[region]))
        return self._first[region]

    def _awaited(self, node, text):
        """The gradient that a node of the backward pass takes beside a weight: before it is there, nobody needs the
        weight's cast. Nodes are gone through in order, so this is the first one that needs it."""
        backward = [
            node_of(other)
            for other in node.input
            if other[0] != "^" and other != text and tags.phase(self._graph.nodes[node_of(other)]) == tags.BACKWARD
        ]
        names = [computed_name(n) if n in self._decisions.computed else n for n in backward]
        constants = ("Const", "Shape", "ShapeN")
        return ["^" + name for name, own in zip(names, backward) if self._graph.nodes[own].op not in constants][:1]


def _types(source, target):
    return collections.OrderedDict(SrcT=Type(source), DstT=Type(target), Truncate=False)
