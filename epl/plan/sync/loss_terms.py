"""What a loss is a sum of: means over the rows of a batch, sums over them, and terms that have nothing to do with rows.

The gradient of a sum is the sum of the gradients of its terms. Each of n copies of a model computes them from its own
rows, and their mean is applied. That is exact for a mean over the rows, as each copy has as many of them, and for what
is the same in all copies, such as a penalty on weights. A sum over the rows has to count n times as much. Others, such
as a loss that sets the rows of a batch against each other, are not what one device computes of the whole batch.
"""

from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

import numpy as np

from epl.graph import tags
from epl.graph.index import format_input, node_of, parse_input
from epl.graph.types import INDEX_TYPES
from epl.plan.facts.numbers import number
from epl.plan.facts.row_states import (
    ADDS,
    COMPARED,
    COUNT,
    LENGTH,
    MEAN,
    OTHER,
    PASSES,
    RATIO,
    REDUCTIONS,
    ROWS,
    SAME,
    SUM,
    UNKNOWN,
    RowStates,
)
from epl.plan.input.batch_rows import data_set_rows
from epl.rules import effects, tensors

# Of their inputs these hand on the first alone.
_FIRST_ONLY = frozenset("Reshape ExpandDims Sum Mean".split())
# They look at the shape of what they take, and no gradient goes through them; nor through the others.
_SHAPES_ONLY = frozenset("Shape ShapeN VariableShape Size Rank OnesLike ZerosLike".split())
_WITHOUT_GRADIENT = _SHAPES_ONLY | frozenset(
    """
    StopGradient Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot ArgMax ArgMin Sign
    Round Rint Floor Ceil OneHot
    """.split()
)
_DATA = effects.SOURCES | effects.PLACEHOLDERS
_LINEAR = ADDS | PASSES | frozenset(["Sum", "Mean"])


@dataclass(frozen=True)
class Term:
    """A part of a loss, which is the sum of its terms, each times a constant.

    Attributes:
      tensor: canonical name.
      kind: "sum", "mean" or "ratio" over the rows, "same" for what has nothing to do with rows, "compared" or "other"
        for what copies cannot compute of their own rows, "unknown".
      node: what makes it so.
      by: of a ratio, and of a mean that is a quotient, the tensor by which a sum over the rows is divided.
      counted: the sum over the rows in that: itself, or in the larger one of it and a constant.
      chosen: in the place of both the tensor of rows that the data chooses, of which a ratio is the mean.
      rows: in the place of all of a mean the tensor of which it is the mean, and the dimension of its rows, None where
        that is not known.
    """

    tensor: str
    kind: str
    node: Optional[str] = None
    by: Optional[str] = None
    counted: Optional[str] = None
    chosen: Optional[str] = None
    rows: Optional[Tuple[str, Optional[int]]] = None


@dataclass(frozen=True)
class Loss:
    """A tensor of which gradients are taken that train, or which is reported as a loss.

    Attributes:
      tensor: canonical name.
      seeds: nodes with which these gradients start; none for what is only reported.
      terms: those of it.
      is_weighed: quotients count by what they are divided by, which copies of the model add up.
      between: the nodes that add them up, itself included where it is not the only term.
      uneven: means over the rows of batches of which some may be shorter than others, and which count the same anyhow.
    """

    tensor: str
    seeds: Tuple[str, ...]
    terms: Tuple[Term, ...]
    between: FrozenSet[str] = frozenset()
    is_weighed: bool = False
    uneven: Tuple[Term, ...] = ()

    @property
    def kinds(self):
        return {term.kind for term in self.terms}


def plan_losses(program, analysis, reported=()):
    """The Losses of a Program with one copy of the model.

    Args:
      program: an epl.program.program.Program.
      analysis: its Analysis.
      reported: tensors that are losses too.
    """
    seeds = _seeds(program, analysis)
    tensors = list(dict.fromkeys(list(seeds) + [format_input(*parse_input(t)) for t in reported]))
    if not tensors:
        return ()
    states = RowStates(program, analysis.varying, [node_of(tensor) for tensor in tensors])
    found = [_Terms(program, states, tensor).loss(seeds.get(tensor, ())) for tensor in tensors]
    return tuple(found)


def _seeds(program, analysis):
    """dict of a loss to the nodes with which its gradients start, of those that train."""
    graph, calls, found = program.graph, _training_calls(program), {}
    for name, node in graph.nodes.items():
        if tags.SEED not in node.attr or node.attr[tags.GRADIENT_CALL].i not in calls:
            continue
        value = node_of(node.input[1]) if node.op == "Fill" else name
        if value not in analysis.varying:  # what the program starts with itself may differ from copy to copy
            loss = format_input(*parse_input(tags.get_str(node, tags.SEED)))
            found.setdefault(loss, []).append(name)
    return {loss: tuple(names) for loss, names in found.items()}


def _training_calls(program):
    """Numbers of the calls of tf.gradients whose results variables are changed by."""
    graph, calls = program.graph, {}
    for (gradient, _), number_ in zip(program.computed, program.gradient_calls):
        for text in filter(None, gradient):
            calls.setdefault(format_input(*parse_input(text)), number_)
    stack = [format_input(*parse_input(g.values)) for call in program.apply_calls for g, _ in call.gradients]
    found, seen = set(), set()
    while stack:
        tensor = stack.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor in calls:
            found.add(calls[tensor])
        else:
            stack.extend(format_input(*each) for each in graph.inputs[node_of(tensor)] if each.index >= 0)
    return found


