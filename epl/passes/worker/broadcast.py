"""Adds, for each variable, a node whose run gives its first copy the chief's value on all workers, and one whose run
gives the worker's other copies that of the first.

    worker 0:  v -> EplBroadcastSend     worker 1:  EplBroadcastReceive -> Assign(v)     both:  v -> Assign(v/1), ...

Where the stages of a pipeline lie in several workers, those with the same stages do this among themselves, and all
workers for a variable that each has. A variable that is divided (`epl.split`) is given its parts where it gets a value,
so nothing is sent of it along the axis shard.

Sessions run these nodes after variables got first values, before the first step that communicates, and the second kind
alone before one that does not. They are apart because a session's nodes never change: a variable may get its other
copies when the user's graph grows.
"""

from epl.graph.build import Type, constant, make_node
from epl.passes.copies.seeds import derive
from epl.passes.nodes import assign_node, read_node, tagged
from epl.plan.names import clone_name, copy_name, sync_name, tag_of

_CHIEF = 0
_INT64 = 9


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
        if variable.is_own:
            continue
        _broadcast(graph, edit, plan, variable)
        if len(mesh.instances) > 1 and variable.name in plan.analysis.cloned:
            _copy(graph, edit, plan, variable)
    return program.with_graph(edit.finish())


def sync_slot(plan, variable):
    """The communicator over which a variable gets the chief's value; None where nobody else has it."""
    mesh = plan.mesh
    if variable in plan.divided or variable in plan.owners and plan.zero is not None:
        return None
    if mesh.pipeline.num_workers > 1 and variable in plan.owners:
        return mesh.copies.communicator(0) if mesh.copies.num_workers > 1 else None
    return 0 if mesh.num_workers > 1 else None


def _copy(graph, edit, plan, variable):
    name = copy_name(variable.name)
    value, dtype = _read(graph, edit, variable, name)
    first, waits = plan.mesh.instances[0], []
    for instance in plan.mesh.instances[1:]:
        if variable.name in plan.divided:
            continue
        own = value
        if variable.name in plan.generators:
            own = _turned(edit, plan, name, instance, value, _seed_of(first.rank) ^ _seed_of(instance.rank))
        waits.append(_assign(edit, variable.name, instance.index, own, name, dtype))
    edit.add(make_node("NoOp", name, ["^" + w for w in waits], plan.mesh.host_device))


def _seed_of(rank):
    """By what the generators of a rank differ from those of rank 0, which are those that the user made."""
    return derive("generator", rank) if rank else 0


def _turned(edit, plan, name, instance, value, seed):
    """The state of a generator that draws other numbers; its rank's own."""
    device = plan.mesh.host_device
    key = edit.add(constant("%s/seed_%d" % (name, instance.index), seed, _INT64, device)).name
    turned = make_node("BitwiseXor", "%s/turned_%d" % (name, instance.index), [value, key], device, T=Type(_INT64))
    return edit.add(turned).name


def _read(graph, edit, variable, name):
    """(value of the first copy, its DataType number)."""
    dtype = variable.dtype % 100
    return edit.add(read_node(graph.nodes[variable.name], name + "/read", dtype)).name, dtype


def _broadcast(graph, edit, plan, variable):
    mesh = plan.mesh
    name = sync_name(variable.name)
    dtype = variable.dtype % 100
    waits = []
    slot = sync_slot(plan, variable.name)
    together = slot is not None
    sends = (mesh.worker_index if slot == 0 else mesh.copies.index) == _CHIEF
    if together and not sends:
        value = edit.add(
            tagged(
                make_node(
                    "EplBroadcastReceive",
                    name + "/receive",
                    [],
                    mesh.host_device,
                    T=Type(dtype),
                    comm=slot,
                    tag=tag_of(name),
                    root=_CHIEF,
                    collective_name=name,
                ),
                "collective",
            )
        ).name
        if variable.name in plan.generators:
            value = _turned(edit, plan, name, mesh.instances[0], value, _seed_of(mesh.instances[0].rank))
        waits.append(_assign(edit, variable.name, 0, value, name, dtype))
    else:
        value, _ = _read(graph, edit, variable, name)
        if together:
            waits.append(
                edit.add(
                    tagged(
                        make_node(
                            "EplBroadcastSend",
                            name + "/send",
                            [value],
                            mesh.host_device,
                            T=Type(dtype),
                            comm=slot,
                            tag=tag_of(name),
                            collective_name=name,
                        ),
                        "collective",
                    )
                ).name
            )
    edit.add(make_node("NoOp", name, ["^" + w for w in waits], mesh.host_device))


def _assign(edit, variable, instance, value, name, dtype):
    holder = edit.peek(clone_name(variable, instance))
    return edit.add(assign_node(holder, "%s/assign_%d" % (name, instance), value, dtype)).name
