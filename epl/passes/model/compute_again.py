r"""Computes parts of the forward pass a second time, when the backward pass needs them.

    x ---> y ---> z ---> loss              x ----> y -> z ---> loss      y is given back once z has been computed;
    |      |      |       |     becomes    |       ,-> y' |      |       y' is computed when dz is there
    v      v      v       v                v      /    v  v      v
    dx <- dy <-- dz <-- dloss              dx <- / -- dy<-dz <- dloss

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). TensorFlow's own optimizer does not merge the
copies with what they are copies of, as they wait for something else.

Of a loop of control flow v1 all is copied that its gradient needs, and the pushes on the stacks of the gradient, which
`tf.gradients` added to the loop, go to the copy. So the loop itself leaves nothing behind but its results.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.graph.node_defs import Type, make_node, set_attr
from epl.graph.types import FLOAT32
from epl.passes.node_copies import Template
from epl.plan.facts.names import recomputed_name


def recompute(program, recomputation):
    """Gives the backward pass copies of parts of the forward pass."""
    again = {recomputed_name(name): name for group in recomputation.groups for name in group.nodes}
    return replace(program, graph=with_copies(program.graph, recomputation), again=again)


def with_copies(graph, plan):
    """The Graph with the copies.

    Args:
      graph: the tagged Graph of one copy of the model.
      plan: an epl.plan.memory.recompute.Recomputation of it.
    """
    edit = graph.editor()
    for group in plan.groups:
        members = frozenset(group.nodes)
        triggers = group.triggers
        if group.after:
            triggers += (edit.add(_wait(graph, group)).name,)
        for name in group.nodes:
            edit.add(_copy(graph, name, group, members, triggers))
        for reader, write in group.before:
            if reader not in group.perhaps:
                edit.node(write).input.append("^" + reader)
        for write in sorted({write for reader, write in group.before if reader in group.perhaps}):
            edit.node(write).input.append("^" + edit.add(_after_branches(graph, group, write)).name)
    for name in plan.entering:
        frame = graph.nodes[name].attr["frame_name"].s.decode()
        set_attr(edit.node(name), "frame_name", recomputed_name(frame))
    for user, position in plan.users:
        edit.set_input(user, position, _own(graph.nodes[user].input[position]))
    return edit.finish()


def _copy(graph, name, group, members, triggers):
    """The copy of a node: it takes copies of what its group computes, and the rest from the forward pass.

    Control inputs are left out, as what they name has run in the forward pass, but for those within a loop, whose
    copy is one of its own. A copy that takes nothing of its group waits for the group's gradients; one that reads a
    variable waits for what it is a copy of, if the variable changes later: so the change waits for both.
    """
    node = graph.nodes[name]
    taken = [text for text in node.input if text[0] != "^"]
    controls = [text for text in node.input if text[0] == "^"] if name in group.inside else []
    if name in group.passed:
        node, taken = _giving_on(node), taken[-1:]
    own = [node_of(text) in members and canonical_tensor(text) not in group.shared for text in taken]
    inputs = [_own(text) if is_own else text for text, is_own in zip(taken, own)]
    inputs += [_own(text) for text in controls if node_of(text) in group.inside]
    if not any(own) and len(inputs) == len(taken):
        inputs.extend("^" + trigger for trigger in triggers)
    if name in group.reading:
        inputs.append("^" + name)
    copy = Template(node, members).copy(recomputed_name, inputs)
    set_attr(copy, tags.PHASE, tags.BACKWARD)
    if tags.TASKGRAPH in node.attr:
        set_attr(copy, tags.TASKGRAPH, node.attr[tags.TASKGRAPH].i)
    return copy


def _giving_on(node):
    """In the place of a write into a TensorArray: what says that it is done is there as it came."""
    found = make_node("Identity", node.name, device=node.device, T=Type(FLOAT32))
    if tags.TASKGRAPH in node.attr:
        set_attr(found, tags.TASKGRAPH, node.attr[tags.TASKGRAPH].i)
    return found


def _wait(graph, group):
    """A node that has run when the nodes after which a group comes have."""
    first = graph.nodes[group.nodes[0]]
    node = make_node("NoOp", recomputed_name("after/%s" % first.name), ["^" + name for name in group.after])
    set_attr(node, tags.PHASE, tags.BACKWARD)
    if tags.TASKGRAPH in first.attr:
        set_attr(node, tags.TASKGRAPH, first.attr[tags.TASKGRAPH].i)
    return node


def _after_branches(graph, group, write):
    """A node that runs after copies in branches that read what a write changes, also where these do not run."""
    readers = ["^" + reader for reader, changed in group.before if changed == write and reader in group.perhaps]
    first = graph.nodes[group.nodes[0]]
    node = make_node("ControlTrigger", recomputed_name("before/%s/%s" % (write, first.name)), readers)
    set_attr(node, tags.PHASE, tags.BACKWARD)
    if tags.TASKGRAPH in first.attr:
        set_attr(node, tags.TASKGRAPH, first.attr[tags.TASKGRAPH].i)
    return node


def _own(text):
    name, index = parse_input(text)
    return format_input(recomputed_name(name), index)
