"""What a plan says of the copies that each micro-batch of a step has, made of what it says of the one copy."""

from dataclasses import replace

from epl.graph import tags
from epl.plan.facts.names import PREFIX


def merged_before_name(name):
    """The node that merges over micro-batches what `name` merges over instances."""
    return "%s_micro_batches/%s" % (PREFIX, name)


def plan_copies(program, plan):
    """The Plan of a program with copies for micro-batches: what it says of a node it says of its copies, and sums stand
    for gradients.

    Args:
      program: the Program; its `micro_batches` says what was added.
      plan: the Plan of the one copy.
    """
    if plan.micro_batches is None:
        return plan
    graph, unrolled = program.graph, program.micro_batches
    replaced, added = unrolled.sums, unrolled.added
    originals, sums = {copy: n for n in unrolled.nodes for copy in unrolled.copies(n)[1:]}, set(replaced.values())
    for name in added:
        if name not in originals and name not in sums and tags.ORIGINAL in graph.nodes[name].attr:
            originals[name] = tags.get_str(graph.nodes[name], tags.ORIGINAL)
    analysis = plan.analysis
    stage_of, owners, keepers = dict(plan.stage_of), dict(plan.owners), dict(plan.keepers)
    for known in (stage_of, owners, keepers):
        known.update((copy, known[name]) for copy, name in originals.items() if name in known)
    if stage_of or owners or keepers:
        stages = {taskgraph: stage for stage, taskgraph in enumerate(plan.micro_batches.taskgraphs)}
        for name in added:
            if name not in originals:
                _settle(graph, name, stages, stage_of, (owners, keepers))
        for name in added:
            if name not in stage_of:  # constants, which are where they are taken
                takers = [stage_of[c] for c, _ in graph.consumers.get(name, ()) if c in stage_of]
                stage_of.update((name, stage) for stage in takers[:1])

    def with_copies(names):
        return names.union(copy for copy, name in originals.items() if name in names)

    aggregation, written = plan.aggregation, frozenset(analysis.writes)
    return replace(
        plan,
        analysis=replace(
            analysis,
            writes=analysis.writes + tuple(graph.in_order(with_copies(written) - written)),
            cloned=analysis.cloned.union(added),
            varying=with_copies(analysis.varying),
            in_control_flow=with_copies(analysis.in_control_flow),
        ),
        aggregation=replace(
            aggregation,
            groups=tuple(
                replace(group, tensors=tuple(replaced.get(t, t) for t in group.tensors)) for group in aggregation.groups
            ),
            sparse=tuple(
                replace(each, values=replaced[each.values], indices=replaced[each.indices])
                for each in aggregation.sparse
            ),
            consumers={replaced.get(tensor, tensor): edges for tensor, edges in aggregation.consumers.items()},
        ),
        dgc=plan.dgc.of_sums(replaced) if plan.dgc is not None else None,
        merges=tuple(_merged_before(merge) for merge in plan.merges),
        stage_of=stage_of,
        owners=owners,
        keepers=keepers,
        staying=with_copies(plan.staying),
    )


def _merged_before(merge):
    """What merges over instances what has been merged over micro-batches."""
    name = merged_before_name(merge.name)
    return replace(merge, tensor=name, source=name)


def _settle(graph, name, stages, stage_of, places):
    """Puts a node that joins copies where it belongs, or else what it takes first."""
    node = graph.nodes[name]
    near = [producer for producer, index in graph.inputs[name] if index >= 0]
    if tags.TASKGRAPH in node.attr:
        stage_of[name] = stages.get(node.attr[tags.TASKGRAPH].i, 0)
    elif near and near[0] in stage_of:
        stage_of[name] = stage_of[near[0]]
    for known in places:
        if near and near[0] in known:
            known[name] = known[near[0]]
