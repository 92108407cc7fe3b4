"""Gives every node a device of this worker.

    a            ->  a  @CPU:0     (instance 0; GPU:0 where the worker has GPUs)
    iterator     ->  iterator @CPU:0, and what takes its handle

What the user said of devices is kept as far as it makes sense: `/cpu:0` stays on the host of a worker with GPUs.
"""

from epl.graph import tags
from epl.graph.build import set_attr
from epl.graph.index import node_of
from epl.plan import ops
from epl.plan.analysis import is_large_constant


def place(graph, plan):
    """Places instance 0 and everything that instances share."""
    edit = graph.editor()
    on_host = _on_host(graph)
    devices = {}
    for name, node in graph.nodes.items():
        devices[name] = _device(plan, node, name in on_host, instance=plan.layout.instances[0])
    for name, node in graph.nodes.items():
        if is_large_constant(node):
            continue  # a copy would cost memory, and TensorFlow places a constant well by itself
        own = edit.node(name)
        own.device = devices[name]
        if plan.positions:
            set_attr(own, tags.POSITION, plan.positions.get(name, tags.EVERYWHERE))
        _keep_colocation(own, devices)
    return edit.finish()


def _on_host(graph):
    """Nodes that make or take the handle of a resource which instances share, and everything of tf.data."""
    found = set()
    for name, node in graph.nodes.items():
        if node.op in ops.SHARED_RESOURCES or "Dataset" in node.op:
            found.add(name)
        elif any(
            text[0] != "^" and node_of(text) in found and _hands_on(graph.nodes[node_of(text)]) for text in node.input
        ):
            found.add(name)
    return found


def _hands_on(node):
    return node.op in ops.SHARED_RESOURCES or node.op in ("Identity", "Switch", "Enter", "RefEnter")


def _device(plan, node, on_host, instance):
    layout = plan.layout
    if on_host or node.op in ops.COLLECTIVES or (layout.device_type != "CPU" and "CPU" in node.device.upper()):
        return layout.host_device
    return layout.device(instance.devices[plan.stage_of.get(node.name, 0)])


def device_of_clone(plan, node, instance):
    """The device of a placed node's copy in another instance."""
    if node.device == plan.layout.host_device and plan.layout.host_device != plan.layout.device(
        plan.layout.instances[0].devices[plan.stage_of.get(node.name, 0)]
    ):
        return node.device
    return plan.layout.device(instance.devices[plan.stage_of.get(node.name, 0)])


def _keep_colocation(node, devices):
    """Colocation groups stay only where they agree with the devices, which say the same more exactly."""
    if "_class" not in node.attr:
        return
    kept = [
        g
        for g in node.attr["_class"].list.s
        if not g.startswith(b"loc:@") or devices.get(g[5:].decode()) == node.device
    ]
    if kept:
        node.attr["_class"].list.s[:] = kept
    else:
        del node.attr["_class"]
