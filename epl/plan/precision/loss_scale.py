"""What a scaled loss changes: where gradients start and end, which of them are judged together, and what is left out.

Calls of `apply_gradients` are judged together where they train by the same loss, or by one tf.gradients, or where the
program waits for both (tf.group). One whose gradients come after the updates of another one is judged by itself. What
is judged together has a scale of its own.
"""

from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.analysis import analyse

FLOAT16 = "float16"
_DYNAMIC = "dynamic"
_FLOATS = frozenset(types.FLOAT_TYPES)
_INSTEAD = 'Set amp.dtype="bfloat16", which needs no loss scale, or amp.loss_scale=1 and scale the loss in the program.'


@dataclass(frozen=True)
class Scaled:
    """Calls of apply_gradients whose gradients are judged together.

    Attributes:
      calls: their numbers.
      seeds: nodes that start tf.gradients.
      results: the tensors that tf.gradients returned: values of dense and of sparse gradients.
      inside: the nodes that lead to results, and so see scaled gradients.
      judged: (tensor, number of the call) pairs that must be finite; aggregated by then.
      writes: the operations that a step with others leaves out.
      beside: the trained variable of the first gradient.
    """

    calls: Tuple[int, ...]
    seeds: Tuple[str, ...]
    results: Tuple[str, ...]
    inside: FrozenSet[str]
    judged: Tuple[Tuple[str, int], ...]
    writes: Tuple[str, ...]
    beside: str


@dataclass(frozen=True)
class Scaling:
    """How a loss is scaled.

    Attributes:
      scaled: a Scaled for each scale.
      scale: the number; None where it adapts.
      first: of one that adapts, the first value.
      grows_after, shrinks_after: steps without and with infinite gradients after which it changes.
      growth, shrinkage: by which it is multiplied then.
    """

    scaled: Tuple[Scaled, ...]
    scale: Optional[float]
    first: float
    grows_after: int
    shrinks_after: int
    growth: float
    shrinkage: float


def plan_scaling(program, target):
    """The Scaling of a program that computes in float16 and does not scale its loss itself; else None.

    Raises:
      UnsupportedError: as `plan_loss_scale`; or an operation that updates a variable gives a value.
    """
    amp = target.config.amp
    half = program.sixteen_bits is not None and program.sixteen_bits.name == FLOAT16
    if not half or amp.loss_scale == 1 or not program.apply_calls:
        return None
    scaled = tuple(plan_loss_scale(program))
    for write in [write for each in scaled for write in each.writes]:
        _check_can_be_left_out(program.graph.nodes[write], target.op_def)
    return Scaling(
        scaled,
        None if amp.loss_scale == _DYNAMIC else float(amp.loss_scale),
        float(amp.init_loss_scale),
        amp.incr_every_n_steps,
        amp.decr_every_n_nan_or_inf,
        float(amp.incr_ratio),
        float(amp.decr_ratio),
    )


def _check_can_be_left_out(node, op_def):
    """Raises UnsupportedError for a write that gives something that others may take."""
    kinds = types.output_dtypes(node, op_def(node.op))
    if kinds and (len(kinds) > 1 or not types.is_reference(kinds[0])):
        raise UnsupportedError(
            "amp.dtype=\"float16\" leaves out updates whose gradients are not finite, but '%s' (%s) gives a value "
            'besides. Set amp.dtype="bfloat16", or amp.loss_scale=1 and scale the loss in the program.'
            % (node.name, node.op)
        )


def plan_loss_scale(program):
    """The Scaled of a Program with one copy of the model.

    Raises:
      UnsupportedError: gradients of which is not known where they start, or updates that cannot be left out.
    """
    by_hand = [call for call in program.apply_calls if call.between is not None]
    if by_hand:
        facts = {"variable": by_hand[0].gradients[0][1], "advice": _INSTEAD}
        raise composes.refused(composes.BY_HAND, composes.FLOAT16, **facts)
    calls = [_Call(program, call) for call in program.apply_calls if call.gradients]
    analysis = analyse(program)
    for call in calls:
        call.find_writes(program, analysis)
    return [_scaled(program, group) for group in _together(program.graph, calls)]


