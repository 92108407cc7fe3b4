"""In which loops and branches of control flow v1 the nodes of a graph run."""

ENTERS = frozenset(["Enter", "RefEnter"])
EXITS = frozenset(["Exit", "RefExit"])
_SWITCHES = frozenset(["Switch", "RefSwitch"])
_MERGES = frozenset(["Merge", "RefMerge"])
_BACK = frozenset(["NextIteration", "RefNextIteration"])


def frames_of(graph):
    """dict of node to the names of the frames in which it runs, the outermost first.

    Nodes outside of loops are left out. What enters a loop, and what leaves it, counts as in it.
    """
    enters = graph.find(ENTERS.__contains__)
    if not enters:
        return {}
    found = {}
    for name in sorted((n for n in graph.descendants(enters) if n in graph.order), key=graph.order.__getitem__):
        node, around = graph.nodes[name], ()
        for producer, _ in graph.inputs[name]:
            if graph.nodes[producer].op not in _BACK:
                around = max(around, _given(graph, found, producer), key=len)
        if node.op in ENTERS:
            around += (node.attr["frame_name"].s.decode(),)
        if around:
            found[name] = around
    return found


def in_branches(graph):
    """The nodes that do not run where a branch goes the other way, at any depth of branches within branches."""
    switches = graph.find(_SWITCHES.__contains__)
    if not switches:
        return frozenset()
    given, found = {}, set()  # node to the number of branches in which those stand that take something of it
    for name in sorted((n for n in graph.descendants(switches) if n in graph.order), key=graph.order.__getitem__):
        producers = [(p, graph.nodes[p].op) for p, _ in graph.inputs[name]]
        depth = max([given.get(p, 0) for p, op in producers if op not in _BACK] or [0])
        op = graph.nodes[name].op
        if op in _MERGES and not any(op in _BACK for _, op in producers):
            depth = max(0, depth - 1)
        if depth:
            found.add(name)
        given[name] = depth + (op in _SWITCHES and producers[1][1] != "LoopCond")
    return frozenset(found)


def _given(graph, found, name):
    """The frames in which those run that take something of a node."""
    frames = found.get(name, ())
    return frames[:-1] if graph.nodes[name].op in EXITS else frames
