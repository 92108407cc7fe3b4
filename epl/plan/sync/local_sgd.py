"""LocalSGD (Lin et al. 2018, "Don't Use Large Mini-Batches, Use Local SGD"): every copy of the model takes some steps
by itself, with the gradients of its own data; then the copies' variables are averaged."""

import logging
import math
from dataclasses import dataclass
from typing import Optional, Tuple

from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.functions import Functions
from epl.graph.index import node_of
from epl.plan.facts.analysis import variables_of
from epl.plan.facts.consistency import drifting
from epl.plan.facts.generators import find_generators
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import cut_evenly, size_bytes
from epl.program.collective import ALL_REDUCE, AVERAGES, collective
from epl.rules import effects

_LOG = logging.getLogger("epl")


@dataclass(frozen=True)
class AverageGroup:
    """Variables that are averaged in one all-reduce.

    Attributes:
      name: of the all-reduce node.
      variables: their names.
      dtype: DataType number.
      num_bytes: of one copy of them.
      overlapped_name: of the all-reduce of what they were at the end of a period (local_sgd.overlap).
    """

    name: str
    variables: Tuple[str, ...]
    dtype: int
    num_bytes: int

    @property
    def overlapped_name(self):
        return self.name + "/late"


@dataclass(frozen=True)
class LocalSgd:
    """When what is averaged.

    Attributes:
      k_steps: training steps of a period.
      begin_step: until this step a period is one step.
      groups: what is averaged.
      first_steps: of the first period, where later ones follow from the loss; None: all have `k_steps`.
      losses: where periods follow from them, (the tensor of which gradients are taken, the node where its gradient
        begins).
      overlap: whether an average is applied one period late, which needs no step to wait for it.
    """

    k_steps: int
    begin_step: int
    groups: Tuple[AverageGroup, ...]
    first_steps: Optional[int] = None
    losses: Tuple[Tuple[str, str], ...] = ()
    overlap: bool = False

    @property
    def variables(self):
        """Names of all variables that are averaged."""
        return frozenset(name for group in self.groups for name in group.variables)

    @property
    def num_bytes(self):
        """That each copy of the model hands to the collectives when it is averaged."""
        return sum(group.num_bytes for group in self.groups)

    def is_due(self, step, since, period=None):
        """Whether the copies are averaged after a training step.

        Args:
          step: its number, from 1, counted like the program's global step.
          since: how many steps have been taken since the copies were the same, this one included.
          period: steps of the period that is under way, where that follows from the loss.
        """
        return step <= self.begin_step or since >= (period or self.k_steps)

    def next_period(self, first_loss, loss, period):
        """Steps of the period after one, by section 4 of Wang and Joshi (2018): fewer as the loss falls.

        Args:
          first_loss, loss: means over the first period and over the latest one.
          period: steps of the latest one, which stay where the losses tell nothing.
        """
        if not (math.isfinite(loss) and math.isfinite(first_loss) and loss >= 0 and first_loss > 0):
            return period
        # A little less, so that rounding of the losses alone does not make a step more.
        wanted = math.ceil(math.sqrt(loss / first_loss) * self.first_steps - 1e-6)
        return min(max(wanted, 1), self.k_steps)


def plan_local_sgd(model, analysis, mesh, config):
    """The LocalSgd of a model that trains on several devices with local_sgd.k_steps set.

    Raises:
      UnsupportedError: the model, or how it is laid out, is none that LocalSGD has been made for; says what.
    """
    if config.communication.sparse_as_dense:
        _LOG.warning(
            "communication.sparse_as_dense: there is nothing to send densely, as with local_sgd.k_steps each copy of "
            "the model applies its own gradients between averages."
        )
    drift = drifting(model, analysis)
    slots = _slots(model, analysis, drift)
    chosen, candidates = [], (drift | slots) - _own(model, analysis)
    if config.local_sgd.overlap:
        # What only grows or is never negative (second moments, variances) would not stay so.
        candidates &= {variable for _, variable in model.computed}
    for name in sorted(candidates):
        variable = model.variables.get(name)
        if variable is None or variable.is_local or name in slots and not config.local_sgd.average_slots:
            continue
        if types.base(variable.dtype) not in types.FLOAT_TYPES:
            raise UnsupportedError(
                "local_sgd cannot average the variable '%s', which is not of floating-point numbers, but which each "
                "copy of the model changes by its own data. Make it a local variable, which each copy keeps, or leave "
                "local_sgd.k_steps at 0." % name
            )
        chosen.append(variable)
    options, count = config.local_sgd, config.communication.num_communicators
    groups = _groups(chosen, count)
    if not options.adaptive:
        return LocalSgd(options.k_steps, options.begin_step, groups, overlap=options.overlap)
    first = min(options.init_k_steps or options.k_steps, options.k_steps)
    return LocalSgd(options.k_steps, options.begin_step, groups, first, _losses(model))


def _losses(model):
    """What the program takes gradients of, and the nodes where these begin."""
    seeds = ((tags.get_str(node, tags.SEED), name) for name, node in model.graph.nodes.items())
    found = tuple(sorted((loss, seed) for loss, seed in seeds if loss))
    if not found:
        raise UnsupportedError(
            "local_sgd.adaptive needs to know the loss, but this program takes its gradients by other means than "
            "tf.gradients and tf.train's optimizers. Leave local_sgd.adaptive at False."
        )
    return found


def _own(model, analysis):
    """Variables of which each copy of the model has a value of its own."""
    return find_generators(model) | analysis.of_queues


def _slots(model, analysis, drift):
    """Variables that optimizers change by gradients, beside those that they train."""
    graph, functions, found = model.graph, Functions(model.graph.library), set()
    for write in analysis.writes:
        node, changed = graph.nodes[write], variables_of(graph, write, functions) & drift
        if not changed or tags.phase(node) != tags.APPLY:
            continue
        found |= changed
        if "Apply" in node.op:  # a kernel of TensorFlow's, which takes its slots beside the variable
            taken = [graph.nodes[node_of(text)] for text in node.input if text[0] != "^"]
            found.update(other.name for other in taken if other.op in effects.VARIABLES)
    return found - {variable for _, variable in model.computed}


def _groups(variables, num_communicators):
    """AverageGroups of Variables, for each type as many as can be under way at once."""
    kinds = {}
    for variable in variables:
        kinds.setdefault(types.base(variable.dtype), []).append((variable, size_bytes(variable)))
    groups = []
    for dtype, sized in sorted(kinds.items()):
        for members in cut_evenly(sized, num_communicators):
            name = "%s_average/group_%d" % (PREFIX, len(groups))
            names = tuple(variable.name for variable, _ in members)
            groups.append(AverageGroup(name, names, dtype, sum(size for _, size in members)))
    return tuple(groups)


def average_collectives(plan):
    """The Collectives of a Plan's AverageGroups; with local_sgd.overlap two of each, of which the late one is what most
    steps need."""
    local, found = plan.local_sgd, []
    for number, group in enumerate(local.groups if local is not None else ()):
        late = ((group.overlapped_name, 1),) if local.overlap else ()
        for name, times in ((group.name, 0 if late else 1),) + late:
            found.append(
                collective(
                    name,
                    ALL_REDUCE,
                    AVERAGES,
                    group.variables,
                    plan.group_of(group.variables[0]),
                    number % plan.mesh.num_communicators,
                    group.num_bytes,
                    group.dtype,
                    tags.APPLY,
                    times=times,
                    every=local.k_steps,
                )
            )
    return found
