r"""Lets an optimizer update the variables of one group after those of another (`optimizer.num_apply_group`).

    g0 -> clip -> apply            g0 -> clip' -> apply -> end of group 0
                         becomes                             | (control)
    g1 -> clip -> apply                                      v
                                   g1 --------------------> clip' -> apply

clip' are copies: who fetches the user's own clipped gradient does not wait for an update.
"""

from epl.graph import tags
from epl.graph.index import format_input, parse_input
from epl.graph.node_defs import make_node
from epl.passes.node_copies import Template
from epl.passes.node_workers import owned
from epl.passes.nodes import tagged
from epl.plan.facts.names import PREFIX, clone_name
from epl.plan.memory.apply_groups import APPLY_GROUP


def group_updates(program, plan):
    """In each instance, copies of what leads to updates, and control edges between groups of them."""
    if not plan.apply_groups:
        return program
    graph, edit = program.graph, program.graph.editor()
    for chain in plan.apply_groups:
        for before, group in zip((None,) + chain, chain):
            for instance, place in _places(plan, group):
                _group(graph, edit, plan, group, before, instance, place)
    return program.with_graph(edit.finish())


def _places(plan, group):
    """(instance, number in the names of what is added for it) of those that make a group's updates."""
    write = group.writes[0]
    if plan.is_owned(write):
        return [(plan.zero.instance_of(write, number), number) for number in range(plan.zero.num_owned)]
    return [(instance.index, instance.index) for instance in plan.mesh.instances]


def _group(graph, edit, plan, group, before, instance, place):
    own = {name: clone_name(name, plan.copy_for(name, instance)) for name in group.members}
    copies = {own[name]: clone_name(_copy_name(name), place) for name in group.copied}
    for name in group.copied:
        node = graph.nodes[own[name]]
        inputs = [_of_copy(text, copies) for text in node.input]
        edit.add(_where_written(plan, group, instance, Template(node, copies).copy(copies.__getitem__, inputs)))
    for name in graph.in_order(group.members.difference(group.copied)):
        for position, text in enumerate(graph.nodes[own[name]].input):
            if _of_copy(text, copies) != text:
                edit.set_input(own[name], position, _of_copy(text, copies))
    if before is not None:
        for name in group.starts:
            edit.node(copies.get(own[name], own[name])).input.append("^" + clone_name(before.name, place))
    ends = [clone_name(name, plan.copy_for(name, instance)) for name in group.ends]
    edit.add(_where_written(plan, group, instance, _end(graph, group, own[group.writes[0]], ends, place)))


def _where_written(plan, group, instance, node):
    """A node that is where an instance's updates of a group are."""
    write = group.writes[0]
    return owned(node, plan.owner(write, plan.mesh.instances[instance]), plan.keepers.get(write))


def _end(graph, group, write, ends, place):
    """The node that has run when all updates of a group are made, or left out."""
    like = graph.nodes[write]
    end = make_node("NoOp", clone_name(group.name, place), ["^" + name for name in ends], like.device)
    tags.inherit(end, like, (tags.INSTANCE, tags.TASKGRAPH, tags.PHASE))
    return tagged(end, APPLY_GROUP)


def _copy_name(name):
    return "%s_apply/%s" % (PREFIX, name)


def _of_copy(text, copies):
    """An input, taken from a copy where there is one. Control inputs stay, as what they name is waited for anyway."""
    name, index = parse_input(text)
    return format_input(copies[name], index) if index >= 0 and name in copies else text
