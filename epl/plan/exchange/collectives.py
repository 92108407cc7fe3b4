"""The one list of what ranks exchange: each part of the plan says it of its own decisions."""

from dataclasses import replace

from epl.graph import tags, types
from epl.plan.exchange.shards import shard_collectives
from epl.plan.facts.names import gathered_name, tag_of
from epl.plan.facts.user_collectives import user_made_collectives
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.input.equal_steps import data_collectives
from epl.plan.precision.verdicts import stages_collectives
from epl.plan.sync.batch_norm import norm_collectives
from epl.plan.sync.dgc import compressed_collectives
from epl.plan.sync.gradients import gradient_collectives
from epl.plan.sync.local_sgd import average_collectives
from epl.plan.sync.outputs import output_collectives
from epl.plan.sync.state import state_collectives
from epl.plan.sync.wire import wire_collectives
from epl.plan.zero.zero import (
    agreement_collectives,
    scattered_collectives,
    segment_collectives,
    update_collectives,
)
from epl.plan.zero.zero_sums import sum_collectives
from epl.program.collective import ALL_GATHER, CHECKPOINTS, LAST, collective


def kept_collectives(plan):
    """A Collective of each variable of which each worker has a value of its own, and checkpoints all of them."""
    found, copies = [], replace(plan.mesh.copies, size=plan.mesh.copies.num_workers)  # of its copies one
    for name in plan.gathered:
        variable, node = plan.variables[name], gathered_name(name)
        found.append(
            collective(
                node,
                ALL_GATHER,
                CHECKPOINTS,
                (name,),
                copies,
                0,
                tag_of(node),
                size_bytes(variable),
                types.base(variable.dtype),
                tags.SAVE,
                times=0,
                turn=LAST,
                after=(),
            )
        )
    return found


def collectives_of(plan):
    """The Collectives of a Plan, as a tuple; `Plan.collectives` has them.

    Not in it are those of which only the finished graph tells: of data that workers who have parts of the same model
    compare, and of what they send to checkpoints; and messages (epl.passes.messages).
    """
    apart = compressed_collectives(plan) + wire_collectives(plan) + scattered_collectives(plan)
    found = apart + gradient_collectives(plan, _groups_of(plan, apart))
    for of_part in _PARTS:
        found.extend(of_part(plan))
    return tuple(found)


_PARTS = (
    segment_collectives,
    stages_collectives,
    agreement_collectives,
    sum_collectives,
    update_collectives,
    state_collectives,
    norm_collectives,
    average_collectives,
    output_collectives,
    data_collectives,
    user_made_collectives,
    shard_collectives,
    kept_collectives,
)


def _groups_of(plan, apart):
    """Names of the DenseGroups that these Collectives are of."""
    taken = {tensor for each in apart for tensor in each.tensors}
    return {group.name for group in plan.aggregation.groups if group.tensors[0] in taken}
