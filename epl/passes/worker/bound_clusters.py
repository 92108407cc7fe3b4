r"""Keeps what waits for other workers out of the clusters that XLA compiles (execution.xla).

    grad -> EplAllReduce -> apply   becomes   grad -> EplAllReduce -> apply (not compiled)

A cluster begins when all that goes into it is there. One that took what two collectives give, and gave what one of
them sends, would wait for itself, or for a peer that waits for this worker. What comes before all collectives may be
compiled.
"""

from epl.graph.node_defs import set_attr

_COMPILES = "_XlaCompile"


def bound_clusters(program, plan):
    """Marks, in this worker's graph, all collectives and messages and what comes after them."""
    if not plan.bounds_clusters:
        return program
    graph = program.graph
    exchanges = [name for name, node in graph.nodes.items() if "comm" in node.attr]
    edit = graph.editor()
    for name in graph.descendants(exchanges):
        set_attr(edit.node(name), _COMPILES, False)
    return program.with_graph(edit.finish())
