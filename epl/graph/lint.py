"""Checks that a graph is well formed: what every pass must be given and must leave behind."""

from epl.graph import types
from epl.graph.index import Edges, Graph
from epl.graph.lazy import Lazy
from epl.rules import effects


def lint(graph, op_def, changed_since=None):
    """Returns a list of problems, empty when there are none.

    Checked are: inputs exist and come before control inputs, no cycle outside loops, types fit, colocation groups name
    nodes that exist. Of nodes that are copies of one (epl.graph.lazy.Lazy), types and groups of the first are checked.

    Args:
      graph: an epl.graph.index.Graph.
      op_def: function from operation type to OpDef (None for unknown types, e.g. calls of functions).
      changed_since: an earlier Graph that was checked; what is the same in it is not checked again.
    """
    before, changed, same = {}, graph.nodes, frozenset()
    if changed_since is not None:
        if changed_since.nodes.keys() <= graph.nodes.keys():
            before = changed_since.nodes
            changed = graph.changes_since(changed_since)
        else:
            # Removing a node may harm those that did not change: what they take may be gone.
            nodes = changed_since.nodes
            same = frozenset(name for name, node in graph.nodes.items() if nodes.get(name) is node)
    problems = _check_inputs(graph, changed) + _check_groups(graph, _distinct(changed, same))
    if problems:
        return problems
    if not before:
        problems = _check_acyclic(graph)
    elif any(_in_new_cycles(node, graph, changed_since) for node in changed.values() if node.name in before):
        problems = _check_acyclic(graph)
    elif len(before) < len(graph.nodes):  # nothing old takes anything new, so a cycle is among what is new
        problems = _check_acyclic(_without(graph, changed, before))
    return problems + _check_types(graph, op_def, _distinct(_with_unchanged_consumers(graph, before, changed), same))


def _distinct(nodes, same):
    """Some nodes without those whose names are given, and with the first of each node's copies alone."""
    found, seen = {}, set()
    for name, node in nodes.items():
        if type(node) is Lazy and node.like is not None:
            if node.like in seen:
                continue
            seen.add(node.like)
        if name not in same:
            found[name] = node
    return found


def _in_new_cycles(node, graph, before):
    """Whether a node may stand in a cycle that was not there: it takes something else, or closes a loop no longer."""
    if graph.inputs[node.name] != before.inputs[node.name]:
        return True
    return (node.op in effects.LOOP_EDGES) != (before.nodes[node.name].op in effects.LOOP_EDGES)


def _without(graph, changed, before):
    """The Graph of the changed nodes that are not in `before`, and of the edges between them."""
    nodes = {name: node for name, node in changed.items() if name not in before}
    inputs = {name: tuple(each for each in graph.inputs[name] if each.node in nodes) for name in nodes}
    return Graph(nodes, graph.library, graph.versions, Edges(inputs))


def _with_unchanged_consumers(graph, before, changed):
    """And the nodes that are the same but may be wrong now, because what they consume has changed."""
    if len(changed) == len(graph.nodes):
        return changed
    found = dict(changed)
    for name in changed:
        for consumer, _ in graph.consumers.get(name, ()) if name in before else ():
            found.setdefault(consumer, graph.nodes[consumer])
    return found


def _check_inputs(graph, changed):
    problems = []
    nodes, inputs, what = graph.nodes, graph.inputs, "node '%s' has the %s '%s'"
    for name, node in changed.items():
        in_controls = False
        for position, (producer, index) in enumerate(inputs[name]):
            if producer not in nodes:
                problems.append((what + ", which does not exist") % (name, "input", node.input[position]))
            if in_controls and index >= 0:
                problems.append((what + " after a control input") % (name, "data input", node.input[position]))
            in_controls = in_controls or index < 0
    return problems


def _check_groups(graph, changed):
    groups = [(name, node.attr["_class"].list.s[:]) for name, node in changed.items() if "_class" in node.attr]
    every = {group for _, named in groups for group in named if group.startswith(b"loc:@")}  # many nodes share one
    missing = {group: text for group, text in ((g, g[5:].decode()) for g in every) if text not in graph.nodes}
    return [
        "node '%s' is colocated with '%s', which does not exist" % (name, missing[group])
        for name, named in (groups if missing else ())
        for group in named
        if group in missing
    ]


def _check_acyclic(graph):
    if len(graph.order) == len(graph.nodes):
        return []
    stuck = sorted(name for name in graph.nodes if name not in graph.order)
    return ["a cycle outside of loops goes through %s" % ", ".join("'%s'" % n for n in stuck[:5])]


def _check_types(graph, op_def, changed):
    problems, inputs = [], graph.inputs
    signatures = types.Signatures(op_def)
    known = {name: signatures.of(node) for name, node in changed.items()}
    for name, node in changed.items():
        if known[name] is None:
            continue
        expected, given = known[name][0], inputs[name]
        if given and given[-1].index < 0:
            given = [each for each in given if each.index >= 0]
        if len(expected) != len(given):
            problems.append(
                "node '%s' (%s) has %d inputs, its operation takes %d" % (name, node.op, len(given), len(expected))
            )
            continue
        for want, (producer, index) in zip(expected, given):
            if producer not in known:
                known[producer] = signatures.of(graph.nodes[producer])
            if known[producer] is None:
                continue
            have = known[producer][1]
            if index >= len(have):
                problems.append("node '%s' uses output %d of '%s', which has %d" % (name, index, producer, len(have)))
            elif have[index] != want and not types.fits(have[index], want):
                problems.append(
                    "node '%s' (%s) wants type %d from '%s:%d', which has type %d"
                    % (name, node.op, want, producer, index, have[index])
                )
    return problems
