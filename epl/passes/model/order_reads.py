r"""Lets what optimizers read of a counter come before its next value.

    step -> rate -> apply               step -> rate ---> apply
        \-> add -> Assign    becomes       \         \(control)
                                            \-> add -> Assign

Programs that count steps by hand (`tf.group(train_op, global_step.assign(global_step + 1))`) leave it open whether the
learning rate comes from the count before or after. One device has one answer for itself; copies of a model would each
find their own, and drift apart.
"""

from epl.graph import tags
from epl.plan.facts.analysis import variable_of
from epl.rules import effects, tensors


def order_reads(program, plan):
    """Control edges from the readers of scalar variables to the operations that change these, outside of optimizers."""
    graph = program.graph
    if plan.mesh.copies.size == 1:
        return program
    readers_of = {}
    for write in plan.analysis.writes:
        readers = _readers(graph, plan, write)
        if readers:
            readers_of[write] = readers
    if not readers_of:
        return program
    edit = graph.editor()
    updates = [w for w in plan.analysis.writes if tags.phase(graph.nodes[w]) == tags.APPLY]
    used = graph.ancestors(updates)
    for write, readers in readers_of.items():
        dependent = graph.descendants([write])
        needed = graph.ancestors([write])
        waits = [r for r in readers if r in used and r not in needed and r not in dependent]
        edit.node(write).input.extend("^" + reader for reader in waits)
    return program.with_graph(edit.finish())


def _readers(graph, plan, write):
    """What takes the value of the scalar that `write` changes and depends on nothing but variables and constants."""
    analysis, node = plan.analysis, graph.nodes[write]
    variable = plan.variables.get(variable_of(graph, write))
    if variable is None or variable.shape != () or node.op not in effects.ADDS | effects.SETS:
        return []
    if write in analysis.in_control_flow:
        return []
    found, stack, seen = [], [variable.name], set()
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if consumer in seen or graph.nodes[consumer].input[position][0] == "^":
                continue
            seen.add(consumer)
            if graph.nodes[consumer].op in tensors.READS_OR_ALIASES:
                stack.append(consumer)
            elif not effects.is_write(graph.nodes[consumer].op) and _runs_alone(graph, analysis, consumer):
                found.append(consumer)
    return graph.in_order(found)


def _runs_alone(graph, analysis, name):
    """True when a node can be run by itself: it takes no data, and stands outside of branches and loops."""
    if name in analysis.varying or name in analysis.in_control_flow or name not in analysis.cloned:
        return False
    needs = graph.ancestors([name])
    return not any(n in analysis.in_control_flow or graph.nodes[n].op in effects.PLACEHOLDERS for n in needs)
