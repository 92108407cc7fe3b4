"""Where the gradient of a lookup becomes rows of a table with their ids."""

from epl.graph.index import NodeInput as Tensor


def lists_of_rows(facts, lookup):
    """Yields (node that gives rows, node that gives their ids), both Reshapes, for the gradients of a lookup.

    Args:
      facts: epl.partition.facts.Facts.
      lookup: the name of an operation in tensors.LOOKUPS.
    """
    graph, ids = facts.graph, facts.inputs(lookup)[1]
    for lists in graph.edges.data_consumers.get(ids.node, ()):
        node = graph.nodes[lists]
        if node.op != "Reshape" or facts.inputs(lists)[0] != ids or len(facts.shape(Tensor(lists, 0)) or ()) != 1:
            continue
        size = facts.inputs(lists)[1]
        for shape in graph.edges.data_consumers.get(size.node, ()):
            if graph.nodes[shape].op != "ConcatV2" or facts.inputs(shape)[0] != size:
                continue
            for values in graph.edges.data_consumers.get(shape, ()):
                if graph.nodes[values].op == "Reshape" and facts.inputs(values)[1].node == shape:
                    yield values, lists
