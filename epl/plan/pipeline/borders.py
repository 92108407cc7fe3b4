"""What crosses from a stage to one with another number of devices, and how it is joined or divided there.

A tensor with a row for each row of the batch is put together of those of several devices, or of parts of them, or
divided over them. What is the same in all copies of a stage is taken as it is. A mean over the rows that one copy has
becomes the mean of the copies' means, each counted by the rows that it has in common with who takes it.

Each copy of a stage computes gradients of the loss of its own rows, as if these were the whole batch; what is true for
all is the mean over the copies. So gradients with rows are multiplied where they come to a stage with more devices, by
how many times more these are, and divided in the other direction. Gradients without rows, of variables say, are
averaged over the copies that are joined.
"""

from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, format_input, node_of
from epl.plan.facts.analysis import with_copies_of
from epl.plan.facts.consistency import differing
from epl.plan.facts.merging import MEAN, ROWS, SAME, Merging
from epl.rules import effects, tensors

# Besides those of epl.plan.facts.merging: rows of a gradient.
GRADIENT_ROWS = "rows of a gradient"

_SHAPES = "shapes", "output_shapes"
# Of these each copy has numbers or places of its own rows, which are others among all rows.
_COUNTED_FROM_0 = frozenset("Range Where Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2".split())


def plan_borders(model, analysis, stage_of, mesh, merged):
    """dict of canonical tensor, of the one copy, to how it crosses: SAME, ROWS, MEAN or GRADIENT_ROWS.

    Empty where all stages have the same number of devices.

    Args:
      model, analysis: the Program and its Analysis.
      stage_of: node to stage.
      mesh: the Mesh.
      merged: the (node, input position) pairs that see what is merged over all copies.

    Raises:
      UnsupportedError: nothing tells how a tensor is to be joined or divided; names it.
    """
    if mesh.is_even:
        return {}
    _check_sources(model, analysis)
    edges = list(_crossing(model.graph, analysis, stage_of, mesh, merged))
    tensors = sorted({tensor for tensor, _ in edges}, key=lambda t: (model.graph.creation_index[node_of(t)], t))
    differ = differing(model.graph, analysis.varying, merged)
    merging = Merging(model.graph, [node_of(tensor) for tensor in tensors], differ, frozenset())
    ways = {tensor: _way(model, merging, differ, tensor) for tensor in tensors}
    for tensor, consumer in edges:
        if consumer in analysis.cloned:
            _check(model, analysis, mesh, stage_of, tensor, consumer, ways[tensor])
    # What is only fetched is what the first copy makes of it.
    return {tensor: way or SAME for tensor, way in ways.items()}


def copied_for_borders(model, analysis, stage_of, mesh):
    """The Analysis with copies of all that is joined at a border, though it may be for what is fetched alone; and of
    variables that nothing changes, where each worker of a stage has what others send it of that stage's."""
    if mesh.is_even:
        return analysis
    graph, found = model.graph, []
    if mesh.is_spread:
        found += [v.name for v in model.variables.values() if v.shape != () and v.name not in analysis.cloned]
    for name in analysis.varying:
        span = mesh.span(stage_of.get(name, 0))
        for producer, index in graph.inputs[name]:
            if index >= 0 and producer in analysis.varying and mesh.span(stage_of.get(producer, 0)) != span:
                found.append(producer)
    return with_copies_of(model, analysis, found)


def _crossing(graph, analysis, stage_of, mesh, merged):
    """(canonical tensor, node that takes it) for what crosses."""
    for name in graph.nodes:
        span = mesh.span(stage_of.get(name, 0))
        for position, (producer, index) in enumerate(graph.inputs[name]):
            if index < 0 or producer not in analysis.cloned or (name, position) in merged:
                continue
            if mesh.span(stage_of.get(producer, 0)) != span:
                yield canonical_tensor(format_input(producer, index)), name


