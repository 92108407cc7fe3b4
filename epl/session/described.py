"""Lines of text about a graph, of which workers compare digests."""

import hashlib

from epl.graph import tags
from epl.graph.index import format_input
from epl.plan.facts.analysis import is_large_constant

# Longer values are shown by a digest.
_SHOWN_BYTES = 64
# Attributes whose values may differ between workers without harm: seeds, names of resources and of files.
_FREE_ATTRIBUTES = frozenset(
    [
        "seed",
        "seed2",
        "output_shapes",
        "shapes",
        "shared_name",
        "container",
        "value",
        "_output_shapes",
        "_class",
        "token",
    ]
)


def settings(plan):
    """A line about what the configuration says of gradients on their way between workers."""
    return (
        "settings: gradients %s, float16 on the wire %s (scale %g), sent as %s, sparse as dense %s, steps per run %d"
        % (
            {"mean": "averaged", "sum": "summed"}.get(plan.reduce_method, "of each term of a loss as it is made"),
            plan.wire_fp16,
            plan.fp16_scale,
            plan.wire.dtype if plan.wire is not None else "they are",
            plan.sparse_as_dense,
            plan.steps_per_run,
        )
    )


def told_hints(graph):
    """dict of the tensors of a Graph for which there are hints (epl.shard, epl.whole) to what these say, in words."""
    return {
        format_input(name, index): 'the hint "%s"' % tags.told(tags.WHOLE if dim is None else tags.divided(dim))
        for name, node in graph.nodes.items()
        for index, dim in tags.places_of(node).items()
    }


def describe(node, with_value=False):
    """A line about a node: its name, type, inputs and attributes, and of a constant its value if that is asked for."""
    attrs = []
    for key in sorted(node.attr):
        if key in _FREE_ATTRIBUTES or key.startswith("_"):
            continue
        value = node.attr[key]
        kind = value.WhichOneof("value")
        if kind in ("type", "shape", "i", "b", "f", "list"):
            attrs.append("%s=%s" % (key, " ".join(str(getattr(value, kind)).split())))
    if with_value and node.op == "Const" and not is_large_constant(node):
        attrs.append("value=%s" % _shown(node.attr["value"].tensor))
    return "%s = %s(%s) {%s}" % (node.name, node.op, ", ".join(node.input), ", ".join(attrs))


def _shown(tensor):
    """A constant's value as text: itself if it is short, else a digest."""
    if tensor.ByteSize() <= _SHOWN_BYTES:
        return " ".join(str(tensor).split())
    return hashlib.sha256(tensor.SerializeToString()).hexdigest()
