r"""Gives each worker the parameters that others hold, where it computes with them (`zero.level` "v2" and "v3").

    read (owner) -> segment (all)   becomes   read (owner) -> flat \
                                                                    EplAllGather -> Slices -> segment (all)
                                                      others' flat /

Devices of one worker get what another one holds from TensorFlow itself. What lies in host memory (`offload.level`)
comes to the host: no device has more of it than the copies that it computes with. Of what the devices of a copy of the
model have a part each (epl.split), those that have the same part get it from its owner: a collective for each shard
rank.
"""

from epl.graph import tags
from epl.graph.node_defs import Type, make_node
from epl.passes.node_workers import of_keeper, of_stage
from epl.passes.nodes import instance_tensor, waits_for_own_gradients
from epl.passes.sync.divide_updates import gather_from_owners
from epl.passes.vectors import empty, padded, parts, reshape
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.merge_points import part_shape
from epl.plan.facts.names import clone_name, micro_batch_name
from epl.plan.facts.variable_sizes import elements_of
from epl.rules import effects


def gather_parameters(program, plan):
    """Between what reads the parameters of a segment and what takes them, an all-gather in each shard rank; one in each
    micro-batch whose segments wait for what differs between these."""
    if plan.zero is None or not plan.zero.segments:
        return program
    edit = program.graph.editor()
    if plan.zero.shard_group.num_workers == 1:
        return program.with_graph(_update_after_takers(program, edit, plan)) if plan.mesh.split else program
    for segment in plan.zero.segments:
        copies = len(program.micro_batches.copies(segment.nodes[0]))
        for micro_batch in range(copies):
            for shard_rank in plan.shard_ranks_of(segment.variables[0]):
                _gather(program.graph, edit, plan, segment, shard_rank, micro_batch)
    return program.with_graph(edit.finish())


def _gather(graph, edit, plan, segment, shard_rank, micro_batch):
    """Replaces the nodes of a segment in a shard rank of devices (None: all) and one micro-batch."""
    zero, host, stem = plan.zero, plan.mesh.host_device, segment.gather_of(shard_rank, micro_batch)
    rank_of = {variable: plan.placed(variable).data.rank for variable in segment.variables}
    places = sorted(range(len(segment.variables)), key=lambda place: rank_of[segment.variables[place]])
    shares, all_have = [], of_stage(plan, segment.variables[0])
    known = [(plan.variables[variable].shape, variable) for variable in segment.variables]
    shapes = [part_shape(plan.partitioned, plan.mesh, shape, variable, shard_rank) for shape, variable in known]
    for rank in range(plan.zero.shard_group.size):
        add, flat = of_keeper(plan, rank // zero.shard_group.local, segment.variables[0]), []
        own = [place for place in places if rank_of[segment.variables[place]] == rank]
        for place in own:
            read = graph.nodes[instance_tensor(plan, segment.reads[place], shard_rank or 0)]
            # Also of reads that other workers have, and have placed: all must come to the same (gpu_collectives).
            device = host if tags.HOST in read.attr else read.device
            flat.append(reshape(edit, "%s/%d" % (stem, place), read.name, (-1,), segment.dtype, device, add))
        name, sizes = "%s/from_%d" % (stem, rank), [elements_of(shapes[place]) for place in own]
        vectors = padded(edit, name, flat, sizes, segment.dtype, host, add)
        shares.append(vectors or [empty(edit, name, segment.dtype, host, add)])
    nodes = [micro_batch_name(name, micro_batch) for name in segment.nodes]
    waits = [text for text in graph.nodes[clone_name(nodes[0], shard_rank or 0)].input if text[0] == "^"]
    vector = gather_from_owners(edit, plan, stem, shares, segment.dtype, all_have, waits)
    in_order = [shapes[place] for place in places]
    for place, value in zip(places, parts(edit, stem + "/parts", vector, in_order, segment.dtype, host, all_have)):
        for instance in plan.mesh.takers(shard_rank):
            node = edit.node(clone_name(nodes[place], instance.index))
            node.CopyFrom(_handing_on(node, value, segment.dtype))


def _update_after_takers(program, edit, plan):
    """The Graph in which the owner of a reference variable that is whole on the devices of a copy of the model changes
    it after all that takes it from there has done so: what they get is the variable's own memory."""
    graph, zero = program.graph, plan.zero
    for update in zero.updates:
        variable = update.variable
        is_resource = graph.nodes[variable].op == "VarHandleOp"
        if variable not in zero.parameters or plan.placed(variable).is_divided or is_resource:
            continue
        writes = sorted(name for name in update.members if effects.is_write(graph.nodes[name].op))
        for instance in plan.mesh.active:
            waits = waits_for_own_gradients(program, variable, instance.index)
            for name in writes:
                if variable_of(graph, name) == variable:
                    edit.node(instance_tensor(plan, name, instance.index)).input.extend(waits)
    return edit.finish()


def _handing_on(node, value, dtype):
    """The node of a segment, which waits no more: the collective does."""
    made = make_node("Identity", node.name, [value], node.device, T=Type(dtype))
    for key, attr in node.attr.items():
        if key.startswith("_"):
            made.attr[key].CopyFrom(attr)
    return made
