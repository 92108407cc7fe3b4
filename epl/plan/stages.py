"""Which stage of a pipeline each node of a model belongs to: a strategy scope is a stage."""

from epl.graph import tags
from epl.graph.index import node_of

_NO_COMPUTATION = frozenset(["Const", "NoOp", "Placeholder", "Identity"])


def used_taskgraphs(model):
    """The TaskGraphs of a model that hold any computation; all of them are stages, in this order."""
    if len(model.taskgraphs) == 1:
        return list(model.taskgraphs)
    computing = {
        tags.get_int(node, tags.TASKGRAPH, -1) for node in model.graph.nodes.values() if node.op not in _NO_COMPUTATION
    }
    return [t for t in model.taskgraphs if t.index in computing]


def stages_of(model, used):
    """dict of node to stage: its TaskGraph's; a node without one goes where its first tagged neighbour is.

    Empty for a model of one stage.
    """
    if len(used) < 2:
        return {}
    graph = model.graph
    position = {t.index: i for i, t in enumerate(used)}
    stage = {}
    for name, node in graph.nodes.items():
        index = tags.get_int(node, tags.TASKGRAPH, -1)
        if index in position:
            stage[name] = position[index]
    # Producers decide first (an update goes to its variable, a sum to its terms), then consumers (an input pipeline).
    for name, node in graph.nodes.items():
        if name not in stage:
            known = [stage[node_of(t)] for t in node.input if node_of(t) in stage]
            if known:
                stage[name] = known[0] if tags.phase(node) == tags.APPLY else max(known)
    for name in reversed(list(graph.nodes)):
        if name not in stage:
            known = [stage[c] for c, _ in graph.consumers.get(name, ()) if c in stage]
            stage[name] = min(known) if known else 0
    return stage
