"""Copies the model for this worker's further instances.

    x -> y -> train        becomes      x   -> y   -> train
                                        x/1 -> y/1 -> train/1     (named epl_instance_1/x, ...)

A clone renames: its inputs, its colocation groups, the frames of loops and the names of stateful resources. What
instances share (iterators, tables, queues, large constants) is not copied; the clones use the original.
"""

from epl.graph import tags
from epl.graph.build import set_attr
from epl.passes.copies.template import Template
from epl.passes.model.place import device_of_clone
from epl.passes.nodes import instance_tensor
from epl.plan.names import clone_name
from epl.rules import effects


def clone_instances(program, plan):
    """Adds a copy of every cloned node for each instance but the first."""
    graph = program.graph
    if len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    names = graph.in_order(plan.analysis.cloned)
    # Groups around nodes that instances share cannot hold for a clone on a device of its own.
    templates = [(graph.nodes[name], Template(graph.nodes[name], plan.analysis.cloned)) for name in names]
    for instance in plan.mesh.instances[1:]:
        for node, template in templates:
            edit.add(_clone(node, template, plan, instance))
    return program.with_graph(edit.finish())


def _clone(node, template, plan, instance):
    inputs = [instance_tensor(plan, text, instance.index) for text in node.input]
    clone = template.copy(lambda name: clone_name(name, instance.index), inputs)
    clone.device = device_of_clone(plan, node, instance)
    set_attr(clone, tags.INSTANCE, instance.index)
    if node.op in effects.SOURCES:
        # Two copies that pull from one iterator must not be merged into one by common-subexpression elimination.
        set_attr(clone, tags.ROLE, "source")
    return clone
