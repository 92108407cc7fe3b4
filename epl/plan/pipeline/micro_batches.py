"""What is done once for each micro-batch of a training step, what only once, and in which order.

A step of `pipeline.num_micro_batch` = M micro-batches computes gradients M times, adds them up and applies them once.
So everything that gradients, changes of state (moving averages) and merged outputs are computed from has a copy for
each micro-batch, but for what cannot differ between them: variables, their values at the start of the step, constants.
"""

import collections
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Optional, Tuple

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.functions import Functions
from epl.graph.index import node_of
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.consistency import differing, merged_edges
from epl.plan.facts.merge_points import merged_outputs
from epl.plan.facts.names import PREFIX
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.plan.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, Action, schedule
from epl.plan.sync.state import changing_writes
from epl.rules import effects


@dataclass(frozen=True)
class Accumulated:
    """A gradient that is added up over the micro-batches; a sparse one is put end to end.

    Attributes:
      name: prefix of the nodes that do it.
      values, indices: canonical tensor names; no indices for a dense one.
      consumers: for each of these tensors the (node, input position) pairs that must see the result.
    """

    name: str
    values: str
    indices: Optional[str]
    consumers: Tuple[Tuple[Tuple[str, int], ...], ...]


@dataclass(frozen=True)
class Root:
    """Something that a session may run: a call of apply_gradients, or changes of state that no such call needs.

    Attributes:
      name: for the names of nodes.
      nodes: the micro-batches' nodes that it needs.
      gradients: names of the Accumulated that it ends in; empty for changes of state.
      writes: the changes of state, for those.
    """

    name: str
    nodes: FrozenSet[str]
    gradients: Tuple[str, ...]
    writes: Tuple[str, ...]


@dataclass(frozen=True)
class MicroBatches:
    """How a training step is divided into micro-batches.

    Attributes:
      count: micro-batches of one step.
      mean: gradients are averaged (True) or summed over them.
      nodes: those of which each micro-batch has a copy.
      once: the others that training runs.
      writes: changes of state, in creation order; each micro-batch makes its own, in their order.
      reads: reads of state that must see the change which the micro-batch before made: node to variables.
      gradients: those that are accumulated, in the order in which they become ready.
      roots: what a session may run of it.
      action_of: node to (kind, stage): which action of the schedule computes it. Nodes that wait for an update in the
        same step (of a second optimizer, say) are in none: they run when the update has.
      not_awaited: node to control inputs that it does without, as they would make a gradient of a stage's inputs wait
        for those of its weights.
      in_control_flow: nodes inside a loop or a branch of control flow v1.
      taskgraphs: for each stage, the index of its TaskGraph.
      order: for each device of a model replica its actions in order.
    """

    count: int
    mean: bool
    nodes: FrozenSet[str]
    once: FrozenSet[str]
    writes: Tuple[str, ...]
    reads: Dict[str, Tuple[str, ...]]
    gradients: Tuple[Accumulated, ...]
    roots: Tuple[Root, ...]
    action_of: Dict[str, Tuple[str, int]]
    not_awaited: Dict[str, FrozenSet[str]]
    in_control_flow: FrozenSet[str]
    taskgraphs: Tuple[int, ...]
    order: List[List[Action]]


def of_micro_batches(found, micro_batches):
    """StateGroups, or what batch normalisation synchronises, with those of the copies that further micro-batches have.

    Args:
      found: a tuple of them.
      micro_batches: the MicroBatches; None where a step has one.
    """
    numbers = range(1, micro_batches.count if micro_batches is not None else 1)
    further = [each.for_micro_batch(micro_batches.nodes, number) for number in numbers for each in found]
    return found + tuple(each for each in further if each is not None)


