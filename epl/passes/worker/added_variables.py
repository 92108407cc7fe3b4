"""Saves, restores and begins the variables that passes have added, as the user's graph does its own.

    v -> SaveV2   becomes   v, read of the added variable -> SaveV2      restored_name() -> Assign(added variable)

Of a variable of which each worker has a value of its own (dgc.save_residuals) the values of all are saved:

    v -> SaveV2   becomes   v, read -> Mul -> ExpandDims -> EplAllGather -> SaveV2

Sessions run the nodes that are made here: a first value with that of the variable beside which it stands; what a
checkpoint holds once the user's graph has restored one.
"""

from epl.graph import types
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT32, STRING
from epl.partition.checkpoints import FIRST_SAVED
from epl.passes.nodes import assign_node, read_node, tagged
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX, clone_name, first_value_name, gathered_name, restored_name
from epl.program.collective import tag_of

_LISTS = ((1, "names"), (2, "slices"))


def added_variables(program, plan):
    """Lets each SaveV2 save the variables that passes have added beside those that it saves; adds for each of them the
    node that takes its value out of a checkpoint, and in each instance the one that gives it its first value."""
    graph = program.graph
    added = plan.added
    if not added:
        return program
    edit = graph.editor()
    for variable in added:
        if variable.is_own:
            _begin(graph, edit, plan, variable)
        if variable.added.is_saved:
            _restore(graph, edit, plan, variable)
    for save in graph.find(lambda op: op == "SaveV2"):
        node = graph.nodes[save]
        here = {variable_of(graph, node_of(text)) for text in node.input[FIRST_SAVED:] if text[0] != "^"}
        with_it = [v for v in added if v.added.is_saved and v.added.beside in here - {None}]
        if with_it:
            _save(graph, edit, node, with_it, plan)
    return program.with_graph(edit.finish())


def _begin(graph, edit, plan, variable):
    name = first_value_name(variable.name)
    for instance in plan.instances_with(variable.name)[1:]:
        holder = graph.nodes[clone_name(variable.name, instance.index)]
        value = graph.nodes[name].input[1]
        edit.add(assign_node(holder, clone_name(name, instance.index), value, types.base(variable.dtype)))


def _restore(graph, edit, plan, variable):
    name, dtype = restored_name(variable.name), types.base(variable.dtype)
    fed = make_node("Placeholder", name, device=plan.mesh.host_device, dtype=Type(dtype))
    fed.attr["shape"].shape.SetInParent()
    for size in variable.shape:
        fed.attr["shape"].shape.dim.add().size = size
    edit.add(fed)
    edit.add(assign_node(graph.nodes[variable.name], name + "/assign", name, dtype))


def _save(graph, edit, node, variables, plan):
    """Appends to a SaveV2 what it is to save besides."""
    host, stem = plan.mesh.host_device, "%s_save_added/%s" % (PREFIX, node.name)
    axis = edit.add(constant(stem + "/axis", 0, INT32, host)).name
    save = edit.node(node.name)
    control = [text for text in save.input if text[0] == "^"]
    inputs = [text for text in save.input if text[0] != "^"]
    for (position, kind), texts in zip(_LISTS, ([v.name.encode() for v in variables], [b""] * len(variables))):
        more = edit.add(constant("%s/more_%s" % (stem, kind), texts, STRING, host)).name
        both = [inputs[position], more, axis]
        joined = make_node("ConcatV2", "%s/%s" % (stem, kind), both, host, N=2, T=Type(STRING), Tidx=Type(INT32))
        inputs[position] = edit.add(joined).name
    for variable in variables:
        dtype = types.base(variable.dtype)
        if variable.is_gathered:
            inputs.append(_gathered(graph, edit, variable, plan))
        else:
            read = read_node(graph.nodes[variable.name], "%s/read/%s" % (stem, variable.name), dtype)
            inputs.append(edit.add(read).name)
        save.attr["dtypes"].list.type.append(dtype)
    save.input[:] = inputs + control


def _gathered(graph, edit, variable, plan):
    """The node that has all workers' values of a variable, of shape [workers, ...]; one for all that save it."""
    name, dtype, host = gathered_name(variable.name), types.base(variable.dtype), plan.mesh.host_device
    if name in edit:
        return name
    value = edit.add(read_node(graph.nodes[variable.name], name + "/read", dtype)).name
    scale = edit.add(constant(name + "/scale", plan.gathered_scale, dtype, host)).name
    value = edit.add(make_node("Mul", name + "/scaled", [value, scale], host, T=Type(dtype))).name
    first = edit.add(constant(name + "/first", 0, INT32, host)).name
    row = make_node("ExpandDims", name + "/row", [value, first], host, T=Type(dtype), Tdim=Type(INT32))
    node = make_node(
        "EplAllGather",
        name,
        [edit.add(row).name],
        host,
        R=1,
        T=Type(dtype),
        comm=plan.mesh.copies.communicator(0),
        tag=tag_of(name),
        workers=plan.mesh.copies.num_workers,
    )
    return edit.add(tagged(node, "collective")).name