def _way(model, merging, differ, tensor):
    """How a tensor crosses; None where nothing tells."""
    node = model.graph.nodes[node_of(tensor)]
    if node.name not in differ:
        return SAME
    spec = model.spec_of(tensor)
    if spec is None or spec.shape is None or _made_by(model.graph, node) in _COUNTED_FROM_0:
        return None
    is_float, is_gradient = types.base(spec.dtype) in types.FLOAT_TYPES, _is_gradient(model, node)
    unknown = [dim for dim, size in enumerate(spec.shape) if size < 0]
    if unknown == [0] or unknown and merging.kind(tensor) == ROWS:
        return GRADIENT_ROWS if is_gradient and is_float else ROWS
    if unknown or not is_float:
        return None
    return MEAN if is_gradient or merging.kind(tensor) == MEAN or _is_mean_of_rows(model, node) else None


def _is_mean_of_rows(model, node):
    """Whether a tensor of known shape is the mean of one of which the number of rows alone is not known."""
    taken = model.spec_of(canonical_tensor(node.input[0])) if node.op == "Mean" else None
    return taken is not None and taken.shape is not None and [d for d, n in enumerate(taken.shape) if n < 0] == [0]


def _made_by(graph, node):
    """The operation type that a tensor comes from, but for what hands it on as it is."""
    while node.op in tensors.KEEPS_NUMBERS:
        node = graph.nodes[node_of(node.input[0])]
    return node.op


def _is_gradient(model, node):
    """What is computed again for the backward pass is none."""
    return tags.phase(node) == tags.BACKWARD and node.name not in model.again


def _check(model, analysis, mesh, stage_of, tensor, consumer, way):
    node = model.graph.nodes[node_of(tensor)]
    stages = [mesh.stages[stage_of.get(name, 0)] for name in (node.name, consumer)]
    where = "'%s' (%s) of the scope '%s', device_count %d, is used by '%s' of the scope '%s', device_count %d" % (
        (tensor, node.op, stages[0].name, stages[0].device_count) + (consumer, stages[1].name, stages[1].device_count)
    )
    spec = model.spec_of(tensor)
    if node.name in analysis.in_control_flow and node.op not in effects.CONTROL_FLOW_CLOSES:
        raise UnsupportedError(
            "%s, and stands in a loop or a branch. Put the whole loop or branch into one scope, or use the same "
            "device_count in both." % where
        )
    if spec is not None and types.base(spec.dtype) in types.HANDLES:
        raise UnsupportedError(
            "%s, which cannot take a resource of another device. Put both into one scope, or use the same "
            "device_count in both." % where
        )
    if way is None:
        raise UnsupportedError(
            "%s, but nothing tells how it is joined or divided: it neither has the rows of the batch (a first "
            "dimension that alone is not known), nor is it a mean over them or the same for all. Compute it in the "
            "scope that uses it, or use the same device_count in both." % where
        )


def _check_sources(model, analysis):
    """Raises UnsupportedError where the number of rows is part of the graph: nothing tells them from other sizes."""
    graph = model.graph
    for name in graph.in_order(analysis.varying):
        node = graph.nodes[name]
        shapes = []
        if node.op in effects.PLACEHOLDERS:
            shapes = [node.attr["shape"].shape]
        elif node.op in effects.SOURCES:
            shapes = [shape for key in _SHAPES if key in node.attr for shape in node.attr[key].list.shape]
        for shape in shapes:
            if len(shape.dim) > 0 and shape.dim[0].size >= 0:
                raise UnsupportedError(
                    "'%s' gives batches of a fixed number of rows (%d), which does not go together with scopes of "
                    "different device counts whose copies lie in several workers, or that train nothing. Leave the "
                    "number open: batch(...) without drop_remainder, a placeholder of shape [None, ...]; or give each "
                    "worker all devices of a copy, or use the same device_count in all scopes."
                    % (name, shape.dim[0].size)
                )
