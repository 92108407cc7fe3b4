"""Copies the model for this worker's further instances.

    x -> y -> train        becomes      x   -> y   -> train
                                        x/1 -> y/1 -> train/1     (named epl_instance_1/x, ...)

A clone renames: its inputs, its colocation groups, the frames of loops and the names of stateful resources. What
instances share (iterators, tables, queues, large constants) is not copied; the clones use the original.
"""

import functools

from epl.graph import tags
from epl.graph.node_defs import set_attr
from epl.passes.copies.stamp import Stamp
from epl.passes.model.place import device_of_clone
from epl.passes.node_copies import marks_of
from epl.plan.facts.names import clone_name
from epl.rules import effects


def clone_instances(program, plan):
    """Adds a copy of every cloned node for each instance but the first that computes the node's stage."""
    graph = program.graph
    if len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    stamps = {}
    for instance in plan.mesh.instances[1:]:
        stages = frozenset(s.index for s in plan.mesh.stages if instance in plan.mesh.computing(s.index))
        # So many have the copies that owners have (zero.level); which owner has one, is said below.
        owners = plan.zero is None or instance.index < plan.zero.num_owned
        if (stages, owners) not in stamps:
            stamps[stages, owners] = _stamp(graph, plan, stages, owners)
        marks = marks_of(**{tags.INSTANCE: instance.index})
        adjust = functools.partial(_adjust, plan, instance, {})
        stamps[stages, owners].copies(edit, clone_name("", instance.index), marks, adjust)
    return program.with_graph(edit.finish())


def _stamp(graph, plan, stages, owners):
    """The Stamp of all that is cloned of some stages; owners: also of what has one (zero.level)."""
    cloned = plan.analysis.cloned
    if plan.zero is not None and not owners:
        cloned = cloned.difference(plan.zero.owners)
    if len(stages) < len(plan.mesh.stages):
        cloned = [name for name in cloned if plan.stage(name) in stages]
    return Stamp({name: graph.nodes[name] for name in graph.in_order(cloned)}, graph.inputs.__getitem__)


def _adjust(plan, instance, devices, clone, original, op, device):
    """`devices`: those that are known already, by stage and the original's."""
    if plan.zero is not None and plan.zero.replicate_group.local > 1 and "_class" in clone.attr:
        del clone.attr["_class"]  # an owner of the second group is not on the device of the second copy of the model
    if plan.is_owned(original):
        instance, devices = plan.mesh.instances[plan.zero.instance_of(original, instance.index)], {}
    key = plan.stage_of.get(original, 0), device
    if key not in devices:
        devices[key] = device_of_clone(plan, original, device, instance)
    clone.device = devices[key]
    if op in effects.SOURCES:
        # Two copies that pull from one iterator must not be merged into one by common-subexpression elimination.
        set_attr(clone, tags.ROLE, "source")
