"""Which worker of a crew computes what, when the stages of a model lie in several workers.

A node is where its stage is. What every worker can compute by itself and gets the same from is in all of them:
constants, scalars that are fed, files, data sets, and variables such as the number of the step, which change by what
does not depend on the data, with everything that follows from these alone.
"""

from epl.graph.index import node_of
from epl.plan import ops
from epl.plan.analysis import variable_of

# They write files, or make strings for the file that the chief writes.
_ON_CHIEF = ops.SUMMARIES | ops.MERGED_SUMMARIES | ops.SUMMARY_WRITES | ops.SUMMARY_WRITERS | ops.FILE_WRITES
_CHIEF = 0


def positions_of(model, analysis, stage_of, layout):
    """dict of node to the position in its crew of the one worker that computes it; other nodes are everywhere.

    Empty for crews of one worker.

    Args:
      model: an epl.graph.model.Model.
      analysis: its Analysis.
      stage_of: dict of node to stage.
      layout: a Layout.
    """
    if len(layout.crew) == 1:
        return {}
    graph = model.graph
    counters = _counters(model, analysis)
    roots = [name for name, node in graph.nodes.items() if node.op in ops.VARIABLES and name not in counters]
    dependent = graph.descendants(roots, data_only=True)
    needed = graph.ancestors(dependent | analysis.cloned)
    roots += [name for name in needed if _gives_data(graph.nodes[name])]
    found = {}
    for name in graph.descendants(roots, data_only=True):
        node = graph.nodes[name]
        if node.op in _ON_CHIEF:
            found[name] = _CHIEF
        elif node.op in ops.PLACEHOLDERS:
            found[name] = layout.position_of(0)
        else:
            found[name] = layout.position_of(stage_of.get(name, 0))
    found.update((name, _CHIEF) for name, node in graph.nodes.items() if node.op in _ON_CHIEF)
    return found


def _gives_data(node):
    """True for what may give each worker something else."""
    if node.op in ops.PLACEHOLDERS:
        shape = node.attr["shape"].shape
        return shape.unknown_rank or len(shape.dim) > 0
    return node.op in ops.SOURCES or node.op in ops.RANDOM or node.op in ops.IMPURE


def _counters(model, analysis):
    """Scalar variables that every worker can keep for itself, as nothing but such variables changes them."""
    graph = model.graph
    writes = {}
    for name, node in graph.nodes.items():
        if ops.is_write(node.op):
            writes.setdefault(variable_of(graph, name), []).append(name)
    found = {
        v.name
        for v in model.variables.values()
        if v.shape == () and not any(name in analysis.in_control_flow for name in writes.get(v.name, ()))
    }
    while True:
        others = [n for n, node in graph.nodes.items() if node.op in ops.VARIABLES and n not in found]
        others += [name for name, node in graph.nodes.items() if _gives_data(node)]
        differ = graph.descendants(others, data_only=True)
        kept = {
            v
            for v in found
            if not any(node_of(t) in differ for w in writes.get(v, ()) for t in _values(graph.nodes[w]))
        }
        if kept == found:
            return found
        found = kept


def _values(node):
    return [text for text in node.input[1:] if text[0] != "^"]
