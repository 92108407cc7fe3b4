r"""Adds nodes whose runs give all copies of the model the averages of their variables (local_sgd).

    v   -> read   \                 / Assign(v)
                    EplAllReduce ->              -> average_name()
    v/1 -> read/1 /                 \ Assign(v/1)

The model's own steps do not wait for them; sessions run them after some of them. With local_sgd.overlap there are three
more, of which the second may run beside the model's steps. By tensors that it holds, a is the average and s what each
copy was when it was begun:

    v -> Assign(s), v/1 -> Assign(s/1)                              -> snapshot_name()
    s, s/1 -> EplAllReduce -> Assign(a)                             -> overlapped_average_name()
    a - s -> AssignAdd(v), a - s/1 -> AssignAdd(v/1)                -> apply_average_name()
"""

from epl.graph.node_defs import Type, make_node
from epl.passes.nodes import add_assign_node, all_reduce_node, assign_node, read_node
from epl.plan.facts.names import (
    apply_average_name,
    average_name,
    clone_name,
    overlapped_average_name,
    overlapped_name,
    snapshot_name,
)


def average_variables(program, plan):
    """One all-reduce for each group of variables, and average_name(), which waits until all copies are set."""
    if plan.local_sgd is None:
        return program
    graph = program.graph
    edit = graph.editor()
    waits = {average_name(): []}
    if plan.local_sgd.overlap:
        waits.update({snapshot_name(): [], overlapped_average_name(): [], apply_average_name(): []})
    for group in plan.local_sgd.groups:
        waits[average_name()] += _average(graph, edit, plan, group)
        if plan.local_sgd.overlap:
            _average_overlapped(graph, edit, plan, group, waits)
    for name, targets in waits.items():
        edit.add(make_node("NoOp", name, ["^" + target for target in targets], plan.mesh.host_device))
    return program.with_graph(edit.finish())


def _copies(graph, plan, group):
    """(variable, instance's index, the node that holds it) of all copies here."""
    return [(v, i.index, graph.nodes[clone_name(v, i.index)]) for v in group.variables for i in plan.mesh.instances]


def _output(group, name, variable):
    """What an all-reduce of a group, by its name, gives for a variable."""
    place = group.variables.index(variable)
    return "%s:%d" % (name, place) if place else name


def _average(graph, edit, plan, group):
    """Names of the assignments of a group's averages."""

    def read(variable, instance):
        return clone_name("%s/read/%s" % (group.name, variable), instance)

    copies = _copies(graph, plan, group)
    for variable, instance, holder in copies:
        edit.add(read_node(holder, read(variable, instance), group.dtype))
    scale = 1.0 / plan.mesh.copies.size
    edit.add(all_reduce_node(plan, group.name, group.variables, group.dtype, scale, of=read))
    assigned = []
    for variable, instance, holder in copies:
        name = clone_name("%s/assign/%s" % (group.name, variable), instance)
        assigned.append(edit.add(assign_node(holder, name, _output(group, group.name, variable), group.dtype)).name)
    return assigned


def _average_overlapped(graph, edit, plan, group, waits):
    """The nodes for local_sgd.overlap; adds those that change something to `waits`, by the node that waits for them."""
    dtype, stem = group.dtype, group.overlapped_name

    def noted(variable, instance):
        return clone_name("%s/snapshot/%s" % (stem, variable), instance)

    for variable in group.variables:
        held = edit.add(_holder(overlapped_name(variable), graph.nodes[variable], plan.mesh.host_device, dtype))
        average = _output(group, stem, variable)
        waits[overlapped_average_name()].append(
            edit.add(assign_node(held, "%s/assign/%s" % (stem, variable), average, dtype)).name
        )
    for variable, instance, holder in _copies(graph, plan, group):
        own, device = noted(variable, instance), holder.device
        held = edit.add(_holder(own, holder, device, dtype))
        read = edit.add(read_node(holder, own + "/read", dtype))
        waits[snapshot_name()].append(edit.add(assign_node(held, own + "/assign", read.name, dtype)).name)
        since = make_node("Sub", own + "/to_add", [overlapped_name(variable), own], device, T=Type(dtype))
        added = add_assign_node(holder, own + "/add", edit.add(since).name, dtype)
        waits[apply_average_name()].append(edit.add(added).name)
    scale = 1.0 / plan.mesh.copies.size
    edit.add(all_reduce_node(plan, stem, group.variables, dtype, scale, of=noted))


def _holder(name, like, device, dtype):
    """A tensor that is kept from run to run. Of this kind of variable an assignment copies what a variable of the model
    holds, which later steps change in place."""
    node = make_node("VariableV2", name, (), device, dtype=Type(dtype), container="", shared_name=name)
    node.attr["shape"].CopyFrom(like.attr["shape"])
    return node
