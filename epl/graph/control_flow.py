"""Loops and branches of control flow v1: what stands in them."""

from epl.graph.index import LOOP_EDGES
from epl.rules import effects

_MERGES = frozenset(["Merge", "RefMerge"])
_SWITCHES = frozenset(["Switch", "RefSwitch"])
_ENTERS = frozenset(["Enter", "RefEnter"])
_EXITS = frozenset(["Exit", "RefExit"])


def inside_control_flow(graph):
    """The nodes of a Graph that give their outputs in a loop or a branch, where they may never come, or come often.

    What opens one is among them; what closes the last one is not.

    Returns:
      A frozenset of names.
    """
    order, inputs, nodes = graph.order, graph.inputs, graph.nodes
    opens = graph.find(effects.CONTROL_FLOW_OPENS.__contains__)
    depths = {}  # of those in control flow: in how many loops and branches
    for name in sorted(graph.descendants(opens) & order.keys(), key=order.__getitem__):
        op = nodes[name].op
        depth = max((depths.get(producer, 0) for producer, _ in inputs[name]), default=0)
        if op in _ENTERS or op in _SWITCHES and not _of_loop(graph, name):
            depth += 1
        elif op in _EXITS or op in _MERGES and not _starts_loop(graph, name):
            depth -= 1
        if depth > 0:
            depths[name] = depth
    return frozenset(depths)


def _of_loop(graph, switch):
    """Whether a Switch says if a loop goes on."""
    decider = graph.inputs[switch][1].node
    return graph.nodes[decider].op == "LoopCond"


def _starts_loop(graph, merge):
    return any(graph.nodes[producer].op in LOOP_EDGES for producer, _ in graph.inputs[merge])
