"""How many rows a micro-batch has, where the graph leaves that open: by what a step was given, or by its data sets."""

from functools import reduce
from math import gcd

from epl.graph.index import node_of
from epl.rules import effects

_SHAPES = ("output_shapes", "shapes")
# Operations of data sets that make batches, to the input that says how many rows they have.
_BATCHES = {
    "BatchDataset": 1,
    "BatchDatasetV2": 1,
    "ParallelBatchDataset": 1,
    "PaddedBatchDataset": 1,
    "PaddedBatchDatasetV2": 1,
}
_UNBATCHES = frozenset(["UnbatchDataset", "ExperimentalUnbatchDataset"])


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


def data_set_rows(graph):
    """Rows of the batches that a graph's tf.data sets make, where these are constants: the most of all; else None.

    Args:
      graph: an epl.graph.index.Graph.
    """
    return max(_rows_of_data_sets(graph), default=None)


def common_rows(graph):
    """The largest number that divides the batches of all of a graph's tf.data sets, as far as these are constants; None
    where there are none."""
    return reduce(gcd, _rows_of_data_sets(graph), 0) or None


def _rows_of_data_sets(graph):
    starts = [graph.inputs[name][0].node for name in graph.find("MakeIterator".__eq__)]
    rows = _rows_below(graph.nodes, starts)
    factories = {graph.nodes[name].attr["dataset_factory"].func.name for name in graph.find("OneShotIterator".__eq__)}
    for function in graph.library.function if factories else ():
        if function.signature.name in factories:
            nodes = {node.name: node for node in function.node_def}
            rows += _rows_below(nodes, [node_of(text).split(":")[0] for text in function.ret.values()])
    return rows


def rows_of_data(graph):
    """Rows of a batch that a program takes by itself, as its graph or its data sets say; None where neither does.

    Args:
      graph: an epl.graph.index.Graph with one copy of the model.
    """
    shapes = [
        shape
        for name in graph.find(effects.SOURCES.__contains__)
        for key in _SHAPES
        if key in graph.nodes[name].attr
        for shape in graph.nodes[name].attr[key].list.shape
    ]
    known = [shape.dim[0].size for shape in shapes if not shape.unknown_rank and shape.dim and shape.dim[0].size > 0]
    return max(known) if known else data_set_rows(graph)


def _rows_below(nodes, names):
    """The constant sizes of the last batches made on the way to some nodes of a graph or of a function's body."""
    rows, seen, names = [], set(), list(names)
    while names:
        name = names.pop()
        node = nodes.get(name)
        if node is None or name in seen or node.op in _UNBATCHES:
            continue
        seen.add(name)
        inputs = [text.split(":")[0] for text in node.input if text[0] != "^"]
        if node.op not in _BATCHES:
            names.extend(inputs)
            continue
        size = nodes.get(inputs[_BATCHES[node.op]])
        if size is not None and size.op == "Const":
            value = size.attr["value"].tensor
            rows.extend(value.int64_val[:1])
    return rows
