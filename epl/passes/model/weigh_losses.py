r"""Weighs terms of losses, so that the mean over copies of the model is what one device computes of the whole batch.

    seed --------------> grad of Sum           seed -> Mul by n -> grad of Sum (over rows, in each of n copies)
        \                           becomes       \
         -> grad of L2Loss                          -> grad of L2Loss (of weights: the same in all copies)

A loss that is reported becomes the mean of what its copies come to with such terms.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.graph.lazy import copy_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import FLOAT32, INT32
from epl.passes.nodes import dtype_of, with_originals, with_specs
from epl.plan.facts.names import PREFIX
from epl.plan.facts.row_states import SUM
from epl.program.specs import TensorSpec


def weigh_losses(program, weights):
    """The program with its Losses and their weights, as an epl.plan.sync.loss_weights.LossWeights says."""
    program = replace(program, merges=weights.merges)
    if weights.losses is None:
        return program
    program = replace(program, losses=weights.losses)
    if not weights.weighed:
        return program
    weighing = _LossWeighing(program)
    for weighed in weights.weighed:
        weighing.add(weighed)
    return weighing.program()


def _prefix(weighed):
    return "%s_loss_%d" % (PREFIX, weighed.number)


class _LossWeighing(object):
    """The edit, loss by loss.

    Args:
      program: a Program with one copy of the model.
    """

    def __init__(self, program):
        self._program, self._graph = program, program.graph
        self._edit = program.graph.editor()
        self._originals, self._specs, self._sources, self._counts = {}, {}, {}, []

    def add(self, weighed):
        """Counts sums so many times as there are parts, quotients and means by their share of what all parts count."""
        made, prefix = {}, _prefix(weighed)
        for consumer, position, term in weighed.edges:
            text = self._graph.nodes[consumer].input[position]
            if (text, term) not in made:
                name = "%s/gradient_%d" % (prefix, len(made))
                near = self._graph.nodes[consumer]
                made[text, term] = self._product(name, text, self._weight(weighed, term, near), near, tags.BACKWARD)
            self._edit.set_input(consumer, position, made[text, term])
        if weighed.is_reported:
            self._sources[weighed.loss.tensor] = self._reported(weighed, prefix)

    def _weight(self, weighed, term, near):
        """The tensor by which a Term of a Weighed is multiplied."""
        prefix, parts = _prefix(weighed), weighed.parts
        if term.kind == SUM:
            return self._constant(prefix + "/parts", parts, near)
        if term in weighed.fed:
            return self._constant(prefix + "/share_of_worker", 1, near, tags.SHARE)
        rows, along = (term.chosen, None) if term.chosen else term.rows or (None, None)
        name = "%s/share/%s" % (prefix, (rows or term.by).replace(":", "_output_"))
        if name not in self._edit:
            by, counted = (self._count(rows, along, name),) * 2 if rows else (term.by, term.counted)
            made = self._edit.peek(node_of(by))
            total = make_node("Identity", name + "/of_all", [by], made.device, T=Type(FLOAT32))
            if by != counted:
                total.op = made.op
                total.input[:] = made.input[:]
            position = [canonical_tensor(text) for text in total.input].index(counted)
            counts = self._constant(prefix + "/parts", parts, near)
            # In this order copies that count as much as one another have exactly 1.
            times = make_node("Mul", name + "/times", [by, counts], made.device, T=Type(FLOAT32))
            share = make_node("DivNoNan", name, [times.name, total.name], made.device, T=Type(FLOAT32))
            for node in (total, times, share):
                tags.inherit(node, made, (tags.TASKGRAPH,))
                self._edit.add(node)
                self._specs[node.name] = TensorSpec((), FLOAT32)
            self._counts.append((counted, (total.name, position)))
        return name

    def _count(self, tensor, along, prefix):
        """The canonical name of a tensor that says how many elements another has, or how many along a dimension."""
        near, dtype = self._graph.nodes[node_of(tensor)], dtype_of(self._graph, tensor)
        cast, size = dict(SrcT=Type(INT32), DstT=Type(FLOAT32)), dict(T=Type(dtype), out_type=Type(INT32))
        if along is None:
            made = [make_node("Size", prefix + "/elements", [tensor], near.device, **size)]
        else:
            shape = make_node("Shape", prefix + "/shape", [tensor], near.device, **size)
            place = constant(prefix + "/along", along, INT32, near.device)
            axis = constant(prefix + "/axis", 0, INT32, near.device)
            types = dict(Tparams=Type(INT32), Tindices=Type(INT32), Taxis=Type(INT32))
            picked = [shape.name, place.name, axis.name]
            made = [shape, place, axis, make_node("GatherV2", prefix + "/rows", picked, near.device, **types)]
        made.append(make_node("Cast", prefix + "/count", [made[-1].name], near.device, **cast))
        for node in made:
            tags.inherit(node, near, (tags.TASKGRAPH,))
            set_attr(node, tags.PHASE, tags.FORWARD)
            self._edit.add(node)
            known = self._program.spec_of(tensor)
            rank = None if known is None or known.shape is None else len(known.shape)
            shape = (rank,) if node.op == "Shape" else ()
            self._specs[node.name] = TensorSpec(shape, FLOAT32 if node.op == "Cast" else INT32)
        return canonical_tensor(made[-1].name)

    def _constant(self, name, value, near, tag=tags.PARTS):
        if name not in self._edit:
            node = constant(name, float(value), FLOAT32, near.device)
            set_attr(node, tag, True)
            tags.inherit(node, near, (tags.TASKGRAPH,))
            self._edit.add(node)
            self._specs[name] = TensorSpec((), FLOAT32)
        return name

    def _product(self, name, text, weight, near, phase, op="Mul"):
        """The name of a tensor times a weight."""
        dtype = dtype_of(self._graph, text)
        made = []
        if dtype != FLOAT32:
            cast = dict(SrcT=Type(FLOAT32), DstT=Type(dtype))
            made.append(make_node("Cast", name + "/cast", [weight], near.device, **cast))
            self._specs[made[0].name], weight = TensorSpec((), dtype), made[0].name
        made.append(make_node(op, name, [text, weight], near.device, T=Type(dtype)))
        for node in made:
            tags.inherit(node, near, (tags.TASKGRAPH,))
            set_attr(node, tags.PHASE, phase)
            self._edit.add(node)
        self._originals[name] = format_input(*parse_input(text))
        return name

    def _reported(self, weighed, prefix):
        """A loss whose terms are weighed: the name of the tensor."""
        made, loss = {}, weighed.loss
        for term in weighed.terms:
            near, name = self._graph.nodes[node_of(term.tensor)], "%s/term_%d" % (prefix, len(made))
            weight = self._weight(weighed, term, near)
            # The mean of no rows at all is no number, and counts for nothing.
            may_be_none = term.chosen or term in weighed.fed
            op = "MulNoNan" if may_be_none and dtype_of(self._graph, term.tensor) == FLOAT32 else "Mul"
            made[parse_input(term.tensor)] = self._product(name, term.tensor, weight, near, tags.FORWARD, op)
        for name in self._graph.in_order(loss.between):
            node = copy_of(self._graph.nodes[name])
            node.name = "%s/reported/%s" % (prefix, name)
            for position, each in enumerate(self._graph.inputs[name]):
                if each.index >= 0:
                    node.input[position] = made.get(each) or node.input[position]
                    if each.node in loss.between:
                        node.input[position] = format_input("%s/reported/%s" % (prefix, each.node), each.index)
            if "_class" in node.attr:
                del node.attr["_class"]
            self._originals[self._edit.add(node).name] = name
        whole = parse_input(loss.tensor)
        return made.get(whole) or format_input("%s/reported/%s" % (prefix, whole.node), whole.index)

    def program(self):
        """The Program with all weights."""
        program = with_specs(with_originals(self._program, self._originals), self._specs)
        sources = {**program.loss_sources, **self._sources}
        counts = program.counts + tuple(self._counts)
        return replace(program, graph=self._edit.finish(), loss_sources=sources, counts=counts)
