"""Gradients that change variables without `apply_gradients`: optimizers written by hand, accumulators of gradients.

What a program makes of a gradient on the way to a variable has to be made of the gradient of the whole batch: its
square, say, would be another one for each copy's part. So each tf.gradients whose results end in assignments counts as
one more call of an optimizer, whose gradients are aggregated where tf.gradients returned them.
"""

import collections

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, parse_input
from epl.plan.facts.analysis import changes_variable, initial_writes, variable_of
from epl.program.program import ApplyCall
from epl.rules import effects

BY_HAND = "assignments"
# The classes of epl.optimizers that take the place of others.
_REPLACED = frozenset(["LambOptimizer", "LarsOptimizer"])


def updates_by_hand(model):
    """An ApplyCall for each tf.gradients of variables from which assignments to variables follow.

    Args:
      model: an epl.program.program.Program, as the user built it, with the calls of apply_gradients alone.

    Returns:
      A tuple of ApplyCalls; their `between` says which nodes are to see the aggregates.
    """
    graph = model.graph
    boundaries = _boundaries(model)
    starts = {n for tensor in boundaries for n in _consumers(graph, tensor) if _is_users(graph, n)}
    loss = _before_gradients(graph) if starts else frozenset()
    starts -= loss
    if not starts:
        return ()
    others = loss.union(n for n in graph.nodes if not _is_users(graph, n))
    flow = graph.descendants(starts, stop=others, data_only=True) - others
    writes = _writes(model, flow)
    between = graph.ancestors(writes, stop=graph.nodes.keys() - flow, data_only=True) & flow
    calls = collections.OrderedDict()
    for tensor, (gradient, variable, call) in boundaries.items():
        if between.intersection(_consumers(graph, tensor)) and (gradient, variable) not in calls.setdefault(call, []):
            calls[call].append((gradient, variable))
    first = len(model.apply_calls)
    gradients = [tuple(pairs) for pairs in calls.values() if pairs]
    return tuple(ApplyCall(first + i, BY_HAND, pairs, frozenset(between)) for i, pairs in enumerate(gradients))


def check_repeated(model, execution):
    """A call of a session repeats what optimizers do; what else the program does beside gradients may be meant once.

    Args:
      model: an epl.program.program.Program.
      execution: the configuration's `execution` part.

    Raises:
      UnsupportedError: the program assigns to variables what it makes of gradients itself.
    """
    by_hand = [call for call in model.apply_calls if call.optimizer == BY_HAND]
    if by_hand and execution.steps_per_run > 1:
        facts = {"steps": execution.steps_per_run, "variable": by_hand[0].gradients[0][1]}
        raise composes.refused(composes.BY_HAND, composes.STEPS, **facts)


def check_replaced(model, options):
    """Where the configuration replaces optimizers, the program must have ones that can be.

    Args:
      model: an epl.program.program.Program.
      options: the configuration's `optimizer` part.

    Raises:
      UnsupportedError: none of the program's optimizers can be replaced.
    """
    names = {call.optimizer for call in model.apply_calls}
    if not names or not (options.lamb or options.lars) or names & _REPLACED:
        return
    by_hand = [call for call in model.apply_calls if call.optimizer == BY_HAND]
    if by_hand:
        replaced = composes.LAMB if options.lamb else composes.LARS
        raise composes.refused(composes.BY_HAND, replaced, variable=by_hand[0].gradients[0][1])
    raise UnsupportedError(
        "optimizer.lamb and optimizer.lars replace tf.train.AdamOptimizer and tf.train.MomentumOptimizer, "
        "but the program trains with %s. Only these very classes are replaced, not ones derived from them, optimizers "
        "around them or Keras' optimizers. Use one of these, or set the key to False." % ", ".join(sorted(names))
    )


def _boundaries(model):
    """dict of what tf.gradients returned for variables, values and indices, to (Gradient, variable, its call)."""
    found = collections.OrderedDict()
    for (gradient, variable), call in zip(model.computed, model.gradient_calls):
        if variable in model.variables:
            for tensor in gradient:
                if tensor is not None:
                    found[canonical_tensor(tensor)] = (gradient, variable, call)
    return found


def _before_gradients(graph):
    """What any gradient is computed from: an aggregate there would change the gradient itself."""
    backward = [name for name, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD]
    return graph.ancestors(backward, data_only=True)


def _is_users(graph, name):
    return tags.phase(graph.nodes[name]) == tags.FORWARD


def _consumers(graph, tensor):
    producer, inputs = parse_input(tensor), graph.inputs
    return [n for n, position in graph.consumers.get(producer.node, ()) if inputs[n][position] == producer]


def _writes(model, flow):
    """Those of some nodes that change variables, but for first values."""
    graph, functions = model.graph, Functions(model.graph.library)
    initial = initial_writes(model)
    found = [n for n in flow if effects.is_write(graph.nodes[n].op) and variable_of(graph, n) is not None]
    callers = functions.callers([graph.nodes[n] for n in flow])
    found += [node.name for node in callers if changes_variable(node, graph, functions)]
    return [name for name in graph.in_order(found) if name not in initial]
