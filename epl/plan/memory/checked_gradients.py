"""Which gradients are computed a second time, from what the forward pass has kept (`check_gradients`)."""

from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

from epl.errors import ConfigError
from epl.graph import tags
from epl.graph.control_flow import frames_of
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.plan.facts.analysis import analyse
from epl.plan.facts.names import PREFIX
from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.program.program import CheckedGradient
from epl.rules import effects


@dataclass(frozen=True)
class UpdateWait:
    """What updates of a stage wait for.

    Attributes:
      name: of the node.
      after: the nodes that have run when it has.
      taskgraph: number of its TaskGraph, or None.
      writes: what waits for it.
    """

    name: str
    after: Tuple[str, ...]
    taskgraph: Optional[int]
    writes: Tuple[str, ...]


@dataclass(frozen=True)
class GradientChecks:
    """What is computed a second time.

    Attributes:
      copies: (node, inputs of its copy) of each, in order.
      waits: the UpdateWaits.
      checked: the CheckedGradients, in the order in which they become ready.
      rows: those of their tensors that are rows of sparse gradients.
    """

    copies: Tuple[Tuple[str, Tuple[str, ...]], ...]
    waits: Tuple[UpdateWait, ...]
    checked: Tuple[CheckedGradient, ...]
    rows: FrozenSet[str]


def checked_name(text):
    """The copy of a node, or of a tensor."""
    return "%s_check/%s" % (PREFIX, text)


def plan_checks(program, target):
    """The GradientChecks of a program: copies of the backward pass that take nothing that is computed again. None
    without gradient_checkpoint.check_gradients.

    Each stage of a pipeline takes from others the gradients that these have.

    Raises:
      ConfigError: nothing is computed again, nor was anything to be.
    """
    if not target.config.gradient_checkpoint.check_gradients or not program.computed:
        return None
    graph, again = program.graph, program.again
    if not again and not target.config.gradient_checkpoint.type:
        raise ConfigError(
            "gradient_checkpoint.check_gradients=True has nothing to compare: no operation is computed again. Set "
            'gradient_checkpoint.type to "auto" or "collection", or mark what is to be computed again with '
            "epl.recompute()."
        )
    used = used_taskgraphs(program)
    stage_of = stages_of(program, used)
    gradients = {
        canonical_tensor(text): variable
        for gradient, variable in program.computed
        if variable in program.variables
        for text in gradient
        if text
    }
    rows = {canonical_tensor(gradient.values) for gradient, _ in program.computed if gradient.indices}
    analysis = analyse(program)
    inside = _changed_by(graph, again, map(node_of, gradients), frames_of(graph), program.stateful)
    copies = []
    for name in graph.in_order(inside):
        inputs = []
        for text in graph.nodes[name].input:
            producer, index = parse_input(text)
            if producer in again:
                text = format_input(again[producer], index)
            elif producer in inside and stage_of.get(producer) == stage_of.get(name):
                text = format_input(checked_name(producer), index)
            inputs.append(text)
        copies.append((name, tuple(inputs)))
    order = sorted(gradients, key=lambda tensor: (graph.creation_index[node_of(tensor)], tensor))
    checked = [CheckedGradient(gradients[t], t, checked_name(t)) for t in order if node_of(t) in inside]
    if is_split(used):
        checked = [each._replace(whole=tuple(map(_whole_name, (each.tensor, each.without)))) for each in checked]
    calls = program.apply_calls
    waits = [each for call in calls for each in _waits(graph, call, analysis, inside, stage_of, checked)]
    return GradientChecks(tuple(copies), tuple(waits), tuple(checked), frozenset(rows))


def _whole_name(tensor):
    return "%s_whole/%s" % (PREFIX, tensor.replace(":", "_output_"))


def _waits(graph, call, analysis, inside, stage_of, checked):
    """Lets the updates of a call of an optimizer wait for the copies of what its gradients are made of, by stage; and
    for what is compared, where devices put it together for that."""
    made = [node_of(canonical_tensor(text)) for gradient, _ in call.gradients for text in gradient if text]
    needed, writes = graph.ancestors(made) & inside, {}
    whole = [(name, node_of(each.tensor)) for each in checked for name in each.whole if node_of(each.tensor) in needed]
    last = [n for n in graph.in_order(needed) if not any(c in needed for c, _ in graph.consumers.get(n, ()))]
    for write in analysis.writes:
        node = graph.nodes[write]
        ours = tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call.index
        if ours and write not in analysis.in_control_flow:
            writes.setdefault(stage_of.get(write, 0), []).append(write)
    for stage, waiting in writes.items():
        before = [each for each in last if stage_of.get(each, 0) == stage]
        if before:
            taskgraphs = [
                graph.nodes[each].attr[tags.TASKGRAPH].i for each in before if tags.TASKGRAPH in graph.nodes[each].attr
            ]
            name = "%s_check/call_%d/stage_%d" % (PREFIX, call.index, stage)
            after = [checked_name(each) for each in before]
            after += [each for each, node in whole if stage_of.get(node, 0) == stage]
            yield UpdateWait(name, tuple(after), (taskgraphs or [None])[-1], tuple(waiting))


def _changed_by(graph, again, gradients, in_loops, stateful):
    """The nodes of the backward pass that lie between what is computed again and gradients, and may be copied.

    What stands in a loop is not: it empties stacks that another one would find empty.
    """
    users = {c for name in again for c in graph.edges.data_consumers.get(name, ()) if c not in again}
    between = graph.descendants(users, data_only=True) & graph.ancestors(gradients, data_only=True)
    return frozenset(
        name
        for name in between - again.keys()
        if tags.phase(graph.nodes[name]) == tags.BACKWARD
        and name not in in_loops
        and effects.kind_of(graph.nodes[name].op) is None
        and graph.nodes[name].op not in stateful
    )
