"""Chooses how each operation of a graph is computed in parts, so that little has to be sent.

From what is marked (variables to be divided, tensors that lie in some way) placements propagate along the edges, one
operation after the other, from data to the changes of variables; the backward pass and the optimizer are operations
like others. For each operation all strategies of its rule are compared by what it costs to bring its inputs into
place, and to make whole what it leaves partial. Sums are put off as long as an operation is linear; where best to make
them up is decided afterwards (epl.partition.postpone).

A variable is divided in the way that suits the first product that takes it. Until then it is free; operations on
free variables alone (a cast, a regularisation, the first value) wait for that. A variable that meets other tensors only
element by element follows them.
"""

import collections
from dataclasses import dataclass, field
from typing import Dict

from epl.errors import PlanError, UnsupportedError
from epl.graph import tags, types
from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.partition.conversion import conversion_cost, route_cost
from epl.partition.rule import Partitioning, Rule, divides, expand, strategies
from epl.partition.table import notation_of
from epl.program.placement import WHOLE, Placement, partial, sharded
from epl.rules import effects

# They give a variable itself on.
_REFERENCES = frozenset(["RefSwitch", "RefMerge"])
# The same, but no part of it.
_WHOLE_REFERENCES = frozenset(["RefEnter", "RefIdentity", "RefSelect"])


@dataclass
class Choices:
    """How each operation is computed.

    Attributes:
      strategy: node to its Partitioning.
      rule: node to its Rule; nodes without one are not in it.
      placements: Tensor to its Placement; those that are whole may be left out.
      order: node names, each behind what it takes (but for the edges that close loops).
      fixed: nodes of which the placement of an output was marked.
      routes: node whose strategy is routed to its epl.partition.routes.Route.
      rows: node at which rows of a batch come of their entries to its epl.partition.entries.RowCount.
    """

    strategy: Dict[str, Partitioning] = field(default_factory=dict)
    rule: Dict[str, Rule] = field(default_factory=dict)
    placements: Dict[Tensor, Placement] = field(default_factory=dict)
    order: list = field(default_factory=list)
    fixed: set = field(default_factory=set)
    routes: Dict[str, object] = field(default_factory=dict)
    rows: Dict[str, object] = field(default_factory=dict)

    def of(self, tensor):
        return self.placements.get(tensor, WHOLE)


def propagate(facts, marks, op_def, stateful=frozenset(), regions=()):
    """The Choices for a graph.

    Args:
      facts: Facts of the graph.
      marks: epl.partition.marks.Marks.
      op_def: function from operation type to OpDef, None for unknown types.
      stateful: operation types of which TensorFlow says that they keep state.
      regions: epl.partition.entries.Regions, of which those are taken whose tables can be divided.

    Raises:
      PlanError: a mark that an operation cannot fulfil.
      UnsupportedError: an operation that keeps state takes what is divided, and nothing is known of it.
    """
    return _Propagation(facts, marks, op_def, stateful).run(regions)


