"""Lets all that computes with parameters take values, and not variables themselves (`zero.level` "v2" and "v3").

After that a parameter can lie on another device, in shards even.
"""

from epl.graph import tags, types
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, set_attr
from epl.graph.types import INT32
from epl.passes.nodes import read_node
from epl.plan.facts.names import PREFIX
from epl.plan.zero.parameters import LOOKUPS, SHAPES, is_read


def take_values(program, values):
    """The Program in which what is to compute on all devices takes values of some variables, and not these themselves:
    epl.plan.zero.divided.TakenValues.

    Rows are looked up in the value, and shapes are known. What comes after an update gets a read of its own, which
    waits for what it waits for: of a read before the update, the device that holds a reference variable alone sees the
    new value.
    """
    graph, after_update = program.graph, values.after_updates
    edit = graph.editor()
    for variable in values.variables:
        holder, known = graph.nodes[variable], program.variables[variable]
        dtype = types.base(known.dtype)
        for consumer, position in _takers(graph, variable):
            node = graph.nodes[consumer]
            if node.op in SHAPES:
                shape = constant(consumer, list(known.shape), node.attr["out_type"].type or INT32)
                _become(edit.node(consumer), shape.op, [], value=shape.attr["value"], dtype=shape.attr["dtype"])
            elif node.op in LOOKUPS:
                read = _own_read(edit, holder, dtype, node, position, after_update)
                axis = _where(edit.add(constant(consumer + "/axis", 0, INT32)), node).name
                _become(
                    edit.node(consumer),
                    "GatherV2",
                    [read, node.input[1], axis],
                    Tparams=Type(dtype),
                    Tindices=Type(node.attr["Tindices"].type),
                    Taxis=Type(INT32),
                    batch_dims=tags.get_int(node, "batch_dims"),
                )
            elif is_read(node, holder) and consumer not in after_update and holder.op != "VarHandleOp":
                for user, place in _takers(graph, consumer):
                    if user in after_update:
                        edit.set_input(
                            user, place, _own_read(edit, holder, dtype, graph.nodes[user], place, after_update)
                        )
    return program.with_graph(edit.finish())


def _takers(graph, name):
    """(node, input position) pairs that take a node's result."""
    return [(c, p) for c, p in graph.consumers.get(name, ()) if graph.nodes[c].input[p][0] != "^"]


def _own_read(edit, holder, dtype, user, position, after_update):
    """Adds a read of a variable for one input of a node; returns its name. If the node comes after an update, the read
    waits for the other inputs."""
    read = read_node(holder, "%s_zero/value/%s/%d" % (PREFIX, user.name, position), dtype)
    others = [text for place, text in enumerate(user.input) if place != position]
    waits = ["^" + node_of(text) for text in others if node_of(text) not in (holder.name, user.name)]
    read.input.extend(sorted(set(waits), key=waits.index) if user.name in after_update else [])
    tags.inherit(read, user, (tags.TASKGRAPH, tags.PHASE, tags.APPLY_CALL))
    _where(read, holder)
    return edit.add(read).name


def _where(node, other):
    """Lets a node run where another one does that it is for; returns it."""
    if tags.HOST in other.attr:
        set_attr(node, tags.HOST, True)
    return node


def _become(node, op, inputs, **attrs):
    """Makes of a node another one of the same name, with its control inputs and tags."""
    controls = [text for text in node.input if text[0] == "^"]
    for key in [key for key in node.attr if not key.startswith("_")]:
        del node.attr[key]
    node.op = op
    node.input[:] = inputs + controls
    for key, value in attrs.items():
        set_attr(node, key, value)
