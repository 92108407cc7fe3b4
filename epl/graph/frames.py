"""In which loops of control flow v1 the nodes of a graph run."""

ENTERS = frozenset(["Enter", "RefEnter"])
EXITS = frozenset(["Exit", "RefExit"])
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


def _given(graph, found, name):
    """The frames in which those run that take something of a node."""
    frames = found.get(name, ())
    return frames[:-1] if graph.nodes[name].op in EXITS else frames
