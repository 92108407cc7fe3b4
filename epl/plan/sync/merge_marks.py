"""What the copies of a model that is to be divided (epl.split) merge, found while it is whole.

Of parts it could not be told any more what is a gradient, and what a mean over a batch.
"""

from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph.index import canonical_tensor
from epl.plan.facts.analysis import analyse
from epl.plan.facts.consistency import check_after_all_reduce, check_updates
from epl.plan.layout.layout import is_split, mesh_of
from epl.plan.layout.stages import has_micro_batches, used_taskgraphs
from epl.plan.sync.batch_norm import plan_batch_norm
from epl.plan.sync.gradients import find_gradients, plan_aggregation
from epl.plan.sync.state import StateGroup, plan_state
from epl.program.program import ApplyCall, Gradient


@dataclass(frozen=True)
class Merged:
    """What copies merge.

    Attributes:
      gradients: (ApplyCall, Gradient, variable) of each.
      consumers: tensor of a gradient to the (node, input position) pairs that take its aggregate.
      state: the StateGroups.
      outputs: tensor of a collection (epl.GraphKeys) to the one that is merged in its place, in order.
      norms: what batch normalisation synchronises (epl.plan.sync.batch_norm).
    """

    gradients: Tuple[Tuple[ApplyCall, Gradient, str], ...]
    consumers: Dict[str, Tuple[Tuple[str, int], ...]]
    state: Tuple[StateGroup, ...]
    outputs: Dict[str, str]
    norms: Tuple = ()


def plan_merges(program, target):
    """What the copies of a program merge; None where nothing is divided or nothing merged.

    Raises:
      CaptureError, PlanError: copies of the model would drift apart; as of models that are not divided.
    """
    config, taskgraphs = target.config, used_taskgraphs(program)
    if program.role is not None or not is_split(taskgraphs):
        return None
    mesh = mesh_of(taskgraphs, config, target.cluster)
    if mesh.copies.size == 1 and not has_micro_batches(program, config):
        return None
    analysis = analyse(program)
    link = target.cluster.machine.link_between(target.cluster.hosts)
    aggregation = plan_aggregation(program, analysis, config.communication, link)
    if config.communication.clip_after_allreduce or program.scaled or program.short:
        check_after_all_reduce(program, analysis, aggregation)
    state = plan_state(program, analysis, aggregation)
    check_updates(program, analysis, aggregation, state)
    found = find_gradients(program, analysis, config.communication, warn=False)
    synced = config.communication.sync_batch_norm and mesh.copies.size > 1
    tensors = sorted({canonical_tensor(tensor) for names in program.merges.values() for tensor in names})
    return Merged(
        tuple((call, gradient, variable) for call, pairs in found.gradients for gradient, variable in pairs),
        {tensor: tuple(edges) for tensor, edges in found.consumers.items()},
        tuple(state),
        {tensor: program.loss_sources.get(tensor, tensor) for tensor in tensors},
        plan_batch_norm(program, analysis) if synced else (),
    )
