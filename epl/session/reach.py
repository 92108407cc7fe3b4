"""What a call of a session runs: reachability over the whole graph of a worker, or of its pipeline."""

from dataclasses import dataclass
from typing import Dict, FrozenSet, Tuple

from epl.graph.functions import CALLS
from epl.graph.index import node_of
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import clone_name, clone_tensor, micro_batch_name, micro_batch_tensor
from epl.rules import effects
from epl.session.added import begun_with


@dataclass(frozen=True)
class Reach:
    """What a call runs, in names of the rewritten graph.

    Attributes:
      fetches: tensors, in the order of the call.
      targets: operations; the call's own, and those which further copies must run along.
      nodes: all that runs so that these have run.
      fed: those nodes that are fed, so that what they take does not run for them.
      open_gates: tensors that are fed anything, so that the run does not wait for what it is not for.
      writes: those nodes that change variables, in whatever way.
      initial: those nodes that give variables first values, to the variables.
      given: the variables that the call itself, not what runs along, gives first values.
      losses: tensors from which the time of averages follows (local_sgd.adaptive).
      several_copies: whether instances beyond the first take part, or micro-batches beyond the first.
      several_rows: whether the call needs more rows of a batch than those of one micro-batch of one copy of the model.
    """

    fetches: Tuple[str, ...]
    targets: Tuple[str, ...]
    nodes: FrozenSet[str]
    fed: FrozenSet[str]
    open_gates: Tuple[str, ...]
    writes: FrozenSet[str]
    initial: Dict[str, str]
    given: FrozenSet[str]
    losses: Tuple[str, ...]
    several_copies: bool
    several_rows: bool


def reach_of(rewritten, fetches, targets, feeds):
    """The Reach of a call.

    Args:
      rewritten: the Rewritten.
      fetches, feeds: names of tensors.
      targets: names of operations.
    """
    plan, graph, micro_batches = rewritten.plan, rewritten.graph, rewritten.micro_batches
    fed = frozenset(node_of(name) for name in feeds)
    merged = tuple(rewritten.merged(name) for name in fetches)
    roots = [node_of(name) for name in merged] + list(targets)
    updates = rewritten.first_updates(roots, fed)
    roots += updates
    losses = _losses_behind(rewritten, graph.ancestors(roots, stop=fed)) if plan.local_sgd is not None else ()
    roots += [node_of(loss) for loss in losses]
    gates = rewritten.gates(roots, fed)
    fed = fed.union(gates)
    nodes = graph.ancestors(roots, stop=fed)
    # Whoever changes a moving average does it for all micro-batches.
    changes = [
        micro_batch_name(write, m)
        for write in graph.in_order(nodes & micro_batches.writes)
        for m in range(1, micro_batches.count)
    ]
    nodes |= graph.ancestors(changes, stop=fed)
    copies = graph.in_order(nodes & rewritten.in_all_copies)
    along = updates + changes + [clone_name(name, i.index) for name in copies for i in plan.instances_with(name)[1:]]
    # A message that is sent is received too.
    along += [rewritten.partners[name] for name in graph.in_order(nodes & set(rewritten.partners))]
    given = frozenset(_initial(plan, nodes, fed).values())
    along += begun_with(plan, given)
    nodes |= graph.ancestors(along, stop=fed)
    several_copies = _several_copies(rewritten, nodes)
    return Reach(
        fetches=merged,
        targets=tuple(targets) + tuple(along),
        nodes=nodes,
        fed=fed,
        open_gates=tuple(gate + ":0" for gate in gates),
        writes=nodes & rewritten.writes,
        initial=_initial(plan, nodes, fed),
        given=given,
        losses=losses,
        several_copies=several_copies,
        several_rows=several_copies if plan.mesh.is_even else _several_rows(rewritten, nodes),
    )


def is_simple(graph, nodes):
    """Whether that takes few operations, and no loops or functions that may have many."""
    hidden = effects.CONTROL_FLOW_OPENS | CALLS
    return len(nodes) <= _FEW and not any(graph.nodes[name].op in hidden for name in nodes)


_FEW = 1000  # operations; they take a millisecond at least


def _initial(plan, nodes, fed):
    """Those nodes that give variables first values, to the variables."""
    return {write: v for write, v in plan.analysis.initial_writes.items() if write in nodes and write not in fed}


def _losses_behind(rewritten, nodes):
    """The losses of which gradients are among `nodes`, whether or not the program fetches them.

    Those of all copies of the model here, where the call changes what these average, and of all their micro-batches: of
    each loss as many.
    """
    plan, micro_batches = rewritten.plan, rewritten.micro_batches
    found = sorted({loss for loss, seed in plan.local_sgd.losses if seed in nodes})
    changed = {variable_of(rewritten.graph, write) for write in nodes & rewritten.writes}
    copies = [i.index for i in plan.mesh.instances] if changed & plan.averaged else [0]
    copied = plan.analysis.cloned
    numbers = range(micro_batches.count)
    return tuple(
        clone_tensor(
            micro_batch_tensor(loss, m if node_of(loss) in micro_batches.nodes else 0),
            i if node_of(loss) in copied else 0,
        )
        for i in copies
        for m in numbers
        for loss in found
    )


def _several_copies(rewritten, nodes):
    plan = rewritten.plan
    copied = plan.analysis.cloned & nodes
    return any(clone_name(name, i.index) in nodes for i in plan.mesh.instances[1:] for name in copied) or any(
        micro_batch_name(name, 1) in nodes for name in rewritten.micro_batches.nodes
    )


def _several_rows(rewritten, nodes):
    """Whether the call needs more than one micro-batch of the first replica."""
    plan = rewritten.plan
    first = plan.mesh.instances[0].data
    others = [i.index for i in plan.mesh.instances if i.data != first]
    return any(micro_batch_name(name, 1) in nodes for name in rewritten.micro_batches.nodes) or any(
        clone_name(name, other) in nodes for other in others for name in plan.analysis.cloned & nodes
    )
