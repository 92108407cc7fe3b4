"""How often loops go round, as far as the graph tells it, and what they cost over all trips."""

from dataclasses import replace

from epl.graph.index import node_of
from epl.partition.facts import Facts
from epl.rules import effects

# What counts for a loop whose end the graph does not know.
_UNKNOWN = 32
_COMPARES = frozenset(["Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual"])


def of_all_trips(costs, graph, loops, spec_of):
    """Costs (epl.plan.cost.cost), in which the operations and tensors of loops count as often as the loops go round.

    Args:
      costs: those of one round.
      graph: the Graph.
      loops: the Loops of it.
      spec_of: function of a canonical tensor name to its TensorSpec, or None.
    """
    if not loops.all:
        return costs
    facts = Facts(graph, spec_of)
    trips = {loop.frame: trip_count_of(graph, loop, facts) for loop in loops.all}
    times = {name: trips[loop.frame] for name, loop in loops.of.items() if graph.nodes[name].op != "Exit"}
    operations = dict(costs.operations)
    for name in times.keys() & operations.keys():
        each, count = operations[name], times[name]
        operations[name] = replace(
            each,
            forward_s=each.forward_s * count,
            backward_s=each.backward_s * count,
            weight_s=each.weight_s * count,
        )

    def bytes_of(tensor):
        return costs.bytes_of(tensor) * times.get(node_of(tensor), 1)

    return replace(costs, operations=operations, bytes_of=bytes_of)


def trip_count_of(graph, loop, facts):
    """How often a loop goes round: the smallest number with which its condition compares something, or else 32.

    Loops within it count as often as it does.
    """
    conditions = [name for name in loop.nodes if graph.nodes[name].op == "LoopCond"]
    compared = [n for n in graph.ancestors(conditions, data_only=True) & loop.nodes if graph.nodes[n].op in _COMPARES]
    found = []
    for name in compared:
        for tensor in facts.inputs(name):
            while graph.nodes[tensor.node].op in effects.ENTERED:
                tensor = facts.inputs(tensor.node)[0]
            value = facts.value(tensor)
            if value is not None and value.ndim == 0 and value[()] is not None and value[()] > 1:
                found.append(int(value[()]))
    return min(found) if found else _UNKNOWN
