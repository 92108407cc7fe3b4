r"""Lets the owner of a variable alone update it, and gives the others what comes of it (zero.level).

    apply (all)  becomes  apply (owner) -> flat \
                                                 EplAllGather -> EplParts -> Assign  (all)
                                 others' flat /

What waited for the update waits for the assignment instead, which a worker makes when it has what the owner sent.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import format_input, node_of, parse_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import FLOAT16, FLOAT32, FLOAT64, INT32
from epl.passes.node_workers import of_keeper, of_stage
from epl.passes.nodes import assign_node, collective_node, read_node, waits_for_own_gradients
from epl.passes.vectors import empty, padded, parts, reshape
from epl.plan.facts.names import clone_name, cloned_name
from epl.plan.memory.apply_groups import APPLY_GROUP
from epl.plan.zero.zero import gathered_groups

_COPIED = frozenset([FLOAT32, FLOAT64, FLOAT16])  # DeepCopy has kernels of them everywhere
_ALL_OF_ROWS = dict.fromkeys("begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask".split(), 0)


def divide_updates(program, plan):
    """Between each group of updates and what comes after them, an all-gather of their variables."""
    groups = gathered_groups(plan)
    if not groups:
        return program
    graph, edit = program.graph, program.graph.editor()
    names = {}
    for group in groups:
        for which in range(plan.zero.replicate_group.local):
            for update, updated in zip(group.updates, _gather(program, edit, plan, group, which)):
                names.setdefault((update.call, update.variable), (update, {}))[1].update(updated)
    for update, updated in names.values():
        _wait(graph, edit, plan, update, updated)
    return program.with_graph(edit.finish())


def _gather(program, edit, plan, group, which):
    """Adds the all-gather of an UpdateGroup; returns for each update a dict of the index of each instance that has such
    a part to what sets the variable there.

    Args:
      which: of a worker's groups of copies that each have all of the state (`Zero.groups`).
    """
    graph, mesh, copies, all_have = (
        program.graph,
        plan.mesh,
        plan.zero.shard_group,
        of_stage(plan, group.updates[0].variable),
    )
    if which:
        group = replace(group, name=group.name_in(which))
    served = {instance.index for instance in mesh.served(group.shard_rank)}
    shares = [_share(graph, edit, plan, group, which, rank) for rank in range(copies.size)]
    here = plan.zero.of_worker(copies.index)
    own = [update for update in group.updates if update.owner in here]
    sends_only = len(mesh.instances) == 1 and all(_has_it(graph, update, here) for update in own)
    vector = gather_from_owners(edit, plan, group.name, shares, group.dtype, all_have, others_only=sends_only)
    values = parts(edit, group.name + "/parts", vector, group.shapes, group.dtype, mesh.host_device, all_have)
    found = []
    for place, (update, value) in enumerate(zip(group.updates, values)):
        stem = "%s/%d" % (group.name, place)
        has_it = _has_it(graph, update, here)
        found.append({})
        for instance in mesh.takers(group.shard_rank):
            if plan.zero.group_of(instance.index) != which:
                continue
            name = stem + "/assign" + ("_%d" % instance.index if instance.index else "")
            own = ()
            if has_it and instance.index // mesh.shard_ranks % copies.local == here.index(update.owner):
                own = [clone_name(write, plan.copy_for(write, instance.index)) for write in update.writes]
            assign = _assign(graph, edit, update, instance.index, name, value, own, all_have)
            if instance.index in served:
                assign.input.extend(waits_for_own_gradients(program, update.variable, instance.index))
            found[-1][instance.index] = all_have(edit, assign)
    return found


def _has_it(graph, update, here):
    """Whether what this worker's copies `here` have updated is where it is wanted: in a variable of one of them."""
    return update.owner in here and update.rows_of is None and not _gives_data(graph, update)


def _assign(graph, edit, update, instance, name, value, own, all_have):
    """What sets an instance's copy of a variable, or the rows of it that were updated.

    `own`: what has set it there already, if anything. Then nodes of the same names only wait, as all workers have to
    number all nodes alike.
    """
    if update.rows_of is None:
        holder = graph.nodes[clone_name(update.variable, instance)]
        waits = ["^" + node_of(each) for each in [value] + list(own)]
        if holder.op == "VarHandleOp" and update.dtype in _COPIED:
            # It keeps the tensor that it is assigned, and with it all that travelled in the same vector.
            op, inputs, attrs = ("NoOp", waits, {}) if own else ("DeepCopy", [value], {"T": Type(update.dtype)})
            value = all_have(edit, make_node(op, name + "/value", inputs, holder.device, **attrs))
            waits = ["^" + value]
        return make_node("NoOp", name, waits, holder.device) if own else assign_node(holder, name, value, update.dtype)
    holder, begin = graph.nodes[clone_name(update.rows_of.variable, instance)], update.rows_of.begin
    bounds = []
    for word, number in (("begin", begin), ("end", begin + update.shape[0]), ("strides", 1)):
        bounds.append(all_have(edit, constant("%s/%s" % (name, word), [number], INT32, holder.device)))
    return make_node(
        "ResourceStridedSliceAssign" if holder.op == "VarHandleOp" else "StridedSliceAssign",
        name,
        [holder.name] + bounds + [value],
        holder.device,
        T=Type(update.dtype),
        Index=Type(INT32),
        **_ALL_OF_ROWS,
    )


