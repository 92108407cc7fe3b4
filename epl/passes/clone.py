"""Copies the model for this worker's further instances.

    x -> y -> train        becomes      x   -> y   -> train
                                        x/1 -> y/1 -> train/1     (named epl_instance_1/x, ...)

A clone renames: its inputs, its colocation groups, the frames of loops and the names of stateful resources. What
instances share (iterators, tables, queues, large constants) is not copied; the clones use the original.
"""

from epl.graph import tags
from epl.graph.build import set_attr
from epl.passes.nodes import instance_tensor
from epl.passes.place import device_of_clone
from epl.plan import ops
from epl.plan.names import clone_name


def clone_instances(graph, plan):
    """Adds a copy of every cloned node for each instance but the first."""
    if len(plan.layout.instances) == 1:
        return graph
    edit = graph.editor()
    names = graph.in_order(plan.analysis.cloned)
    for instance in plan.layout.instances[1:]:
        for name in names:
            edit.add(_clone(graph.nodes[name], plan, instance))
    return edit.finish()


def _clone(node, plan, instance):
    clone = type(node)()
    clone.CopyFrom(node)
    clone.name = clone_name(node.name, instance.index)
    for position, text in enumerate(node.input):
        clone.input[position] = instance_tensor(plan, text, instance.index)
    clone.device = device_of_clone(plan, node, instance)
    _rename_attributes(clone, node, plan, instance)
    set_attr(clone, tags.INSTANCE, instance.index)
    return clone


def _rename_attributes(clone, node, plan, instance):
    if "frame_name" in node.attr:
        set_attr(clone, "frame_name", clone_name(node.attr["frame_name"].s.decode(), instance.index))
    if node.op == "VarHandleOp" or ("shared_name" in node.attr and node.attr["shared_name"].s):
        set_attr(clone, "shared_name", clone_name(node.attr["shared_name"].s.decode() or node.name, instance.index))
    if "_class" in node.attr:
        groups = [g.decode() for g in node.attr["_class"].list.s]
        # Groups around nodes that instances share cannot hold for a clone on a device of its own.
        kept = [
            ("loc:@" + clone_name(g[5:], instance.index))
            for g in groups
            if g.startswith("loc:@") and g[5:] in plan.analysis.cloned
        ]
        if kept:
            clone.attr["_class"].list.s[:] = [g.encode() for g in kept]
        else:
            del clone.attr["_class"]
    if node.op in ops.SOURCES:
        # Two copies that pull from one iterator must not be merged into one by common-subexpression elimination.
        set_attr(clone, tags.ROLE, "source")