class _Propagation(object):
    def __init__(self, facts, marks, op_def, stateful):
        self._facts = facts
        self._graph = facts.graph
        self._marks = marks
        self._shards = marks.shards
        self._stateful = stateful
        self._signatures = types.Signatures(op_def)
        self._choices = Choices()
        self._forms = collections.defaultdict(set)  # tensor -> placements that it is brought into anyway
        self._free = {}  # tensor -> (variable, dimension of the variable for each of its own)
        self._undecided = collections.OrderedDict()  # variable -> nodes that wait for it
        self._slots = collections.defaultdict(list)  # variable -> those of an optimizer that lie as it does
        self._waiting = {}  # tensor -> variable that what makes it waits for
        self._of_batch = self._of_divided = frozenset()  # all that follows from the batch, and from divided variables
        self._lists = frozenset()  # tensors whose first dimension is not that of rows
        if marks.rows:
            self._of_batch = facts.graph.descendants(marks.batches, data_only=True) | marks.batches
            self._of_divided = facts.graph.descendants(marks.variables, data_only=True)
        self._owners = {}  # slot of an optimizer -> its variable, of those that one operation updates together
        for name in self._graph.find(effects.is_write):
            holders = [each.node for each in facts.inputs(name) if facts.is_variable(each)]
            self._owners.update((slot, holders[0]) for slot in holders[1:])

    def run(self, regions=()):
        graph = self._graph
        order = sorted(graph.order, key=graph.order.__getitem__)
        for name in graph.find(effects.VARIABLES.__contains__):
            owner = self._owner(name)
            if owner is not None:
                self._slots[owner].append(name)
            if self._may_be_divided(name, owner):
                self._undecided[name] = []
                shape = self._facts.shape(Tensor(name, 0))
                self._free[Tensor(name, 0)] = name, tuple(range(len(shape)))
        for name in order:
            self._facts.shape(Tensor(name, 0))  # from data on, as shapes follow from those before
        for name, placement in self._marks.placements.items():
            self._place_variable(name, placement)
        self._lists = frozenset(tensor for region in regions for tensor in region.lists)
        for region in regions:
            self._take_region(region)
        # A first value says nothing of how a variable is used.
        initialised = graph.descendants(graph.find(effects.SETS.__contains__), data_only=True)
        for name in order:
            if name not in initialised:
                self._visit(name)
        while self._undecided:
            self._decide(next(iter(self._undecided)), WHOLE)
        for name in order:
            if name in initialised:
                self._visit(name)
        self._choices.order = sorted(self._choices.strategy, key=graph.order.__getitem__)
        return self._choices

    def _place_variable(self, name, placement):
        """Gives a variable the placement that is marked."""
        if placement == WHOLE:
            return
        if name not in self._undecided:
            raise PlanError(
                "the variable '%s' is marked to be %s over %d devices, but something that changes it cannot do so in "
                "parts. Leave the hint out, or change the variable by an optimizer." % (name, placement, self._shards)
            )
        self._decide(name, placement)

    def _take_region(self, region):
        """Computes entry by entry what a Region holds, if its tables can be divided."""
        if any(t not in self._undecided and self._choices.of(Tensor(t, 0)) != sharded(0) for t in region.tables):
            return
        for table in sorted(region.tables.intersection(self._undecided)):
            self._decide(table, sharded(0))
        self._choices.rows.update(region.rows)
        self._choices.strategy.update(region.strategies)
        for name, strategy in region.strategies.items():
            self._choices.placements.update(
                (Tensor(name, i), placement) for i, placement in enumerate(strategy.outputs)
            )

    def _owner(self, name):
        """The variable whose slot in an optimizer a variable is; None for others.

        By the kernel that updates both, or else by name; and by shape.
        """
        graph, shape = self._graph, self._facts.shape(Tensor(name, 0))
        owner = self._owners.get(name)
        if owner is not None and owner not in self._owners and self._facts.shape(Tensor(owner, 0)) == shape:
            return owner
        if tags.phase(graph.nodes[name]) != tags.APPLY:
            return None
        parts = name.split("/")
        for count in range(len(parts) - 1, 0, -1):
            owner = "/".join(parts[:count])
            if owner in graph.nodes and graph.nodes[owner].op in effects.VARIABLES:
                return owner if self._facts.shape(Tensor(owner, 0)) == shape else None
        return None

    def _may_be_divided(self, name, owner):
        """Whether a variable is marked, or belongs to one that is, and all that takes it has rules."""
        node = self._graph.nodes[name]
        if (owner or name) not in self._marks.variables or not self._facts.shape(Tensor(name, 0)):
            return False
        consumers = [self._graph.nodes[c] for c in self._takers(name)]
        if node.op != "VarHandleOp":  # the value of a reference can be brought into any placement
            itself = _REFERENCES | _WHOLE_REFERENCES
            consumers = [each for each in consumers if effects.is_write(each.op) or each.op in itself]
        return all(self._notation(each) is not None for each in consumers)

    def _takers(self, name):
        """What takes a variable, also in the branches that a reference to it comes into."""
        found = list(self._graph.edges.data_consumers.get(name, ()))
        for each in found:  # it grows while it is gone through
            if self._graph.nodes[each].op in _REFERENCES:
                found.extend(c for c in self._graph.edges.data_consumers.get(each, ()) if c not in found)
        return found

    def _notation(self, node):
        return notation_of(node, self._facts.inputs(node.name), self._facts)

    def _rule(self, name):
        """The Rule of a node, or None."""
        node = self._graph.nodes[name]
        known = self._signatures.of(node)
        notation = self._notation(node) if known is not None else None
        if notation is None:
            return None
        shape = self._facts.shape
        inputs = tuple(shape(each) for each in self._facts.inputs(name))
        return expand(notation, inputs, tuple(shape(Tensor(name, i)) for i in range(len(known[1]))))

    def _visit(self, name):
        """Chooses for a node, or lets it wait for a variable."""
        if name in self._choices.strategy:
            return
        inputs = self._facts.inputs(name)
        for tensor in inputs:
            if self._waiting.get(tensor) in self._undecided:
                variable = self._waiting[tensor]
                if tensor not in self._free:
                    return self._park(name, variable)
        rule = self._choices.rule.get(name) or self._rule(name)
        if rule is not None:
            self._choices.rule[name] = rule
        free = [t for t in inputs if self._is_free(t)]
        if free and (rule is None or not self._can_decide(rule, inputs)):
            self._hand_on(name, rule, inputs)
            return self._park(name, self._free[free[0]][0])
        if rule is not None:
            self._guess_sizes(name, rule, inputs)
        self._choose(name, rule, inputs)

    def _guess_sizes(self, name, rule, inputs):
        """What sizes that are not known may be follows from the inputs."""
        guesses = {}
        for tensor, labels in zip(inputs, rule.inputs):
            if isinstance(labels, tuple):
                guesses.update((label, size) for label, size in zip(labels, self._facts.guess(tensor)) if label)
        for index, labels in enumerate(rule.outputs):
            shape = self._facts.shape(Tensor(name, index))
            if shape is not None and None in shape and isinstance(labels, tuple):
                self._facts.set_guess(Tensor(name, index), [guesses.get(label) for label in labels])

    def _is_free(self, tensor):
        return tensor in self._free and self._free[tensor][0] in self._undecided

    def _can_decide(self, rule, inputs):
        """Whether a node takes anything that could be divided and has its placement already."""
        pairs = [(tensor, labels) for tensor, labels in zip(inputs, rule.inputs) if isinstance(labels, tuple)]
        return any(any(labels) and not self._is_free(tensor) for tensor, labels in pairs)

    def _park(self, name, variable):
        self._undecided[variable].append(name)
        for index in range(self._num_outputs(name)):
            self._waiting[Tensor(name, index)] = variable

    def _num_outputs(self, name):
        known = self._signatures.of(self._graph.nodes[name])
        return 1 if known is None else len(known[1])

    def _hand_on(self, name, rule, inputs):
        """What a view of a free variable gives is free as well: another one may decide by it."""
        labelled = [(t, labels) for t, labels in zip(inputs, rule.inputs) if any(labels)] if rule is not None else []
        labelled = [pair for pair in labelled if isinstance(pair[1], tuple)]
        if len(labelled) != 1 or len(rule.outputs) != 1 or not isinstance(rule.outputs[0], tuple):
            return
        variable, dims = self._free[labelled[0][0]]
        labels, out = labelled[0][1], rule.outputs[0]
        if all(label is None or label in out for label in labels):
            fit = [label for label, sizes in rule.sizes if divides(sizes, self._shards)]  # also what dimensions merge
            placements = tuple(dims[labels.index(label)] if label in labels and label in fit else None for label in out)
            self._free[Tensor(name, 0)] = variable, placements

    def _decide(self, variable, placement):
        """Gives a variable its placement, and lets those go on that wait for it."""
        waiting = self._undecided.pop(variable)
        self._choices.placements[Tensor(variable, 0)] = placement
        self._choices.strategy[variable] = Partitioning(None, (), (placement,))
        for slot in self._slots[variable]:
            if slot in self._undecided:
                self._decide(slot, placement)
        for name in waiting:
            self._visit(name)

    def _choose(self, name, rule, inputs):
        node = self._graph.nodes[name]
        if node.op in effects.VARIABLES and name in self._undecided:
            return  # when something takes it
        if rule is None:
            chosen = Partitioning(None, (WHOLE,) * len(inputs), ())
            self._refuse_unknown(node, inputs)
            if any(placement != WHOLE for placement in self._wanted(name, 1).values()):
                self._refuse_mark(name, self._wanted(name, 1))
        else:
            chosen = self._best(name, rule, inputs)
        for tensor, want in zip(inputs, chosen.inputs):
            if self._is_free(tensor):
                variable, dims = self._free[tensor]
                placement = WHOLE
                if want is not None and want.kind == "sharded" and dims[want.dim] is not None:
                    placement = Placement("sharded", dim=dims[want.dim])
                self._decide(variable, placement)
            if want is not None:
                self._forms[tensor].add(want)
        self._choices.strategy[name] = chosen
        for index, placement in enumerate(chosen.outputs):
            if placement != WHOLE:
                self._choices.placements[Tensor(name, index)] = placement

    def _refuse_unknown(self, node, inputs):
        if node.op not in self._stateful or effects.kind_of(node.op) is not None:
            return
        divided = [t for t in inputs if self._choices.of(t) != WHOLE]
        if divided:
            raise UnsupportedError(
                "'%s' takes '%s', which is divided over %d devices, and its operation %s keeps state of which nothing "
                "is known: to run it on each device may do what it does several times. Take it out of the part of the "
                "model that is split." % (node.name, format_input(*divided[0]), self._shards, node.op)
            )

    def _best(self, name, rule, inputs):
        found = [each for each in strategies(rule, self._shards) if self._fits_variables(each, name, inputs)]
        if not found:
            self._refuse_variable(name, inputs)
        wanted = self._wanted(name, len(rule.outputs))
        if wanted:
            fitting = [each for each in found if all(each.outputs[i] == placement for i, placement in wanted.items())]
            if not fitting:
                self._refuse_mark(name, wanted)
            self._choices.fixed.add(name)
            return min(fitting, key=lambda each: self._cost(each, rule, inputs, name))
        marked = []
        if rule.notation.product:  # a variable that is divided, or will be, is never made whole for a product
            marked = [t for t in inputs if t in self._free and self._free[t][0] in self._marks.variables]
            marked = [t for t in marked if self._is_free(t) or self._choices.of(t) != WHOLE]
        preferred, rows = self._preferred(name, rule), self._rows(name, inputs)
        # Rows are sent to where a batch is divided, not to divide it.
        there = [i for i in rows if i == 1]
        found = [s for s in found if not s.routed or self._lies_so(s, inputs) or self._by_rows(s, there)]
        if not marked and not self._any_divided(inputs):  # nothing that is whole, or will be, is divided without need
            found = [s for s in found if s.factor is None or self._grants(s, preferred) or self._by_rows(s, rows)]
        keys = {each: self._key(each, rule, inputs, marked, name) for each in found}
        return min(found, key=keys.__getitem__)

    def _fits_variables(self, strategy, name, inputs):
        """A variable itself, other than its value, cannot be brought into another placement."""
        op = self._graph.nodes[name].op
        takes_itself = effects.is_write(op) or op in _REFERENCES
        for tensor, want in zip(inputs, strategy.inputs):
            op = self._graph.nodes[tensor.node].op
            itself = op == "VarHandleOp" or takes_itself and (op in effects.VARIABLES or op in _REFERENCES)
            if itself and not self._is_free(tensor):
                if want not in (None, self._choices.of(tensor)):
                    return False
        return True

    def _refuse_variable(self, name, inputs):
        raise UnsupportedError(
            "'%s' (%s) takes the variable '%s', which lies %s over %d devices, and cannot be computed so. Take the "
            "variable out of the part of the model that is split."
            % (name, self._graph.nodes[name].op, inputs[0].node, self._choices.of(inputs[0]), self._shards)
        )

    def _wanted(self, name, count):
        """Output to the Placement that is marked for it."""
        if not self._marks.tensors:
            return {}
        names = {i: format_input(name, i) for i in range(count)}
        return {i: self._marks.tensors[each] for i, each in names.items() if each in self._marks.tensors}

    def _preferred(self, name, rule):
        """Output to the Placement that it should have."""
        if not self._marks.preferred:
            return {}
        names = {i: format_input(name, i) for i in range(len(rule.outputs))}
        return {i: self._marks.preferred[each] for i, each in names.items() if each in self._marks.preferred}

    def _rows(self, name, inputs):
        """Positions of the inputs that bring the rows of a batch to where it is to be divided."""
        if name not in self._marks.rows:
            return []
        return [i for i, tensor in enumerate(inputs) if self._has_rows(tensor)]

    def _has_rows(self, tensor):
        """Whether a tensor comes with all rows of a batch to where each shard is to compute some of them."""
        if tensor.node not in self._of_batch or self._choices.of(tensor) not in (WHOLE, partial()):
            return False
        if tensor in self._lists:
            return False
        if tensor.node in self._marks.rows and tensor.node in self._choices.rule:
            # It has been computed there. Rows that were looked up in a divided table may still be divided.
            if self._choices.of(tensor) == WHOLE or tensor.node not in self._of_divided:
                return False
        shape = self._facts.shape(tensor)
        return bool(shape) and (shape[0] is None or shape[0] >= self._shards)

    def _lies_so(self, strategy, inputs):
        """Whether the ids of a lookup lie as a strategy wants them."""
        return self._choices.of(inputs[1]) == strategy.inputs[1]

    @staticmethod
    def _by_rows(strategy, rows):
        return any(strategy.inputs[i] == sharded(0) for i in rows)

    @staticmethod
    def _grants(strategy, preferred):
        return any(strategy.outputs[i] == placement for i, placement in preferred.items())

    def _refuse_mark(self, name, wanted):
        index, placement = next(iter(wanted.items()))
        raise PlanError(
            "'%s' is marked to be %s over %d devices, but it is of shape %s, made by %s, and cannot lie so. Mark "
            "another dimension, or another tensor."
            % (
                format_input(name, index),
                placement,
                self._shards,
                self._facts.shape(Tensor(name, index)),
                self._graph.nodes[name].op,
            )
        )

    def _key(self, strategy, rule, inputs, marked, name):
        """Strategies with a lower one are better."""
        left_whole = sum(not self._divides(tensor, inputs, strategy) for tensor in marked)
        preferred = marked and (strategy.factor in rule.notation.preferred or strategy.routed)
        cost = self._cost(strategy, rule, inputs, name)
        # Rows of which the parts exchange a few numbers are not moved, however few they are.
        moves_rows = strategy.factor not in rule.notation.resolved and self._takes_shards(rule, inputs)
        # What has a letter everywhere stays apart in all that follows; and parts are better than the whole.
        ins, outs = rule.dims(strategy.factor) if strategy.factor else ((), ())
        everywhere = strategy.factor is not None and min(list(ins) + list(outs)) >= 0
        rows = self._rows(name, inputs)
        idle = all(placement.kind == "whole" for placement in strategy.outputs)
        moved = sum(want is not None and want != self._choices.of(t) for t, want in zip(inputs, strategy.inputs))
        not_by_rows = bool(rows) and not self._by_rows(strategy, rows)
        return left_whole, moves_rows, not preferred, cost, not_by_rows, not everywhere, idle, moved

    def _takes_shards(self, rule, inputs):
        """Whether an input lies divided along a factor over which the parts communicate by themselves."""
        for tensor, labels in zip(inputs, rule.inputs):
            placement = self._choices.of(tensor)
            if (
                placement.kind == "sharded"
                and isinstance(labels, tuple)
                and labels[placement.dim] in rule.notation.resolved
            ):
                return True
        return False

    def _divides(self, tensor, inputs, strategy):
        _, dims = self._free[tensor]
        want = strategy.inputs[inputs.index(tensor)]
        return want is not None and want.kind == "sharded" and dims[want.dim] is not None

    def _cost(self, strategy, rule, inputs, name):
        """Bytes over the link until the inputs are in place and the outputs are no longer partial."""
        facts, shards, machine, cost = self._facts, self._shards, self._facts.machine, 0.0
        for tensor, want in zip(inputs, strategy.inputs):
            if want is None or self._is_free(tensor):
                continue
            have, forms = self._choices.of(tensor), self._forms[tensor]
            if want not in forms and WHOLE not in forms:
                cost += conversion_cost(have, want, facts.num_bytes(tensor), shards, machine.worker)
        made_up = sharded(0) if strategy.factor is not None else WHOLE  # what has parts can go on in parts
        preferred = self._preferred(name, rule)
        for index, placement in enumerate(strategy.outputs):
            if placement.kind == "partial" or index in preferred:
                want = preferred.get(index, made_up)
                cost += conversion_cost(placement, want, facts.num_bytes(Tensor(name, index)), shards, machine.worker)
        if strategy.routed:
            cost += route_cost(facts.num_bytes(Tensor(name, 0)), facts.num_bytes(inputs[1]), shards, machine.worker)
        elif strategy.factor is not None and strategy.factor in rule.notation.resolved:
            cost += self._resolving_cost(strategy, rule, name)
        elif (
            rule.notation.product
            and strategy.factor is None
            and (self._any_divided(inputs) or self._rows(name, inputs))
        ):
            cost += _flops(rule) / machine.flops_per_link_byte * (shards - 1) / shards
        return cost

    def _any_divided(self, inputs):
        return any(self._choices.of(tensor).kind == "sharded" for tensor in inputs)

    def _resolving_cost(self, strategy, rule, name):
        """Of the three all-reduces that make whole rows of parts."""
        sizes = dict(rule.sizes)
        rows = 1.0
        for label in rule.inputs[0]:
            if label is not None and label != strategy.factor:
                rows *= (sizes.get(label) or (32,))[0]
        partials = Placement("partial", combine="sum")
        return 3 * conversion_cost(partials, WHOLE, 4 * rows, self._shards, self._facts.machine.worker)


def _flops(rule):
    count = 2.0
    for _, sizes in rule.sizes:
        count *= sizes[0] if sizes else 32
    return count
