r"""Lets the owner of a variable alone update it, and gives the others what comes of it (zero.level).

    apply (all)  becomes  apply (owner) -> flat \
                                                 EplAllGather -> SplitV -> Assign  (all)
                                 others' flat /

What waited for the update waits for the assignment instead, which a worker makes when it has what the owner sent.
"""

from dataclasses import replace

from epl.graph.build import Type, make_node
from epl.graph.index import format_input, parse_input
from epl.passes.nodes import assign_node, read_node, tagged
from epl.passes.vectors import empty, everywhere, owned_by, reshape, split
from epl.plan.zero import gathered_groups


def divide_updates(program, plan):
    """Between each group of updates and what comes after them, an all-gather of their variables."""
    groups = gathered_groups(plan)
    if not groups:
        return program
    graph, edit, owners = program.graph, program.graph.editor(), dict(plan.owners)
    for group in groups:
        updated = _gather(graph, edit, plan, group, owners)
        for update, name in zip(group.updates, updated):
            _wait(graph, edit, update, name)
    return replace(program.with_graph(edit.finish()), plan=replace(plan, owners=owners))


def _gather(graph, edit, plan, group, owners):
    """Adds the all-gather of a group; returns the names of the assignments, one for each update."""
    mesh, owning_group = plan.mesh, plan.owning_group
    shares = [_share(graph, edit, plan, group, owner, owners) for owner in range(owning_group.num_workers)]
    here = owning_group.index
    gather = make_node(
        "EplAllGather",
        group.name,
        # All workers have the same nodes, so that they know of the same messages, and each sends its own share.
        shares[here] + ["^" + name for owner, share in enumerate(shares) if owner != here for name in share],
        mesh.host_device,
        R=len(shares[here]),
        T=Type(group.dtype),
        comm=owning_group.communicator(group.slot),
        tag=group.tag,
        workers=owning_group.num_workers,
    )
    pieces = [everywhere(edit, tagged(gather, "collective"))]
    if len(group.updates) > 1:
        sizes = [update.size for update in group.updates]
        pieces = split(edit, group.name + "/pieces", pieces[0], sizes, group.dtype, mesh.host_device, everywhere)
    found = []
    for place, (update, piece) in enumerate(zip(group.updates, pieces)):
        stem, holder = "%s/%d" % (group.name, place), graph.nodes[update.variable]
        value = reshape(edit, stem + "/value", piece, update.shape, group.dtype, mesh.host_device, everywhere)
        assign = assign_node(holder, stem + "/assign", value, group.dtype)
        if update.owner == here and not _gives_data(graph, update):  # it has the value already
            assign = make_node("NoOp", assign.name, ["^" + name for name in assign.input], holder.device)
        found.append(everywhere(edit, assign))
    return found


def _gives_data(graph, update):
    """Whether anything takes what an update gives, not only waits for it."""
    consumers = [c for write in update.writes for c in graph.edges.data_consumers.get(write, ())]
    return any(consumer not in update.members for consumer in consumers)


def _share(graph, edit, plan, group, owner, owners):
    """What a worker has updated, as vectors, at least one; these nodes are in that worker alone."""
    add = owned_by(owner, owners)
    stem, flat = "%s/from_%d" % (group.name, owner), []
    for place in group.of_owner(owner):
        update = group.updates[place]
        holder, name = graph.nodes[update.variable], "%s/%d" % (stem, place)
        read = read_node(holder, name + "/read", group.dtype)
        read.input.extend("^" + write for write in update.writes)
        flat.append(reshape(edit, name, add(edit, read), (-1,), group.dtype, holder.device, add))
    return flat or [empty(edit, stem, group.dtype, plan.mesh.host_device, add)]


def _wait(graph, edit, update, name):
    """Lets all that comes after an update come after the assignment."""
    for write in update.writes:
        for consumer, position in graph.consumers.get(write, ()):
            if consumer in update.members:
                continue
            index = parse_input(graph.nodes[consumer].input[position]).index
            edit.set_input(consumer, position, format_input(name, min(index, 0)))