def plan_micro_batches(model, config, analysis, aggregation, losses=()):
    """The MicroBatches of a program that has some.

    Args:
      model: an epl.program.program.Program, with one copy of the model.
      config: an epl.Config.
      analysis: its Analysis.
      aggregation: its Aggregation; how gradients are grouped does not matter here.
      losses: nodes of which each micro-batch computes its own besides.

    Raises:
      UnsupportedError: the model cannot be divided; says where and why.
    """
    graph = model.graph
    writes = tuple(changing_writes(model, analysis, aggregation))
    gradients = _accumulated(graph, aggregation)
    merged = merged_outputs(model)
    ends = [node_of(t) for g in gradients for t in (g.values, g.indices) if t]
    ends += list(writes) + merged + list(losses)
    inside = graph.ancestors(ends, stop=graph.nodes.keys() - analysis.cloned) & analysis.cloned
    state = _State(graph, writes)
    accumulated = merged_edges(aggregation, ())
    nodes = frozenset(inside - _the_same(graph, analysis, inside, state, accumulated))
    _check(graph, nodes)
    _check_by_hand(graph, nodes, accumulated)
    updates = [n for n in inside if effects.is_write(graph.nodes[n].op) and tags.phase(graph.nodes[n]) == tags.APPLY]
    after_update = graph.descendants(updates) if updates else ()
    used = used_taskgraphs(model)
    pipeline = config.pipeline
    order = schedule(
        pipeline.strategy,
        max(1, len(used)) // pipeline.num_chunks,
        pipeline.num_micro_batch,
        pipeline.num_chunks,
    )
    action_of, not_awaited = _actions_of(graph, nodes.difference(after_update), stages_of(model, used)), {}
    if any(action.kind == WEIGHT for actions in order for action in actions):
        action_of = _with_weights(graph, action_of, analysis.in_control_flow)
        not_awaited = _not_awaited(graph, action_of)
    return MicroBatches(
        count=pipeline.num_micro_batch,
        mean=config.communication.gradients_reduce_method != "sum",
        nodes=nodes,
        once=analysis.cloned - nodes,
        writes=tuple(w for w in writes if w in nodes),
        reads={name: variables for name, variables in state.reads.items() if name in nodes},
        gradients=tuple(gradients),
        roots=tuple(_roots(model, graph, gradients, writes, nodes)),
        action_of=action_of,
        not_awaited=not_awaited,
        in_control_flow=analysis.in_control_flow,
        taskgraphs=tuple(t.index for t in used) or (0,),
        order=order,
    )


def _accumulated(graph, aggregation):
    """Dense and sparse gradients by the place of the node that makes them."""
    found = []
    for group in aggregation.groups:
        found.extend((tensor, None) for tensor in group.tensors)
    found.extend((sparse.values, sparse.indices) for sparse in aggregation.sparse)
    found.sort(key=lambda pair: (graph.creation_index[node_of(pair[0])], pair[0]))
    return [
        Accumulated(
            "%s_accumulate/gradient_%d" % (PREFIX, index),
            values,
            indices,
            tuple(aggregation.consumers[t] for t in (values, indices) if t),
        )
        for index, (values, indices) in enumerate(found)
    ]


def _check(graph, nodes):
    for name in graph.in_order(nodes):
        node = graph.nodes[name]
        if tags.phase(node) == tags.APPLY and effects.is_write(node.op):
            raise UnsupportedError(
                "the update '%s' is needed by gradients or merged outputs of every micro-batch, but depends on more "
                "than sums of gradients over all of them. Run the two parts in two calls of session.run, or leave "
                "pipeline.num_micro_batch at 1." % name
            )
        if node.op in effects.COLLECTIVES:
            raise composes.refused(composes.COLLECTIVES, composes.MICRO_BATCHES, node=name)
        if node.op in effects.STAGED:
            raise UnsupportedError(
                "'%s' takes a batch from a staging area, which the program fills once a step, but with "
                "pipeline.num_micro_batch > 1 a step takes several. Take the batches from the iterator or queue "
                "directly (tf.data's prefetch does what a staging area does)." % name
            )


def _check_by_hand(graph, nodes, accumulated):
    for name, position in sorted(accumulated):
        if name in nodes:
            raise UnsupportedError(
                "'%s' takes the gradient '%s' on its way to a variable that what differs between micro-batches changes "
                "too, so that it would have to be computed for each of them. Change variables by gradients "
                "and by data in operations of their own, or leave pipeline.num_micro_batch at 1."
                % (name, graph.nodes[name].input[position])
            )


class _State(object):
    """What comes before the changes that micro-batches make of variables.

    Attributes:
      writes: these changes.
      before: the nodes that any of these changes needs.
      reads: those of them that read such a variable, and which.
    """

    def __init__(self, graph, writes):
        self.writes = frozenset(writes)
        variables = {variable_of(graph, write) for write in writes}
        values = [node_of(t) for w in writes for t in graph.nodes[w].input[1:] if t[0] != "^"]
        self.before = graph.ancestors(values, stop=variables, data_only=True)
        self.reads = {}
        for variable in graph.in_order(variables):
            for consumer, position in graph.consumers.get(variable, ()):
                if consumer in self.before and graph.nodes[consumer].input[position][0] != "^":
                    self.reads[consumer] = self.reads.get(consumer, ()) + (variable,)


