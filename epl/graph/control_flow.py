"""In which loops and branches of control flow v1 the nodes of a graph run."""

from epl.rules import effects


def inside_control_flow(graph):
    """The nodes of a Graph that give their outputs in a loop or a branch, where they may never come, or come often.

    What opens one is among them; what closes the last one is not.

    Returns:
      A frozenset of names.
    """
    nodes, depths = graph.nodes, {}  # of those in control flow: in how many loops and branches
    for name in _behind(graph, effects.CONTROL_FLOW_OPENS):
        op = nodes[name].op
        depth = max((depths.get(producer, 0) for producer, _ in graph.inputs[name]), default=0)
        if op in effects.ENTERS or op in effects.SWITCHES and not _of_loop(graph, name):
            depth += 1
        elif op in effects.EXITS or op in effects.MERGES and not _starts_loop(graph, name):
            depth -= 1
        if depth > 0:
            depths[name] = depth
    return frozenset(depths)


def frames_of(graph):
    """dict of node to the names of the frames in which it runs, the outermost first.

    Nodes outside of loops are left out. What enters a loop, and what leaves it, counts as in it.
    """
    found = {}
    for name in _behind(graph, effects.ENTERS):
        node, around = graph.nodes[name], ()
        for producer, _ in graph.inputs[name]:
            if graph.nodes[producer].op not in effects.LOOP_EDGES:
                around = max(around, _given(graph, found, producer), key=len)
        if node.op in effects.ENTERS:
            around += (node.attr["frame_name"].s.decode(),)
        if around:
            found[name] = around
    return found


def in_branches(graph):
    """The nodes that do not run where a branch goes the other way, at any depth of branches within branches."""
    given, found = {}, set()  # node to the number of branches in which those stand that take something of it
    for name in _behind(graph, effects.SWITCHES):
        op = graph.nodes[name].op
        depth = max(
            (given.get(p, 0) for p, _ in graph.inputs[name] if graph.nodes[p].op not in effects.LOOP_EDGES), default=0
        )
        if op in effects.MERGES and not _starts_loop(graph, name):
            depth = max(0, depth - 1)
        if depth:
            found.add(name)
        given[name] = depth + (op in effects.SWITCHES and not _of_loop(graph, name))
    return frozenset(found)


def _behind(graph, types):
    """The nodes of some types, and all that depends on any, in topological order."""
    order, opens = graph.order, graph.find(types.__contains__)
    return sorted(graph.descendants(opens) & order.keys(), key=order.__getitem__) if opens else []


def _given(graph, found, name):
    """The frames in which those run that take something of a node."""
    frames = found.get(name, ())
    return frames[:-1] if graph.nodes[name].op in effects.EXITS else frames


def _of_loop(graph, switch):
    """Whether a Switch says if a loop goes on."""
    return graph.nodes[graph.inputs[switch][1].node].op == "LoopCond"


def _starts_loop(graph, merge):
    return any(graph.nodes[producer].op in effects.LOOP_EDGES for producer, _ in graph.inputs[merge])
