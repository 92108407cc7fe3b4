"""Checks that a graph is well formed: what every pass must be given and must leave behind."""

from epl.graph import types
from epl.graph.index import parse_input


def lint(graph, op_def, changed_since=None):
    """Returns a list of problems, empty when there are none.

    Checked are: inputs exist and come before control inputs, no cycle outside loops, types fit, colocation groups name
    nodes that exist.

    Args:
      graph: an epl.graph.index.Graph.
      op_def: function from operation type to OpDef (None for unknown types, e.g. calls of functions).
      changed_since: an earlier Graph that was checked; what is the same in it is not checked again.
    """
    before = changed_since.nodes if changed_since is not None else {}
    if any(name not in graph.nodes for name in before):
        before = {}  # removing a node may harm those that did not change
    changed = [node for name, node in graph.nodes.items() if before.get(name) is not node]
    problems = _check_inputs(graph, changed)
    if problems:
        return problems
    # A cycle that was not there before goes through an edge that was not there before, or one that was a loop's.
    if any(n.name not in before or _edges(n) != _edges(before[n.name]) for n in changed):
        problems = _check_acyclic(graph)
    return problems + _check_types(graph, op_def, changed + _unchanged_consumers(graph, before, changed))


def _edges(node):
    return list(node.input), node.op in _LOOP_EDGES


def _unchanged_consumers(graph, before, changed):
    """Nodes that are the same but may be wrong now, because what they consume has changed."""
    if len(changed) == len(graph.nodes):
        return []
    found = {}
    for node in changed:
        for name, _ in graph.consumers.get(node.name, ()) if node.name in before else ():
            if before.get(name) is graph.nodes[name]:
                found[name] = graph.nodes[name]
    return list(found.values())


def _check_inputs(graph, changed):
    problems = []
    nodes = graph.nodes
    for node in changed:
        in_controls = False
        for text in node.input:
            producer, index = parse_input(text)
            if producer not in nodes:
                problems.append("node '%s' has the input '%s', which does not exist" % (node.name, text))
            if in_controls and index >= 0:
                problems.append("node '%s' has the data input '%s' after a control input" % (node.name, text))
            in_controls = in_controls or index < 0
        if "_class" in node.attr:
            for group in node.attr["_class"].list.s:
                if group.startswith(b"loc:@") and group[5:].decode() not in nodes:
                    problems.append(
                        "node '%s' is colocated with '%s', which does not exist" % (node.name, group[5:].decode())
                    )
    return problems


def _check_acyclic(graph):
    """Kahn's algorithm; the edges out of NextIteration are the only ones that may close a loop."""
    nodes = graph.nodes
    waiting = {name: len(node.input) for name, node in nodes.items()}
    consumers = graph.consumers
    for name, node in nodes.items():
        if node.op in _LOOP_EDGES:
            for consumer, _ in consumers.get(name, ()):
                waiting[consumer] -= 1
    ready = [name for name, count in waiting.items() if count == 0]
    done = 0
    while ready:
        name = ready.pop()
        done += 1
        if nodes[name].op in _LOOP_EDGES:
            continue
        for consumer, _ in consumers.get(name, ()):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    if done == len(nodes):
        return []
    stuck = sorted(name for name, count in waiting.items() if count > 0)
    return ["a cycle outside of loops goes through %s" % ", ".join("'%s'" % n for n in stuck[:5])]


_LOOP_EDGES = ("NextIteration", "RefNextIteration")


def _check_types(graph, op_def, changed):
    problems = []
    outputs = {}

    def dtypes_of(name):
        if name not in outputs:
            node = graph.nodes[name]
            definition = op_def(node.op)
            outputs[name] = types.output_dtypes(node, definition) if definition is not None else None
        return outputs[name]

    for node in changed:
        name = node.name
        definition = op_def(node.op)
        if definition is None:
            continue
        expected = types.input_dtypes(node, definition)
        given = [parse_input(text) for text in node.input if text[0] != "^"]
        if len(expected) != len(given):
            problems.append(
                "node '%s' (%s) has %d inputs, its operation takes %d" % (name, node.op, len(given), len(expected))
            )
            continue
        for want, (producer, index) in zip(expected, given):
            have = dtypes_of(producer)
            if have is None:
                continue
            if index >= len(have):
                problems.append("node '%s' uses output %d of '%s', which has %d" % (name, index, producer, len(have)))
            elif types.base(have[index]) != types.base(want) or (want > types.REF and have[index] < types.REF):
                problems.append(
                    "node '%s' (%s) wants type %d from '%s:%d', which has type %d"
                    % (name, node.op, want, producer, index, have[index])
                )
    return problems
