"""What devices exchange that have parts of tensors (epl.split): the collectives of a partition, as they are carried."""

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.types import DTYPE_BYTES, INT64
from epl.partition.partitioned import SEND_ROWS
from epl.plan.facts.names import joined_name, micro_batch_name, micro_batch_tensor
from epl.program.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    OF_PARTS,
    READY,
    REDUCE_SCATTER,
    SHARDS,
    UNORDERED,
    collective,
)


def shard_collectives(plan):
    """The Collectives of the devices that have parts of tensors; within a worker each is a node of plain operations."""
    done, found = plan.partitioned, []
    for each in done.collectives if done is not None else ():
        repeated = plan.micro_batches is not None and each.node in plan.micro_batches.nodes
        for micro_batch in range(plan.micro_batches.count if repeated else 1):
            found.extend(_carried(plan, each, micro_batch))
    return found


def carried_as(node, kind, shards, workers):
    """The operation that carries a collective of shards between workers, as parts of different size are not sent.

    Args:
      node: of the graph of a shard.
      kind: "all_reduce" and so on.
      shards, workers: how many take part.
    """
    if workers > 1 and kind == REDUCE_SCATTER and node.attr["combine"].s.decode() != "sum":
        return ALL_REDUCE
    if workers > 1 and kind == ALL_TO_ALL and node.op != SEND_ROWS:
        size = node.attr["size"].i
        return ALL_GATHER if size <= 0 or size % shards else kind
    return kind


def _carried(plan, each, micro_batch):
    mesh, group = plan.mesh, plan.mesh.tensor_group
    node, between = plan.partitioned.graph.nodes[each.node], group.num_workers > 1
    operation = carried_as(node, each.kind, mesh.num_shards, group.num_workers)
    copy, given = micro_batch_name(each.node, micro_batch), node.input[0]
    if micro_batch and node_of(given) in plan.micro_batches.nodes:
        given = micro_batch_tensor(given, micro_batch)
    name = joined_name(copy) if between else copy
    num_bytes = each.num_bytes * mesh.shard_ranks // mesh.num_shards if each.kind in OF_PARTS else each.num_bytes
    exchanges = [(name, operation, num_bytes, node.attr["T"].type)]
    if between and node.op == SEND_ROWS and mesh.shard_ranks > 1:  # and how many are for each device of a worker
        exchanges.append((name + "/counts", ALL_TO_ALL, mesh.num_shards * mesh.shard_ranks * DTYPE_BYTES[INT64], INT64))
    for exchanged, by, size, dtype in exchanges:
        yield collective(
            exchanged,
            by,
            SHARDS,
            (each.tensor,),
            group,
            0,
            size,
            dtype,
            each.phase,
            consumers=((each.wanted_by, -1),) if each.wanted_by and each.wanted_by != each.tensor else (),
            stage=plan.stage(each.node),
            micro_batch=micro_batch,
            times=int(each.phase != tags.SAVE),
            turn=READY if between else UNORDERED,
            after=(exchanged,) if between else (),
            given=given if exchanged == name else "",
            result=copy,
        )
