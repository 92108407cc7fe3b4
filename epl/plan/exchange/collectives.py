"""The one list of what ranks exchange: each part of the plan says it of its own decisions."""

from dataclasses import replace

from epl.graph import tags, types
from epl.graph.index import format_input, node_of
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.exchange.shard_collectives import shard_collectives
from epl.plan.facts.names import gathered_name
from epl.plan.facts.user_collectives import user_made_collectives
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.input.equal_steps import data_collectives
from epl.plan.layout.mesh import DATA as DATA_AXIS
from epl.plan.layout.mesh import STAGE
from epl.plan.precision.found_inf import stages_collectives
from epl.plan.sync.batch_norm import norm_collectives
from epl.plan.sync.dgc import compressed_collectives
from epl.plan.sync.gradients import gradient_collectives
from epl.plan.sync.local_sgd import average_collectives
from epl.plan.sync.outputs import output_collectives
from epl.plan.sync.state import state_collectives
from epl.plan.sync.wire_types import wire_collectives
from epl.plan.zero.zero import (
    owners_found_inf_collectives,
    scattered_collectives,
    segment_collectives,
    update_collectives,
)
from epl.plan.zero.zero_sums import sum_collectives
from epl.program.collective import (
    ALL_GATHER,
    CHECKPOINTS,
    DATA,
    LAST,
    MESSAGES,
    OPERATIONS,
    RECEIVE,
    SEND,
    SENDS,
    Collective,
    collective,
)


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

    Not in it are those of which only the finished graph tells, see `collectives_in`.
    """
    apart = compressed_collectives(plan) + wire_collectives(plan) + scattered_collectives(plan)
    found = apart + gradient_collectives(plan, _groups_of(plan, apart))
    for of_part in _PARTS:
        found.extend(of_part(plan))
    return tuple(found)


def collectives_in(program):
    """The Collectives of a compiled Program, as a tuple: those of its plan, and what only the finished graph tells.

    That is what workers who have parts of the same model compare of data, and send to checkpoints; and the messages of
    a part. Of what follows from sizes of the finished graph `num_bytes` is None.
    """
    planned = program.plan.collectives
    return planned + tuple(_of_shards(program, {each.name for each in planned})) + tuple(_messages(program))


def _of_shards(program, planned):
    """What workers with parts of the same model exchange besides parts of its tensors."""
    plan, graph = program.plan, program.graph
    for name in graph.find(_OF_SHARDS.__contains__) if plan.shards_span_workers else ():
        node = graph.nodes[name]
        if tags.get_str(node, tags.ROLE) != OF_SHARDS or name in planned or tags.FETCHED in node.attr:
            continue
        saved, sends = tags.phase(node) == tags.SAVE, node.op in SENDS
        tensors = tuple(format_input(*each) for each in graph.inputs[name] if each.index >= 0)
        made = collective(
            name,
            _OF_SHARDS[node.op],
            CHECKPOINTS if saved else DATA,
            tensors[:1],
            plan.mesh.tensor_group,
            0,
            None,
            node.attr["T"].type,
            tags.phase(node),
            times=int(not saved),
            after=(name,),
        )
        yield replace(made, workers=2, devices=2) if sends else made


def _messages(program):
    """What this worker and others that have parts of the same graph send each other."""
    part = program.part
    for message in part.messages if part is not None else ():
        if part.index not in (message.source, message.target):
            continue
        sends = part.index == message.source
        near = part.channels.are_neighbours(message.source, message.target)
        yield Collective(
            name=message.send if sends else message.receive,
            operation=SEND if sends else RECEIVE,
            purpose=MESSAGES,
            tensors=(message.tensor,),
            axes=(STAGE,) if near else (DATA_AXIS,),
            workers=2,
            devices=2,
            communicator=part.first_slot + message.channel,
            tag=message.tag,
            num_bytes=None,
            dtype=None,
            phase=tags.phase(part.whole.nodes[node_of(message.tensor)]),
            consumers=tuple((consumer, -1) for consumer in message.consumers),
            stage=program.plan.stage(message.tensor),
            after=(message.tensor,),
        )


_OF_SHARDS = dict(OPERATIONS, **SENDS)

_PARTS = (
    segment_collectives,
    stages_collectives,
    owners_found_inf_collectives,
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
