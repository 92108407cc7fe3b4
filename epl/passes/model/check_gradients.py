r"""Computes gradients a second time, from what the forward pass has kept, to compare them with (`check_gradients`).

    y  ----------\                          y  ----------\
    y' -> dx      (nobody takes it)  becomes  y' -> dx     -> dx''

y' is computed again, y kept from the forward pass; dx and dx'' are what a session compares in its first step. Updates
wait for dx'', which is made of the variables as they are before.
"""

from dataclasses import replace

from epl.errors import ConfigError
from epl.graph import tags
from epl.graph.build import make_node, set_attr
from epl.graph.control_flow import frames_of
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.passes.template import Template
from epl.plan.facts.analysis import analyse
from epl.plan.facts.names import PREFIX, recomputed_name
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.program.program import CheckedGradient
from epl.rules import effects


def check_gradients(program, target):
    """Copies of the backward pass that take nothing that is computed again; `program.checked` says of what.

    Each stage of a pipeline takes from others the gradients that these have.

    Raises:
      ConfigError: nothing is computed again, nor was anything to be.
    """
    if not target.config.gradient_checkpoint.check_gradients or not program.computed:
        return program
    graph = program.graph
    again = {recomputed_name(n): n for n in graph.nodes if recomputed_name(n) in graph.nodes}
    if not again and not target.config.gradient_checkpoint.type:
        raise ConfigError(
            "gradient_checkpoint.check_gradients=True has nothing to compare: no operation is computed again. Set "
            'gradient_checkpoint.type to "auto" or "collection", or mark what is to be computed again with '
            "epl.recompute()."
        )
    stage_of = stages_of(program, used_taskgraphs(program))
    gradients = {
        canonical_tensor(text): variable
        for gradient, variable in program.computed
        if variable in program.variables
        for text in gradient
        if text
    }
    analysis = analyse(program)
    inside = _changed_by(graph, again, map(node_of, gradients), frames_of(graph), program.stateful)
    edit = graph.editor()
    for name in graph.in_order(inside):
        inputs = []
        for text in graph.nodes[name].input:
            producer, index = parse_input(text)
            if producer in again:
                text = format_input(again[producer], index)
            elif producer in inside and stage_of.get(producer) == stage_of.get(name):
                text = format_input(_name(producer), index)
            inputs.append(text)
        edit.add(Template(graph.nodes[name], inside).copy(_name, inputs))
    for call in program.apply_calls:
        _wait(graph, edit, call, analysis, inside, stage_of)
    order = sorted(gradients, key=lambda tensor: (graph.creation_index[node_of(tensor)], tensor))
    checked = tuple(CheckedGradient(gradients[t], t, _name(t)) for t in order if node_of(t) in inside)
    return replace(program.with_graph(edit.finish()), checked=checked)


def _wait(graph, edit, call, analysis, inside, stage_of):
    """Lets the updates of a call of an optimizer wait for the copies of what its gradients are made of, by stage."""
    made = [node_of(canonical_tensor(text)) for gradient, _ in call.gradients for text in gradient if text]
    needed = graph.ancestors(made) & inside
    last = [n for n in graph.in_order(needed) if not any(c in needed for c, _ in graph.consumers.get(n, ()))]
    for write in analysis.writes:
        node = graph.nodes[write]
        ours = tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call.index
        if not ours or write in analysis.in_control_flow:
            continue
        stage = stage_of.get(write, 0)
        name = "%s_check/call_%d/stage_%d" % (PREFIX, call.index, stage)
        if name not in edit:
            waits = ["^" + _name(n) for n in last if stage_of.get(n, 0) == stage]
            if not waits:
                continue
            join = make_node("NoOp", name, waits)
            set_attr(join, tags.PHASE, tags.BACKWARD)
            for each in last:
                if stage_of.get(each, 0) == stage and tags.TASKGRAPH in graph.nodes[each].attr:
                    set_attr(join, tags.TASKGRAPH, graph.nodes[each].attr[tags.TASKGRAPH].i)
            edit.add(join)
        edit.node(write).input.append("^" + name)


def _name(text):
    return "%s_check/%s" % (PREFIX, text)


def _changed_by(graph, again, gradients, in_loops, stateful):
    """The nodes of the backward pass that lie between what is computed again and gradients, and may be copied.

    What stands in a loop is not: it empties stacks that another one would find empty.
    """
    users = {c for name in again for c in graph.edges.data_consumers.get(name, ()) if c not in again}
    between = graph.descendants(users, data_only=True) & graph.ancestors(gradients, data_only=True)
    return frozenset(
        name
        for name in between - again.keys()
        if tags.phase(graph.nodes[name]) == tags.BACKWARD
        and name not in in_loops
        and effects.kind_of(graph.nodes[name].op) is None
        and graph.nodes[name].op not in stateful
    )
