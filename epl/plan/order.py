"""The order of collectives, which must be the same in every process."""

from epl.graph.index import node_of


def collective_keys(plan, graph):
    """dict of collective node to what it is sorted by: about when its inputs are ready, then its name.

    Args:
      plan: an epl.plan.plan.Plan.
      graph: the user's Graph, in whose creation order the keys are.
    """
    positions = graph.positions
    keys = {}

    def put(name, slot, tag, tensors):
        last = max(positions[node_of(t)] for t in tensors)
        keys[name] = (last, name, slot, tag)

    for group in plan.aggregation.groups:
        put(group.name, group.slot, group.tag, group.tensors)
    for sparse in plan.aggregation.sparse:
        for name, tag in sparse.collectives(plan.sparse_as_dense):
            put(name, sparse.slot, tag, (sparse.values, sparse.indices))
    for group in plan.state:
        put(group.name, group.slot, group.tag, group.values)
    for merge in plan.merges:
        if merge.over_workers:
            put(merge.name, 0, merge.tag, (merge.tensor,))
    return keys
