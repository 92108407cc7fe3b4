"""Which summaries show a tensor."""

from epl.graph.index import parse_input
from epl.rules import effects


def shown_by(graph, tensor, how):
    """(node, input position) of the summaries that show a tensor, or an Identity of it, and can show it merged.

    Args:
      graph: a Graph.
      tensor: its name.
      how: "mean", "sum" or "concat".
    """
    found, stack = [], [parse_input(tensor)]
    while stack:
        producer = stack.pop()
        for consumer, position in graph.consumers.get(producer.node, ()):
            node = graph.nodes[consumer]
            if parse_input(node.input[position]) != producer:
                continue
            if node.op in effects.SUMMARIES | effects.SUMMARY_WRITES:
                if how != "concat" or node.op not in effects.SCALAR_SUMMARIES:
                    found.append((consumer, position))
            elif node.op == "Identity":
                stack.append(parse_input(consumer))
    return found
