"""Variables that hold the state of generators of random numbers (tf.random.experimental.Generator).

The copies of the model draw from copies of them. So that they draw different numbers, a copy's value is the first
one's, with its bits turned by a number that belongs to its rank; rank 0 has the value that checkpoints hold.
"""

from epl.graph.functions import Functions
from epl.graph.types import INT64
from epl.rules import effects

_DRAWN = effects.of_kind(effects.DRAWN)


def find_generators(model):
    """The names of these variables of a Program."""
    graph, functions = model.graph, Functions(model.graph.library)
    draws = set(graph.find(_DRAWN.__contains__))
    callers = functions.callers(graph.nodes.values())
    draws.update(n.name for n in callers if functions.calls(n, lambda body: body.op in _DRAWN, "draws"))
    if not draws:
        return frozenset()
    resources = [v.name for v in model.variables.values() if graph.nodes[v.name].op == "VarHandleOp"]
    states = [name for name in resources if model.variables[name].dtype == INT64]
    return frozenset(name for name in states if draws & set(_users(graph, name)))


def _users(graph, variable):
    """The operations that take a variable, also those in loops and branches."""
    found, stack = [], [variable]
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if graph.nodes[consumer].input[position][0] != "^":
                (stack if graph.nodes[consumer].op in effects.HANDS_ON else found).append(consumer)
    return found
