"""Adds, for each variable, a node whose run gives its first copy the chief's value on all workers, and one whose run
gives the worker's other copies that of the first.

    worker 0:  v -> EplBroadcastSend     worker 1:  EplBroadcastReceive -> Assign(v)     both:  v -> Assign(v/1), ...

Where the stages of a pipeline lie in several workers, those with copies of a stage do this among themselves, and all
workers for a variable that each has; a worker's first copy is then the first of those that it has. Of a variable that
is divided (`epl.split`) each device is given its part where it gets a value: what is sent is each part, to the devices
of other copies of the model that have it too.

Sessions run these nodes after variables got first values, before the first step that communicates, and the second kind
alone before one that does not. They are apart because a session's nodes never change: a variable may get its other
copies when the user's graph grows.
"""

from epl.graph import types
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT64
from epl.passes.nodes import assign_node, read_node, tagged
from epl.passes.seeds import derive
from epl.plan.facts.merge_points import in_shard_rank
from epl.plan.facts.names import clone_name, copy_name, sync_name
from epl.program.collective import tag_of
from epl.program.placement import TURNED

_CHIEF = 0


def broadcast_variables(program, plan):
    """A node sync_name(v) for each variable v, and copy_name(v) if it has copies; each waits until all are set.

    None for those of which each rank has a value of its own.
    """
    graph = program.graph
    mesh = plan.mesh
    if mesh.everywhere.size == 1 and mesh.num_workers == 1:
        return program
    edit = graph.editor()
    for variable in plan.variables.values():
        if not plan.placed(variable.name).is_sent:
            continue
        _broadcast(graph, edit, plan, variable)
        if len(mesh.instances) > 1 and variable.name in plan.analysis.cloned:
            _copy(graph, edit, plan, variable)
    return program.with_graph(edit.finish())


def sync_orders(plan, variable):
    """What a worker takes part in where a variable gets the chief's value: {communicator: tags of its collectives};
    empty where nobody else has what this worker has of it."""
    slot = _slot(plan, variable)
    return {} if slot is None else {slot: [tag_of(name) for _, name in _sent(plan, variable)]}


def _slot(plan, variable):
    mesh, placed = plan.mesh, plan.placed(variable)
    if plan.is_kept(variable):
        group = _group(plan, variable)
        return None if group is None else group.communicator(0)
    if placed.is_divided or placed.stage.kind == "owned":
        group = _group(plan, variable)
        return group.communicator(0) if group.num_workers > 1 else None
    return 0 if mesh.num_workers > 1 else None


def _group(plan, variable):
    """The Group of those that are to have the same of a variable; None where one worker alone has it.

    Where several workers have parts of a copy of the model (epl.split), its owner is all of them.
    """
    mesh = plan.mesh
    if not plan.is_kept(variable):
        whole = plan.shards_span_workers and not plan.placed(variable).is_divided
        return mesh.everywhere if whole else plan.group_of(variable)
    if plan.zero.replicate_group.size > 1:
        return plan.zero.replicate_group
    return mesh.tensor_group if plan.shards_span_workers and not plan.placed(variable).is_divided else None


def _sent(plan, variable):
    """[(shard rank, name of the collective)] for what copies of the model have of a variable."""
    name = sync_name(variable)
    return [(shard_rank, in_shard_rank(name, shard_rank)) for shard_rank in plan.shard_ranks_of(variable)]


def _copy(graph, edit, plan, variable):
    """In each shard rank, where the variable is divided, its first instance gives the others its part."""
    name, waits = copy_name(variable.name), []
    dtype = types.base(variable.dtype)
    for shard_rank in plan.shard_ranks_of(variable.name):
        takers, own_name = _takers(plan, variable.name, shard_rank), in_shard_rank(name, shard_rank)
        first, value = takers[0], None
        for instance in takers[1:]:
            value = value or _read(graph, edit, variable, own_name, first)
            own = value
            if plan.placed(variable.name).data.begins == TURNED:
                seed = _seed_of(plan, first) ^ _seed_of(plan, instance)
                own = _turned(edit, plan, own_name, instance, value, seed)
            waits.append(_assign(edit, variable.name, instance.index, own, name, dtype))
    edit.add(make_node("NoOp", name, ["^" + w for w in waits], plan.mesh.host_device))


def _takers(plan, variable, shard_rank):
    """The instances that this worker has copies of; where it has none, the first of all, of which nothing is left."""
    if shard_rank is not None:
        return [i for i in plan.mesh.takers(shard_rank) if i in plan.instances_with(variable)]
    return plan.instances_here(variable) or plan.mesh.instances[:1]


def _seed_of(plan, instance):
    """The number that turns the state of the user's generators into that of an instance's; 0 for the first instance,
    whose generators are the user's."""
    copy = plan.mesh.copy_of(instance)
    return derive("generator", copy) if copy else 0


def _turned(edit, plan, name, instance, value, seed):
    """The state of a generator that draws other numbers; its rank's own."""
    device = plan.mesh.host_device
    key = edit.add(constant("%s/seed_%d" % (name, instance.index), seed, INT64, device)).name
    turned = make_node("BitwiseXor", "%s/turned_%d" % (name, instance.index), [value, key], device, T=Type(INT64))
    return edit.add(turned).name


def _read(graph, edit, variable, name, instance):
    """The value of an instance's copy."""
    holder = graph.nodes[clone_name(variable.name, instance.index)]
    return edit.add(read_node(holder, name + "/read", types.base(variable.dtype))).name


def _broadcast(graph, edit, plan, variable):
    mesh, name, dtype = plan.mesh, sync_name(variable.name), types.base(variable.dtype)
    slot, group = _slot(plan, variable.name), _group(plan, variable.name)
    sends = slot is not None and (mesh.worker_index if slot == 0 else group.index) == _CHIEF
    waits = []
    for shard_rank, own_name in _sent(plan, variable.name):
        instance = _takers(plan, variable.name, shard_rank)[0]
        attrs = dict(T=Type(dtype), comm=slot, tag=tag_of(own_name), collective_name=own_name)
        if slot is None:
            _read(graph, edit, variable, own_name, instance)
        elif sends:
            value = _read(graph, edit, variable, own_name, instance)
            node = make_node("EplBroadcastSend", own_name + "/send", [value], mesh.host_device, **attrs)
            waits.append(edit.add(tagged(node, "collective")).name)
        else:
            node = make_node("EplBroadcastReceive", own_name + "/receive", [], mesh.host_device, root=_CHIEF, **attrs)
            value = edit.add(tagged(node, "collective")).name
            if plan.placed(variable.name).data.begins == TURNED:
                value = _turned(edit, plan, own_name, instance, value, _seed_of(plan, instance))
            waits.append(_assign(edit, variable.name, instance.index, value, name, dtype))
    edit.add(make_node("NoOp", name, ["^" + w for w in waits], mesh.host_device))


def _assign(edit, variable, instance, value, name, dtype):
    holder = edit.peek(clone_name(variable, instance))
    return edit.add(assign_node(holder, "%s/assign_%d" % (name, instance), value, dtype)).name