# They belong to one run of what fills and empties them.
_RUN_STATE = ("Stack", "TensorArray", "TemporaryVariable")


def _the_same(graph, analysis, inside, state, accumulated):
    """Nodes that give every micro-batch the same, and need to run only once. `accumulated` are the (node, input
    position) pairs that see sums over micro-batches."""
    functions = Functions(graph.library)
    differ = differing(graph, analysis.varying, accumulated)
    same = set()
    for name in graph.in_order(inside):
        node = graph.nodes[name]
        if name in differ or name in analysis.in_control_flow or name in state.reads:
            continue
        if node.op.startswith(_RUN_STATE) or functions.calls(node, lambda n: effects.is_write(n.op), "writes"):
            continue
        if effects.is_write(node.op) and (name in state.before or name in state.writes):
            continue  # the change of a counter that a moving average is corrected by, say; or of one that counts rows
        if all(
            node_of(text) in same or node_of(text) not in inside or (name, position) in accumulated
            for position, text in enumerate(node.input)
        ):
            same.add(name)
    return same


def _roots(model, graph, gradients, writes, nodes):
    by_tensor = {gradient.values: gradient for gradient in gradients}
    found, covered = [], set()
    for call in model.apply_calls:
        needed = graph.ancestors([node_of(g.values) for g, _ in call.gradients])
        own = [t for t, g in by_tensor.items() if node_of(t) in needed or _used_by(graph, g, call)]
        if not own:
            continue
        ends = [node_of(t) for name in own for t in (by_tensor[name].values, by_tensor[name].indices) if t]
        needed = frozenset(graph.ancestors(ends) & nodes)
        covered |= needed
        found.append(Root("call_%d" % call.index, needed, tuple(by_tensor[t].name for t in own), ()))
    together = collections.OrderedDict()
    for write in writes:
        if write in nodes and write not in covered:
            waiting = tuple(sorted({c for c, _ in graph.consumers.get(write, ())})) or (write,)
            together.setdefault(waiting, []).append(write)
    for index, members in enumerate(together.values()):
        needed = frozenset(graph.ancestors(members) & nodes)
        found.append(Root("state_%d" % index, needed, (), tuple(members)))
    return found


def _used_by(graph, gradient, call):
    return any(
        tags.get_int(graph.nodes[name], tags.APPLY_CALL, -1) == call.index
        for edges in gradient.consumers
        for name, _ in edges
    )


def _actions_of(graph, nodes, stage_of):
    """Which action of the schedule computes each node. One forward needs none of a later stage, one backward none of
    an earlier one, so what a tag says gives way to that."""
    action_of = {}
    for name in graph.in_order(nodes):
        node = graph.nodes[name]
        known = [action_of[node_of(text)] for text in node.input if node_of(text) in action_of]
        own = stage_of.get(name, 0)
        behind = [stage for kind, stage in known if kind == BACKWARD]
        if behind or tags.phase(node) == tags.BACKWARD:
            action_of[name] = (BACKWARD, min([own] + behind))
        else:
            action_of[name] = (FORWARD, max([own] + [stage for _, stage in known]))
    return action_of


def _with_weights(graph, action_of, in_control_flow):
    """The same with what earlier stages do not need of a backward part (gradients of weights) in a part of its own.

    Loops and branches stay in one piece.
    """
    handed_on = [
        name
        for name, action in action_of.items()
        if action[0] == BACKWARD
        and (
            name in in_control_flow
            or any(_at_another_stage(action_of, action, c) for c, _ in graph.consumers.get(name, ()))
        )
    ]
    early = graph.ancestors(
        handed_on, stop=frozenset(n for n in action_of if action_of[n][0] == FORWARD), data_only=True
    )
    return {
        name: (WEIGHT, stage) if kind == BACKWARD and name not in early else (kind, stage)
        for name, (kind, stage) in action_of.items()
    }


def _at_another_stage(action_of, action, consumer):
    other = action_of.get(consumer)
    return other is not None and other[0] == BACKWARD and other != action


def _not_awaited(graph, action_of):
    """tf.gradients makes what is handed on wait until all gradients of an operation are there; only memory asks for
    that."""
    found = {}
    for name, (kind, _) in action_of.items():
        if kind == BACKWARD:
            waits = [text for text in graph.nodes[name].input if text[0] == "^"]
            dropped = frozenset(text for text in waits if action_of.get(text[1:], (None,))[0] == WEIGHT)
            if dropped:
                found[name] = dropped
    return found
