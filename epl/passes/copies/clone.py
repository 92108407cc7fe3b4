"""Copies the model for this worker's further instances.

    x -> y -> train        becomes      x   -> y   -> train
                                        x/1 -> y/1 -> train/1     (named epl_instance_1/x, ...)

A clone renames: its inputs, its colocation groups, the frames of loops and the names of stateful resources. What
instances share (iterators, tables, queues, large constants) is not copied; the clones use the original.
"""

import functools
from dataclasses import replace

from epl.graph import tags
from epl.graph.build import set_attr
from epl.passes.copies.stamp import Stamp
from epl.passes.copies.template import marks_of
from epl.passes.model.place import device_of_clone
from epl.plan.names import clone_name
from epl.rules import effects


def clone_instances(program, plan):
    """Adds a copy of every cloned node for each instance but the first."""
    graph = program.graph
    if len(plan.mesh.instances) == 1:
        return program
    edit = graph.editor()
    stamp = Stamp({name: graph.nodes[name] for name in graph.in_order(plan.analysis.cloned)}, graph.inputs.__getitem__)
    alike, second = dict(program.alike), None
    for instance in plan.mesh.instances[1:]:
        marks = marks_of(**{tags.INSTANCE: instance.index})
        copies = stamp.copies(edit, clone_name("", instance.index), marks, functools.partial(_adjust, plan, instance))
        if second is None:
            second = copies
            alike.update((copy, second[program.alike[name]]) for name, copy in copies.items() if name in program.alike)
        else:
            alike.update((copy, second[name]) for name, copy in copies.items())
    return replace(program, graph=edit.finish(), alike=alike)


def _adjust(plan, instance, clone, original, device):
    clone.device = device_of_clone(plan, original, device, instance)
    if clone.op in effects.SOURCES:
        # Two copies that pull from one iterator must not be merged into one by common-subexpression elimination.
        set_attr(clone, tags.ROLE, "source")
