"""How the parts of a model that `zero.level` divides are found, one decision after the other."""

import logging
from dataclasses import dataclass
from typing import FrozenSet, Tuple

from epl.graph.index import canonical_tensor
from epl.plan.facts.analysis import analyse
from epl.plan.facts.clipping import find_clipping
from epl.plan.layout.layout import mesh_of, num_copies
from epl.plan.layout.owners import owners_of
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.plan.zero.anchors import anchors_of
from epl.plan.zero.parameters import LEVELS, after_updates, find_divisible, plan_segments, uses_of
from epl.plan.zero.zero import STATE, in_groups
from epl.plan.zero.zero_owners import StagePlaces
from epl.plan.zero.zero_rows import divided_rows
from epl.program.gates import ungated

_LOG = logging.getLogger("epl")
_MIB = 1 << 20


@dataclass(frozen=True)
class TakenValues:
    """Parameters whose values are taken, and not they themselves.

    Attributes:
      variables: the parameters.
      after_updates: what comes after a change of any of them in the same step.
    """

    variables: Tuple[str, ...]
    after_updates: FrozenSet[str]


def plan_values(program, target):
    """The TakenValues of a program whose parameters are divided; None for others, and with one copy of the model."""
    if not _divides_parameters(program, target):
        return None
    analysis = analyse(program)
    return TakenValues(tuple(find_divisible(program, analysis).reads), frozenset(after_updates(program, analysis)))


def plan_clipping(program, target):
    """The Clippings that owners make part of their updates; None where nothing is clipped after it is aggregated, or
    where all copies have to have whole gradients for it."""
    config = target.config
    if config.zero.level in ("", STATE) or not config.communication.clip_after_allreduce or program.role is not None:
        return None
    if program.scaled or program.short or program.partitioned is not None or program.merge_points is not None:
        return None
    if any(call.between is not None for call in program.apply_calls):
        return None
    if len(used_taskgraphs(program)) > 1 or num_copies(program, target) == 1:
        return None
    analysis, found, taken = analyse(program), [], set()
    for call in program.apply_calls:
        clipping = find_clipping(program, analysis, call)
        nodes = {*clipping.members, *(each.joined for each in clipping.sums)} if clipping is not None else taken
        if clipping is not None and not nodes & taken:  # one call alone can have a node
            found.append(clipping)
            taken |= nodes
    return tuple(found) or None


def plan_divided_rows(program, target):
    """The Rows of variables that get shards; None where optimizers' state comes out even without."""
    config = target.config
    if not config.zero.level or config.local_sgd.k_steps or not program.apply_calls or program.role is not None:
        return None
    apart = config.offload.level or config.dgc.sparsity or config.communication.wire_dtype != "float32"
    if apart or any(call.between is not None for call in program.apply_calls):
        return None
    used = used_taskgraphs(program)
    mesh = mesh_of(used, config, target.cluster)
    if mesh.copies.size == 1 or mesh.is_spread or program.partitioned is not None:
        return None
    bare = ungated(program) if program.scaled else program
    size, analysis = in_groups(mesh, config).state_groups[0].size, analyse(bare)
    places = StagePlaces(owners_of(bare, analysis, stages_of(bare, used), mesh))
    uses = {}
    if config.zero.level in LEVELS:
        uses = uses_of(bare, analysis, find_divisible(bare, analysis).reads, config.zero.level)
    whole = _clipped_parameters(bare, config) if uses else frozenset()
    return tuple(divided_rows(bare, analysis, size, places, uses, whole)) or None


def _clipped_parameters(program, config):
    """Variables of which gradients are aggregated before the program clips them: those take rows of the whole, which no
    device has where parameters are divided."""
    if not (config.communication.clip_after_allreduce or program.scaled or program.short):
        return frozenset()
    computed = {canonical_tensor(gradient.values) for gradient, _ in program.computed}
    pairs = [pair for call in program.apply_calls for pair in call.gradients]
    return frozenset(v for gradient, v in pairs if canonical_tensor(gradient.values) not in computed)


def plan_parameters(program, target):
    """The Segments in which devices get the parameters that other devices keep; None where each device has all
    parameters, as with one copy of the model."""
    if not _trains(program, target):
        return None
    zero, analysis = target.config.zero, analyse(program)
    anchors = anchors_of(program, analysis, zero.segment_anchors)
    if num_copies(program, target) == 1:
        return None
    found = find_divisible(program, analysis)
    if found.whole:
        first = next(iter(found.whole))
        others = " and %d other parameters stay" % (len(found.whole) - 1) if len(found.whole) > 1 else " stays"
        _LOG.warning("zero.level: '%s'%s whole on every device: %s.", first, others, found.whole[first])
    return plan_segments(program, analysis, found.reads, zero.level, zero.segment_mb * _MIB, anchors)


def _divides_parameters(program, target):
    return _trains(program, target) and num_copies(program, target) > 1


def _trains(program, target):
    """Whether it trains with parameters that several copies of the model would divide."""
    return target.config.zero.level in LEVELS and bool(program.apply_calls) and program.role is None
