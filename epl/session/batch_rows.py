"""How many rows a micro-batch has, where the graph leaves that open: by what a step was given."""

from epl.rules import effects

_SHAPES = ("output_shapes", "shapes")


def batch_rows(graph, shapes):
    """Rows of a micro-batch: the longest first dimension of data for which the graph leaves it open.

    Args:
      graph: the epl.graph.index.Graph of a worker.
      shapes: dict of a node to the shapes of what it gave, or of what was fed in its place: a list of tuples, or None
        where one is not known.

    Returns:
      The number; None where no such data is among the nodes.
    """
    rows = [
        shape[0]
        for name, known in shapes.items()
        if name in graph.nodes
        for shape, is_open in zip(known, open_rows(graph.nodes[name]))
        if is_open and shape
    ]
    return max(rows) if rows else None


def open_rows(node):
    """Whether the first dimension of each output of a node is open: a list, empty for what is no data."""
    shapes = []
    if node.op in effects.PLACEHOLDERS and "shape" in node.attr:
        shapes = [node.attr["shape"].shape]
    elif node.op in effects.SOURCES:
        shapes = [shape for key in _SHAPES if key in node.attr for shape in node.attr[key].list.shape]
    return [shape.unknown_rank or bool(shape.dim) and shape.dim[0].size < 0 for shape in shapes]
