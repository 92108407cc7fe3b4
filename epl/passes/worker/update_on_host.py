r"""Updates of variables on devices by what optimizers keep in the memory of the host (`offload.level="state"`).

    w (device), m (host) -> ApplyMomentum   becomes   w -> read -> temporary (host), m -> ApplyMomentum (host)
                                                      temporary -> read, and its end -> Assign(w) (device)

One operation takes all of its variables in one place. The copy of the parameter is there for the length of its update.
What assigns to the parameter has the name that the update had.
"""

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node
from epl.passes.nodes import assign_node, holder_of, tagged
from epl.plan.facts.names import PREFIX
from epl.plan.memory.offload import ON_HOST
from epl.rules import effects


def update_on_host(program, plan):
    """Each operation on the host that changes a variable of a device changes a copy of it there."""
    graph, edit = program.graph, program.graph.editor()
    for name in graph.find(effects.is_write):
        if tags.HOST in graph.nodes[name].attr and tags.phase(graph.nodes[name]) == tags.APPLY:
            holder = holder_of(graph, graph.nodes[name].input[0])
            if holder is not None and tags.HOST not in holder.attr:
                _move(edit, plan, name, holder)
    return program.with_graph(edit.finish())


def _move(edit, plan, name, holder):
    """Gives an update its copy.

    Args:
      edit: the Editor.
      plan: the Plan.
      name: of the update.
      holder: the node of the variable that it changes.
    """
    stem, host = "%s_offload/update/%s" % (PREFIX, name), plan.mesh.host_device
    dtype = holder.attr["dtype"].type
    update = edit.node(name)
    variable, others = update.input[0], list(update.input[1:])
    # What it takes may come after another change of the variable.
    waits = sorted({"^" + node_of(text.lstrip("^")) for text in others})

    def add(node, on_host=True):
        node.attr[tags.PHASE].CopyFrom(update.attr[tags.PHASE])
        if on_host:
            node.attr[tags.HOST].b = True
        return edit.add(tagged(node, ON_HOST)).name

    is_resource = holder.op == "VarHandleOp"
    if is_resource:
        value = make_node("ReadVariableOp", stem + "/before", [variable] + waits, holder.device, dtype=Type(dtype))
        value = add(value, on_host=False)
        handle = make_node("VarHandleOp", stem, (), host, dtype=Type(dtype), shared_name=stem, container="")
        handle.attr["shape"].CopyFrom(holder.attr["shape"])
        copy = add(handle)
        known = add(assign_node(handle, stem + "/begin", value, dtype))
        taken = [copy] + others + ["^" + known]
    else:
        value = make_node("Identity", stem + "/before", [variable] + waits, holder.device, T=Type(dtype))
        value = add(value, on_host=False)
        known = make_node("TemporaryVariable", stem, ["^" + value], host, dtype=Type(dtype), var_name=stem)
        known.attr["shape"].CopyFrom(holder.attr["shape"])
        copy = add(known)
        taken = [add(assign_node(known, stem + "/begin", value, dtype))] + others
    moved = make_node(update.op, stem + "/on_host", _controls_last(taken), host)
    for key, value in update.attr.items():
        if key != "_class":
            moved.attr[key].CopyFrom(value)
    done = add(moved)
    if is_resource:
        after = add(make_node("ReadVariableOp", stem + "/after", [copy, "^" + done], host, dtype=Type(dtype)))
        end = add(make_node("DestroyResourceOp", stem + "/end", [copy, "^" + after], host, ignore_lookup_error=False))
        made = assign_node(holder, name, after, dtype)
        made.input.append("^" + end)
    else:
        after = make_node("DestroyTemporaryVariable", stem + "/after", [done], host, T=Type(dtype), var_name=stem)
        made = assign_node(holder, name, add(after), dtype)
    made.input[0] = variable
    _become(update, made, holder.device)


def _controls_last(texts):
    return [text for text in texts if text[0] != "^"] + [text for text in texts if text[0] == "^"]


def _become(update, made, device):
    """Leaves a node its name and its tags, and makes it what another one is."""
    kept = {key: value for key, value in update.attr.items() if key.startswith(tags.PREFIX) and key != tags.HOST}
    update.op, update.device = made.op, device
    del update.input[:]
    update.input.extend(made.input)
    attrs = dict(made.attr.items(), **kept)
    known = {key: type(value)() for key, value in attrs.items()}
    for key, value in attrs.items():
        known[key].CopyFrom(value)
    for key in list(update.attr):
        del update.attr[key]
    for key, value in known.items():
        update.attr[key].CopyFrom(value)