def gather_from_owners(edit, plan, name, shares, dtype, all_have, waits=(), others_only=False):
    """Adds an all-gather of what copies of the model hold; returns its name.

    Args:
      edit: the Editor.
      plan: the Plan.
      name: of the collective.
      shares: for each copy a list of vectors, at least one; their nodes are in its worker alone.
      dtype: DataType number.
      all_have: function that adds a node that all have whose copies these are.
      waits: control inputs.
      others_only: nobody takes what comes of this worker's own vectors.
    """
    copies = plan.zero.shard_group
    here = plan.zero.of_worker(copies.index)
    own = [vector for rank in here for vector in shares[rank]]
    # All workers have the same nodes, so that they know of the same messages, and each sends its own share.
    others = ["^" + vector for rank, share in enumerate(shares) if rank not in here for vector in share]
    options = dict(R=len(own), others_only=others_only)
    gather = collective_node(plan, plan.collective(name), name, own + others + list(waits), dtype, **options)
    return all_have(edit, gather)


def _end(edit, holder, read, add):
    """Adds what frees rows of a variable that were held for an update, once they are read."""
    node = make_node("DestroyResourceOp", read + "_and_end", [holder.name, "^" + read], holder.device)
    return add(edit, node)


def _gives_data(graph, update):
    """Whether anything takes what an update gives, not only waits for it."""
    consumers = [c for write in update.writes for c in graph.edges.data_consumers.get(write, ())]
    return any(consumer not in update.members for consumer in consumers)


def _share(graph, edit, plan, group, which, rank):
    """What a copy of the model has updated, as vectors, at least one; these nodes are in its worker alone."""
    worker, shard_rank = rank // plan.zero.shard_group.local, group.shard_rank or 0
    instance = plan.zero.instance_at(which, rank, shard_rank)
    add = of_keeper(plan, worker, group.updates[0].variable)
    stem, flat = "%s/from_%d" % (group.name, rank), []
    for place in group.of([rank]):
        update = group.updates[place]
        own = clone_name(update.variable, plan.copy_for(update.variable, instance))
        holder, name = graph.nodes[own], "%s/%d" % (stem, place)
        read = read_node(holder, name + "/read", group.dtype)
        read.input.extend("^" + clone_name(write, plan.copy_for(write, instance)) for write in update.writes)
        flat.append(reshape(edit, name, add(edit, read), (-1,), group.dtype, holder.device, add))
        if update.rows_of is not None:
            edit.node(name).input.append("^" + _end(edit, holder, read.name, add))
    sizes, host = [group.size(place) for place in group.of([rank])], plan.mesh.host_device
    return padded(edit, stem, flat, sizes, group.dtype, host, add) or [empty(edit, stem, group.dtype, host, add)]


def _wait(graph, edit, plan, update, names):
    """Lets all that comes after an update come after the assignments: in an instance after its own, else after all.

    But for the next updates of the same owner (optimizer.num_apply_group).

    Args:
      names: dict of the index of each instance to the assignment there.
    """
    for write in update.writes:
        for number in range(plan.zero.num_owned if write in plan.analysis.cloned else 1):
            for consumer, position in graph.consumers.get(clone_name(write, number), ()):
                _wait_in(graph, edit, plan, update, names, number, consumer, position)


def _wait_in(graph, edit, plan, update, names, number, consumer, position):
    """The same for an input of a node that takes the copy of an update of this number."""
    node = graph.nodes[consumer]
    instance = tags.get_int(node, tags.INSTANCE, 0)
    original = cloned_name(consumer, instance)
    if original in update.members or tags.get_str(node, tags.ROLE) == APPLY_GROUP:
        return
    index = min(parse_input(node.input[position]).index, 0)
    own = plan.zero.instance_of(original, number) if plan.is_owned(original) else instance
    edit.set_input(consumer, position, format_input(names[own], index))
    if original not in plan.analysis.cloned and tags.INSTANCE not in node.attr:
        edit.node(consumer).input.extend("^" + names[i] for i in sorted(names) if i != own)
