r"""Adds up what owners of rows know of all elements of a variable, such as a norm's square (zero.level).

    Sum (owner 0) \                    Sum (owner 0) \
                   AddN   becomes                     EplAllReduce -> Identity
    Sum (owner 1) /                    Sum (owner 1) /
"""

from epl.graph.node_defs import Type, become, constant, make_node
from epl.passes.node_workers import of_keeper, of_stage
from epl.passes.nodes import collective_node
from epl.plan.facts.names import clone_name
from epl.plan.zero.zero_sums import owned_sums


def join_sums(program, plan):
    """One all-reduce for each sum: of a number, or of one for each column."""
    found = owned_sums(plan)
    if not found:
        return program
    edit = program.graph.editor()
    for each in found:
        reduced = _all_reduce(edit, plan, each)
        for instance in plan.mesh.computing(plan.stage(each.joined)):
            become(edit.node(clone_name(each.joined, instance.index)), "Identity", [reduced], T=Type(each.dtype))
    return program.with_graph(edit.finish())


def _all_reduce(edit, plan, each):
    copies = plan.zero.shard_group
    here = plan.zero.of_worker(copies.index)
    parts = [_part(edit, plan, each, rank) for rank in range(copies.size)]
    # All workers have the same nodes, so that they know of the same messages, and each sends its own part.
    inputs = [parts[rank] for rank in here] + ["^" + part for rank, part in enumerate(parts) if rank not in here]
    options = dict(N=1, R=len(here), num_inputs=len(here), reduce_op="sum")
    node = collective_node(plan, plan.collective(each.name), each.name, inputs, each.dtype, **options)
    return of_stage(plan, each.joined)(edit, node)


def _part(edit, plan, each, rank):
    """What a copy of the model adds; in its worker alone."""
    host, add = plan.mesh.host_device, of_keeper(plan, rank // plan.zero.shard_group.local, each.joined)
    stem, own = "%s/from_%d" % (each.name, rank), each.parts_of(rank)
    if not own:
        zeros = constant(stem, 0.0, each.dtype, host)
        for size in each.shape:
            zeros.attr["value"].tensor.tensor_shape.dim.add().size = size
        return add(edit, zeros)
    return add(edit, make_node("AddN", stem, own, host, N=len(own), T=Type(each.dtype)))
