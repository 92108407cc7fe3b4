"""Deep gradient compression (Lin et al. 2017): which gradients are compressed, and when how much of them is sent."""

from dataclasses import dataclass, replace
from typing import Dict, Tuple

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.graph.types import FLOAT32
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import num_elements
from epl.plan.sync.gradients import dense_collective
from epl.program.collective import SPARSE_ALL_REDUCE
from epl.program.program import Compressed

_MOMENTUM = frozenset(["ApplyMomentum", "ResourceApplyMomentum"])
# Of these operations' inputs.
SLOT, GRADIENT, MOMENTUM = 1, 3, 4
ENTRY_BYTES = 8  # of a number that is sent: its place, and itself


@dataclass(frozen=True)
class Dgc:
    """What is compressed.

    Attributes:
      sparsity: the parts that are not sent, each for an equal share of the ramp.
      begin_step: steps before the ramp.
      ramp_steps: its length.
      clip_norm: what a worker's gradients are clipped by, over all workers; 0: they are not.
      gradients: tensor to its Compressed.
    """

    sparsity: Tuple[float, ...]
    begin_step: int
    ramp_steps: int
    clip_norm: float
    gradients: Dict[str, Compressed]

    def of_group(self, group):
        """The Compressed of a DenseGroup's gradients; none where these travel whole."""
        return tuple(self.gradients[tensor] for tensor in group.tensors if tensor in self.gradients)

    def of_sums(self, sums):
        """The same where sums over micro-batches stand for gradients; `sums`: tensor to its sum."""
        found = [replace(each, gradient=sums[tensor]) for tensor, each in self.gradients.items()]
        return replace(self, gradients={each.gradient: each for each in found})

    def sent_bytes(self, group):
        """Of a DenseGroup that is compressed, in a step after the ramp."""
        kept = 1.0 - self.sparsity[-1]
        return ENTRY_BYTES * sum(max(1, int(each.num_elements * kept + 0.5)) for each in self.of_group(group))


def compressible(program, options):
    """The Compressed gradients of a Program with one copy of the model; their variables are to be added.

    Args:
      program: the Program.
      options: the configuration's `dgc` part.

    Raises:
      UnsupportedError: an optimizer is none that this has been made for, or no gradient is large enough.
    """
    found, largest = [], 0
    for call in program.apply_calls:
        if call.between is not None:
            raise composes.refused(composes.BY_HAND, composes.DGC)
        seen = [canonical_tensor(gradient.values) for gradient, _ in call.gradients]
        for gradient, name in call.gradients:
            if gradient.indices is not None:
                continue
            tensor, variable = canonical_tensor(gradient.values), program.variables[name]
            update = _update(program.graph, call, tensor)
            size = num_elements(variable)
            largest = max(largest, size)
            alone = seen.count(tensor) == 1
            if update is None or not alone or types.base(variable.dtype) != FLOAT32 or size < options.min_elements:
                continue
            slot, stem = node_of(update.input[SLOT]), "%s_dgc/%s" % (PREFIX, name)
            steps = "%s_dgc/call_%d/steps" % (PREFIX, call.index)
            found.append(
                Compressed(tensor, update.name, slot, call.index, size, stem + "/velocity", stem + "/residual", steps)
            )
    if not found:
        raise UnsupportedError(
            "dgc.sparsity compresses gradients of float32 with at least dgc.min_elements=%d numbers, but the largest "
            "of this program has %d. Set dgc.min_elements lower, or dgc.sparsity to []."
            % (options.min_elements, largest)
        )
    return tuple(found)


def plan_dgc(model, options):
    """The Dgc of a model that trains; None where nothing is compressed."""
    if not model.compressed:
        return None
    gradients = {each.gradient: each for each in model.compressed}
    return Dgc(options.sparsity, options.rampup_begin_step, options.rampup_step, options.clip_norm, gradients)


def _update(graph, call, tensor):
    """The node of the optimizer that takes a gradient; None where it is taken several times."""
    producer, found = parse_input(tensor), []
    for name, position in graph.consumers.get(producer.node, ()):
        node = graph.nodes[name]
        of_call = tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call.index
        if of_call and parse_input(node.input[position]) == producer:
            if node.op not in _MOMENTUM or node.attr["use_nesterov"].b or position != GRADIENT:
                raise _unfit("'%s' is updated by %s (%s)" % (node_of(node.input[0]), call.optimizer, node.op))
            found.append(node)
    return found[0] if len(found) == 1 else None


def _unfit(why):
    return UnsupportedError(
        "dgc.sparsity is for tf.train.MomentumOptimizer without Nesterov momentum, but %s. Train with that, or set "
        "dgc.sparsity to []." % why
    )


def compressed_collectives(plan):
    """A Collective of each DenseGroup of which the largest parts are sent."""
    if plan.dgc is None:
        return []
    return [
        replace(
            dense_collective(plan, group, number, SPARSE_ALL_REDUCE),
            num_bytes=plan.dgc.sent_bytes(group),
            wire_dtype=None,
        )
        for number, group in enumerate(plan.aggregation.groups)
        if plan.dgc.of_group(group)
    ]
