"""What is merged of copies that have different parts of the batch (cluster.device_weights): products with these."""

from dataclasses import replace

from epl.graph.index import node_of
from epl.plan.facts.names import PREFIX
from epl.plan.sync.batch_norm import SyncedMean


def weighed_name(tensor, over_workers):
    """The node, in the first copy, of a tensor's product; over_workers: for the mean over all workers' copies."""
    return "%s_weighed%s/%s" % (PREFIX, "" if over_workers else "_here", tensor.replace(":", "_output_"))


def tensors_to_weigh(plan):
    """(tensor, whether it stands for the mean over all workers' copies, else over this worker's) pairs, in order."""
    aggregation = plan.aggregation
    found = [(tensor, True) for group in aggregation.groups for tensor in group.tensors]
    found += [(each.values, True) for each in aggregation.sparse]
    found += [(norm.tensor, True) for norm in plan.batch_norms if isinstance(norm, SyncedMean)]
    found += [(tensor, True) for group in plan.state if group.how == "mean" for tensor in group.values]
    return found + [(merge.source, merge.over_workers) for merge in plan.merges if merge.how == "mean"]


def plan_weighed(program, plan):
    """The Plan of a program whose copies' tensors are weighed: it merges the products, known as what they are made of.

    Args:
      program: the Program; its `weighed` says what was added.
      plan: the Plan before.
    """
    if not program.weighed:
        return plan

    def product(tensor, over_workers=True):
        return program.weighed.get((tensor, over_workers), tensor)

    aggregation = plan.aggregation
    sources = {name: node_of(tensor) for (tensor, _), name in program.weighed.items()}
    of = {each: node for name, node in sources.items() for each in (name, name + "/factor", name + "/cast")}
    stage_of, owners, keepers = (
        dict(known, **{each: known[node] for each, node in of.items() if node in known})
        for known in (plan.stage_of, plan.owners, plan.keepers)
    )
    merged = {tensor for group in aggregation.groups for tensor in group.tensors}
    merged.update(each.values for each in aggregation.sparse)
    return replace(
        plan,
        aggregation=replace(
            aggregation,
            groups=tuple(replace(g, tensors=tuple(map(product, g.tensors))) for g in aggregation.groups),
            sparse=tuple(replace(each, values=product(each.values)) for each in aggregation.sparse),
            consumers={
                product(tensor) if tensor in merged else tensor: edges
                for tensor, edges in (aggregation.consumers or {}).items()
            },
        ),
        state=tuple(
            replace(group, values=tuple(map(product, group.values))) if group.how == "mean" else group
            for group in plan.state
        ),
        batch_norms=tuple(
            replace(norm, tensor=product(norm.tensor)) if isinstance(norm, SyncedMean) else norm
            for norm in plan.batch_norms
        ),
        merges=tuple(
            replace(merge, source=product(merge.source, merge.over_workers)) if merge.how == "mean" else merge
            for merge in plan.merges
        ),
        stage_of=stage_of,
        owners=owners,
        keepers=keepers,
        analysis=replace(plan.analysis, cloned=plan.analysis.cloned.union(of)),
    )
