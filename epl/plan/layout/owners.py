"""Which worker of a pipeline computes what, when the stages of a model lie in several workers.

A node is where its stage is. What every worker can compute by itself and gets the same from is in all of them:
constants, scalars that are fed, files, data sets, and variables such as the number of the step, which change by what
does not depend on the data, with everything that follows from these alone. So are the loss scale of float16 and what
leaves a step out, as the workers agree on whether all gradients are finite.
"""

from epl.graph.index import node_of
from epl.plan.facts.analysis import of_kernel, variable_of
from epl.plan.precision.found_inf import gated_writes, packed_found_infs
from epl.rules import effects

# They write files, or make strings for the file that the chief writes.
_ON_CHIEF = (
    effects.SUMMARIES
    | effects.MERGED_SUMMARIES
    | effects.SUMMARY_WRITES
    | effects.SUMMARY_WRITERS
    | effects.FILE_WRITES
)
_CHIEF = 0


def owners_of(model, analysis, stage_of, mesh):
    """dict of node to the place in `mesh.pipeline` of the one worker that computes it, or its copy in the first
    instance; other nodes are everywhere.

    Empty for pipelines within a worker.

    Args:
      model: an epl.program.program.Program.
      analysis: its Analysis.
      stage_of: dict of node to stage.
      mesh: a Mesh.
    """
    if mesh.pipeline.num_workers == 1:
        return {}
    graph = model.graph
    variables, data = graph.find(effects.VARIABLES.__contains__), _data(graph)
    differing = _not_counted(model, analysis, variables, data)
    rest = [name for name in data if name not in differing and name not in analysis.cloned]
    needed = graph.ancestors(differing | analysis.cloned) if rest else ()
    data = [name for name in data if name in differing or name in analysis.cloned or name in needed]
    agreed = packed_found_infs(model)
    differing |= graph.descendants(data, stop=differing | agreed, data_only=True) - agreed
    of_stage = [mesh.worker_of(stage) for stage in range(len(mesh.stages))]
    found = {name: of_stage[stage_of.get(name, 0)] for name in differing}
    found.update((name, of_stage[0]) for name in graph.find(effects.PLACEHOLDERS.__contains__) if name in found)
    found.update((name, _CHIEF) for name in graph.find(_ON_CHIEF.__contains__))
    return found


def staying_of(graph, owners):
    """Those of some nodes of which one worker has all copies, though those of its stage may be in several.

    All copies of a model that lie in the same workers take their data from one of these, so that it does not matter in
    what order they read.
    """
    stays = effects.PLACEHOLDERS | effects.SOURCES | _ON_CHIEF
    return frozenset(owners).intersection(graph.find(stays.__contains__))


def travelling_apart(owners, stage_of, mesh):
    """dict of node to a number: gradients that travel together have the same. Their stages have as many copies, each in
    the same worker."""
    if mesh.is_even:
        return owners
    numbers, of_stage = {}, []
    for stage in mesh.stages:
        places = tuple((i.index, i.workers[stage.index]) for i in mesh.computing(stage.index))
        of_stage.append(numbers.setdefault(places, len(numbers)))
    return {name: of_stage[stage] for name, stage in stage_of.items()}


def _data(graph):
    """What may give each worker something else."""
    placeholders = [graph.nodes[name] for name in graph.find(effects.PLACEHOLDERS.__contains__)]
    shapes = [(node.name, node.attr["shape"].shape) for node in placeholders]
    found = [name for name, shape in shapes if shape.unknown_rank or len(shape.dim) > 0]
    return found + graph.find(effects.DIFFERING.__contains__)


def _not_counted(model, analysis, variables, data):
    """All that comes from variables but counters: scalars that every worker can keep for itself, as nothing but such
    variables changes them.

    Args:
      model, analysis: the Program and its Analysis.
      variables: names of all variables.
      data: names of what may give each worker something else.
    """
    graph, agreed = model.graph, packed_found_infs(model)
    # A write that is left out is so in all workers.
    inside = analysis.in_control_flow - gated_writes(model)
    writes = {}
    for name in graph.find(effects.is_write):
        for variable in of_kernel(graph, name).union([variable_of(graph, name)]):
            writes.setdefault(variable, []).append(name)
    found = {
        v.name
        for v in model.variables.values()
        if v.shape == () and not any(name in inside for name in writes.get(v.name, ()))
    }
    while True:
        others = [name for name in variables if name not in found]
        differing = graph.descendants(others, stop=agreed, data_only=True) - agreed
        differ = differing | graph.descendants(data, stop=differing | agreed, data_only=True) - agreed
        kept = {
            v
            for v in found
            if not any(node_of(t) in differ for w in writes.get(v, ()) for t in _values(graph.nodes[w]))
        }
        if kept == found:
            return differing
        found = kept


def _values(node):
    return [text for text in node.input[1:] if text[0] != "^"]