class _Terms(object):
    """Looks for the terms of one loss."""

    def __init__(self, program, states, loss):
        self._program, self._graph, self._states = program, program.graph, states
        self._loss = parse_input(loss)
        self._trained = {variable for _, variable in program.computed}
        self._behind = program.graph.ancestors([self._loss.node], data_only=True)
        self._between, self._found = set(), {}

    def loss(self, seeds):
        if self._states.of(self._loss).kind == ROWS:  # tf.gradients adds up what has several elements
            terms = [Term(format_input(*self._loss), SUM, self._loss.node)]
        else:
            self._walk(self._loss, ())
            terms = [self._checked(tensor, kinds) for tensor, kinds in self._found.items()]
        return Loss(format_input(*self._loss), tuple(seeds), tuple(terms), frozenset(self._between))

    def _walk(self, tensor, divisors):
        """Finds the terms of a tensor; `divisors` are the numbers by which they are divided on the way."""
        stack = [(tensor, divisors)]
        while stack:
            tensor, divisors = stack.pop()
            further = self._further(tensor, divisors)
            if further is None:
                term = self._bottom(tensor, divisors)
                self._found.setdefault(tensor, set()).add(term)
            else:
                self._between.add(tensor.node)
                stack.extend(further)

    def _further(self, tensor, divisors):
        """(tensor, divisors) of what a tensor is the sum of; None where it is a term."""
        node, inputs = self._graph.nodes[tensor.node], self._inputs(tensor.node)
        states = [self._states.of(each) for each in inputs]
        state = self._states.of(tensor)
        if state.kind == SAME or tags.phase(node) != tags.FORWARD or not inputs:
            return None
        if node.op in _LINEAR:
            inputs = inputs[:1] if node.op in _FIRST_ONLY else inputs
            states = states[: len(inputs)]
            if node.op in ("ConcatV2", "Concat"):
                inputs = [each for each in inputs if self._states.facts.dtype(each) not in INDEX_TYPES]
            if any(each.kind in (ROWS, COMPARED) for each in states) or self._sums_unknown(node, states):
                return None
            return [(each, divisors) for each in inputs]
        if node.op == "Mul" and [each.kind for each in states].count(SAME) == 1:
            other = inputs[states.index(next(s for s in states if s.kind == SAME))]
            rest = [each for each, s in zip(inputs, states) if s.kind != SAME]
            return None if self._is_trained(other) else [(rest[0], divisors)]
        if node.op in tensors.DIVISIONS and states[1].kind == SAME and states[0].kind != ROWS:
            return None if self._is_trained(inputs[1]) else [(inputs[0], divisors + (inputs[1],))]
        return None

    def _sums_unknown(self, node, states):
        return node.op in REDUCTIONS and states[0].kind == UNKNOWN

    def _inputs(self, name):
        return [each for each in self._graph.inputs[name] if each.index >= 0]

    def _is_trained(self, tensor):
        """Whether gradients go through a tensor to what is trained."""
        stop = self._graph.find(_WITHOUT_GRADIENT.__contains__)
        reached = self._graph.ancestors([tensor.node], stop=frozenset(stop), data_only=True)
        return not self._trained.isdisjoint(reached)

    def _counts_rows(self, tensor):
        """Whether a tensor follows from the shapes alone of what has all rows."""
        shapes = self._graph.find(_SHAPES_ONLY.__contains__)
        stop = frozenset(name for name in shapes if not self._states.of(self._inputs(name)[0]).chosen)
        reached = self._graph.ancestors([tensor.node], stop=stop, data_only=True)
        return not any(self._graph.nodes[name].op in _DATA for name in reached)

    def _bottom(self, tensor, divisors):
        state, name = self._states.of(tensor), format_input(*tensor)
        if state.kind in (SAME, COUNT, LENGTH):
            return Term(name, SAME, tensor.node)
        if state.kind == SUM:
            return Term(name, self._of_sum(tensor, divisors), tensor.node)
        if state.kind == RATIO and state.chosen:
            return Term(name, RATIO, tensor.node, chosen=state.chosen)
        if state.kind == RATIO:
            by = parse_input(state.by[0])
            if self._counts_rows(by):
                return Term(name, MEAN, tensor.node, *state.by)
            # Of a quotient of which both parts are trained the gradient is not that of a mean.
            return Term(name, OTHER if self._is_trained(by) else RATIO, tensor.node, *state.by)
        if state.kind == MEAN:
            return Term(name, MEAN, tensor.node, *(state.by or ()), rows=state.rows)
        if state.kind in (OTHER, COMPARED):
            return Term(name, state.kind, state.node or tensor.node)
        return Term(name, UNKNOWN, tensor.node)

    def _of_sum(self, tensor, divisors):
        """A sum that is divided by how many rows there are is a mean, if the graph holds that number as a constant."""
        for divisor in divisors:
            value = number(self._graph, self._states.facts, divisor)
            if value is None:
                return UNKNOWN
            if self._is_count(value, tensor):
                return MEAN
        return SUM

    def _is_count(self, value, tensor):
        if value != int(value) or value < 2:
            return False
        inputs = self._inputs(tensor.node)
        shape = self._states.facts.shape(inputs[0]) if inputs else None
        if shape and None not in shape and value == np.prod(shape):
            return True
        rows = self._states.rows or data_set_rows(self._graph)
        return bool(rows) and rows > 1 and value % rows == 0

    def _checked(self, tensor, terms):
        """The Term of a tensor that is one on all ways; UNKNOWN if it is part of the loss in another way besides."""
        kinds = {term.kind for term in terms}
        term = next(iter(terms))
        consumers = {name for name, place in self._graph.consumers.get(tensor.node, ()) if name in self._behind}
        if len(kinds) > 1 or not consumers <= self._between and term.kind == SUM:
            return Term(term.tensor, UNKNOWN, term.node)
        return term
