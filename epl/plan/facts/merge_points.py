"""Where the copies of a model whose tensors are divided (epl.split) merge what they have.

What is merged is found in the whole model, and a node stands where the merged value is taken (epl.passes.model.
mark_merges). Once tensors are divided, that node lies as what follows wants it; what it takes is merged, by each device
with those that have the same part.
"""

from dataclasses import replace

from epl.graph.index import canonical_tensor, node_of
from epl.partition.conversion import shard_sizes


def merged_at(model, node):
    """The tensor that copies merge at one of the nodes."""
    return canonical_tensor(model.graph.nodes[node].input[0])


def source_of(model, tensor):
    """What copies merge for a tensor of a collection (epl.GraphKeys), a canonical name."""
    if model.merge_points is not None:
        return canonical_tensor(model.merge_points.outputs[tensor])
    return model.loss_sources.get(tensor, tensor)


def merged_outputs(model):
    """The nodes of what copies merge for collections (epl.GraphKeys)."""
    return [node_of(source_of(model, canonical_tensor(tensor))) for names in model.merges.values() for tensor in names]


def shard_ranks_at(model, node, shard_ranks):
    """The groups of devices that merge a tensor: None, once for all parts, or each shard rank
    (epl.plan.layout.mesh)."""
    return range(shard_ranks) if canonical_tensor(node) in model.partitioned.placements else (None,)


def in_shard_rank(name, shard_rank):
    """The name of what merges something in a shard rank."""
    return name if shard_rank is None else "%s/part_%d" % (name, shard_rank)


def part_shape(partitioned, mesh, shape, node, shard_rank):
    """The shape of what a shard rank's devices have of a tensor, by that of the whole and its node; shard rank None:
    the same.

    Args:
      partitioned: the epl.partition.partitioned.Partitioned of the model.
      mesh: the Mesh.
    """
    if shard_rank is None:
        return shape
    dim = partitioned.placements[canonical_tensor(node)].dim
    size = shard_sizes(shape[dim], mesh.num_shards)[mesh.instances[shard_rank].shard]
    return shape[:dim] + (size,) + shape[dim + 1 :]


def state_at_points(model, shard_ranks):
    """The StateGroups of a divided model."""
    found = []
    for group in model.merge_points.state:
        kinds = {}
        for node, size in zip(group.values, group.sizes):
            kinds.setdefault(tuple(shard_ranks_at(model, node, shard_ranks)), []).append((node, size))
        for number, (own_shard_ranks, members) in enumerate(kinds.items()):
            name = group.name if len(kinds) == 1 else "%s/%d" % (group.name, number)
            values, consumers = tuple(merged_at(model, n) for n, _ in members), tuple((n, 0) for n, _ in members)
            for shard_rank in own_shard_ranks:
                own, parts = in_shard_rank(name, shard_rank), 1 if shard_rank is None else model.partitioned.shards
                sizes = tuple(size // parts if size is not None else None for _, size in members)
                merged = dict(name=own, values=values, consumers=consumers, shard_rank=shard_rank, sizes=sizes)
                found.append(replace(group, **merged))
    return tuple(found)
