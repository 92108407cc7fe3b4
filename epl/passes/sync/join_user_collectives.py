r"""Gives the collectives that the user built their tags, and joins those of several instances.

x   -> all_reduce   -> y          x   \               / y
x/1 -> all_reduce/1 -> y/1   to        all_reduce ->
                                  x/1 /               \ all_reduce/1 (Identity) -> y/1
"""

from epl.graph.node_defs import set_attr
from epl.plan.facts.names import clone_name


def join_user_collectives(program, plan):
    """Each collective of the user becomes one over the instances of all workers."""
    graph = program.graph
    if not plan.user_collectives:
        return program
    edit = graph.editor()
    for collective in plan.user_collectives:
        node = edit.node(collective.name)
        set_attr(node, "tag", collective.tag)
        set_attr(node, "workers", plan.mesh.copies.num_workers)
        set_attr(node, "collective_name", collective.label)
        _join(graph, edit, plan, node)
    return program.with_graph(edit.finish())


def _join(graph, edit, plan, node):
    clones = [clone_name(node.name, instance.index) for instance in plan.mesh.instances[1:]]
    if not clones:
        return
    sources = [graph.nodes[name] for name in [node.name] + clones]
    data = [text for source in sources for text in source.input if text[0] != "^"]
    control = [text for source in sources for text in source.input if text[0] == "^"]
    del node.input[:]
    node.input.extend(data + sorted(set(control), key=control.index))
    set_attr(node, "R", len(sources))
    if node.op == "EplAllReduce":
        set_attr(node, "num_inputs", len(data))
    for name in clones:
        _become_identity(edit.node(name), node.name)


def _become_identity(clone, of):
    clone.op = "Identity"
    del clone.input[:]
    clone.input.append(of)
    for key in list(clone.attr):
        if key != "T" and not key.startswith("_epl_"):
            del clone.attr[key]
