"""Gives every node a device of this worker; not those that another worker has for it.

    a            ->  a  @CPU:0     (instance 0; GPU:0 where the worker has GPUs)
    slot         ->  slot @CPU:1   (what instance 1 alone computes for all, zero.level)
    iterator     ->  iterator @CPU:0, and what takes its handle
    parameter    ->  parameter @CPU:0, and what takes it itself (offload.level)

What the user said of devices is kept as far as it makes sense: `/cpu:0` stays on the host of a worker with GPUs.
"""

import functools

from epl.graph import tags
from epl.plan.facts.analysis import is_large_constant
from epl.rules import effects


def place(program, plan):
    """Places instance 0, everything that instances share, and what one of them computes for all."""
    graph = program.graph
    edit = graph.editor()
    mesh = plan.mesh
    on_host = _on_host(graph)
    on_host.update(name for name, node in graph.nodes.items() if tags.HOST in node.attr)
    if mesh.device_type != "CPU":
        on_host.update(name for name, node in graph.nodes.items() if "CPU" in node.device.upper())
    owned, elsewhere = plan.owners.keys() | plan.keepers.keys(), plan.elsewhere
    devices = [[mesh.device(device) for device in instance.devices] for instance in mesh.instances]
    stage_of, zero, device_of_group = plan.stage_of, plan.zero, {}

    def device_of(name):
        if name in on_host:
            return mesh.host_device
        return devices[zero.instance_of(name) if zero is not None else 0][stage_of.get(name, 0)]

    def agrees(group, device):
        if group not in device_of_group:
            name = group[5:].decode()
            device_of_group[group] = device_of(name) if name in graph.nodes else None
        return device_of_group[group] == device

    def kept(device, groups):
        """Colocation groups stay only where they agree with the devices, which say the same more exactly."""
        return [group for group in groups if not group.startswith(b"loc:@") or agrees(group, device)]

    for name, node in graph.nodes.items():
        if name in elsewhere or is_large_constant(node):
            continue  # a copy of a constant would cost memory, and TensorFlow places it well by itself
        device = device_of(name)
        everywhere = owned and name not in owned
        edit.move(name, device, functools.partial(kept, device), tags.EVERYWHERE if everywhere else None)
    return program.with_graph(edit.finish())


def _on_host(graph):
    """Collectives, nodes that make or take the handle of a resource which instances share, everything of tf.data."""
    resources = graph.find(lambda op: op in effects.SHARED_RESOURCES or "Dataset" in op)
    found = set(resources)
    stack = [name for name in resources if _hands_on(graph.nodes[name])]
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if consumer not in found and graph.inputs[consumer][position].index >= 0:
                found.add(consumer)
                if _hands_on(graph.nodes[consumer]):
                    stack.append(consumer)
    return found.union(graph.find(effects.COLLECTIVES.__contains__))


def _hands_on(node):
    return node.op in effects.SHARED_RESOURCES or node.op in effects.HANDS_ON


def device_of_clone(plan, name, device, instance):
    """The device of a placed node's copy in another instance; `device`: that of the node."""
    mesh, stage = plan.mesh, plan.stage_of.get(name, 0)
    if device == mesh.host_device != mesh.device(mesh.instances[0].devices[stage]):
        return device
    return mesh.device(instance.devices[stage])