class _Call(object):
    """A call of apply_gradients.

    Attributes:
      index: its number.
      beside: the variable of its first gradient.
      judged: tensors.
      gradient_calls: numbers of the calls of tf.gradients that it takes gradients of.
      writes: names, in creation order.
      losses: tensors.
    """

    def __init__(self, program, call):
        self.index, self.beside = call.index, call.gradients[0][1]
        self.gradient_calls, self.losses = set(), set()
        self.judged = self._boundaries(program, call)
        self.writes = ()
        seeds = _seeds(program.graph)
        for number in sorted(self.gradient_calls):
            if number not in seeds:
                raise UnsupportedError(
                    "amp.dtype=\"float16\" multiplies what gradients start with by the loss scale, but those of '%s' "
                    "come from a tf.GradientTape, of which is not known where that is. Take them with tf.gradients or "
                    "the compute_gradients of an optimizer. %s" % (self.beside, _INSTEAD)
                )
            self.losses.update(tags.get_str(program.graph.nodes[seed], tags.SEED) for seed in seeds[number])

    def _boundaries(self, program, call):
        """What tf.gradients returned for this call; for a gradient that comes of none, as the call received it."""
        graph, found = program.graph, []
        computed = {}
        for (gradient, _), number in zip(program.computed, program.gradient_calls):
            computed.setdefault(canonical_tensor(gradient.values), number)
        for gradient, variable in call.gradients:
            own, seen = [], set()
            stack = [canonical_tensor(gradient.values)]
            while stack:
                tensor = stack.pop()
                if tensor in seen:
                    continue
                seen.add(tensor)
                node = graph.nodes[node_of(tensor)]
                if tensor in computed:
                    own.append(tensor)
                    self.gradient_calls.add(computed[tensor])
                elif not _is_float(program, tensor):
                    continue  # indices and shapes are not scaled
                elif tags.phase(node) == tags.BACKWARD:
                    raise UnsupportedError(
                        "amp.dtype=\"float16\": the gradient of '%s' is made of '%s', which tf.gradients did not "
                        "return, so that it is not known how it is scaled. %s" % (variable, tensor, _INSTEAD)
                    )
                else:
                    stack.extend(canonical_tensor(text) for text in node.input if text[0] != "^")
            found.extend(own or [canonical_tensor(gradient.values)])
        return list(dict.fromkeys(found))

    def find_writes(self, program, analysis):
        """Fills in `writes`.

        Raises:
          UnsupportedError: one of them stands in a branch or a function.
        """
        graph, functions = program.graph, Functions(program.graph.library)
        self.writes = tuple(w for w in analysis.writes if _is_of(graph.nodes[w], self.index))
        for write in self.writes:
            if write in analysis.in_control_flow or functions.called_by(graph.nodes[write]):
                raise UnsupportedError(
                    "amp.dtype=\"float16\" leaves out updates whose gradients are not finite, but '%s' is made in a "
                    "branch, a loop or a function. Call the optimizer outside of it. %s" % (write, _INSTEAD)
                )


def _is_of(node, call):
    return tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call


def _seeds(graph):
    """dict of the number of a call of tf.gradients to the nodes that it starts with."""
    found = {}
    for name, node in graph.nodes.items():
        if tags.SEED in node.attr:
            found.setdefault(node.attr[tags.GRADIENT_CALL].i, []).append(name)
    return found


def _together(graph, calls):
    """Lists of the _Calls that are judged together."""
    after = {call.index: graph.descendants(call.writes) for call in calls}
    groups = []
    for call in calls:
        own = [call]
        for group in list(groups):
            if any(_belong(call, other, after) for other in group) and not _one_after_the_other(own, group, after):
                groups.remove(group)
                own = group + own
        groups.append(own)
    seen = {}
    for group in groups:
        for number in {n for call in group for n in call.gradient_calls}:
            if seen.setdefault(number, group) is not group:
                raise UnsupportedError(
                    "amp.dtype=\"float16\": the gradients of '%s' come from one tf.gradients, but some are applied "
                    "before others. Take them in two calls. %s" % (group[0].beside, _INSTEAD)
                )
    return groups


def _belong(call, other, after):
    if call.gradient_calls & other.gradient_calls or call.losses & other.losses:
        return True
    return not after[call.index].isdisjoint(after[other.index])


def _one_after_the_other(calls, others, after):
    """Whether gradients of some calls come after updates of others."""
    pairs = [(a, b) for a in calls for b in others] + [(a, b) for a in others for b in calls]
    return any(node_of(tensor) in after[a.index] for a, b in pairs for tensor in b.judged)


def _scaled(program, group):
    graph = program.graph
    numbers = {number for call in group for number in call.gradient_calls}
    seeds = _seeds(graph)
    tensors = [
        canonical_tensor(gradient.values)
        for (gradient, _), number in zip(program.computed, program.gradient_calls)
        if number in numbers
    ]
    results = [t for t in dict.fromkeys(tensors) if _is_float(program, t)]
    judged = {}
    for call in group:
        for tensor in call.judged:
            judged.setdefault(tensor, call.index)
    return Scaled(
        calls=tuple(call.index for call in group),
        seeds=tuple(seed for number in sorted(numbers) for seed in seeds[number]),
        results=tuple(results),
        inside=frozenset(graph.ancestors([node_of(tensor) for tensor in results], data_only=True)),
        judged=tuple(judged.items()),
        writes=tuple(graph.in_order(write for call in group for write in call.writes)),
        beside=group[0].beside,
    )


def _is_float(program, tensor):
    spec = program.spec_of(tensor)
    return spec is None or spec.dtype in _FLOATS
