"""How terms of losses are weighed, so that the mean over copies of the model is what one device computes."""

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, List, Optional, Tuple

from epl.graph import tags
from epl.graph.index import format_input, node_of, parse_input
from epl.graph.types import FLOAT32
from epl.plan.facts.analysis import analyse, batch_placeholder
from epl.plan.facts.row_states import MEAN, RATIO, SUM
from epl.plan.facts.user_collectives import user_collectives
from epl.plan.input.short_batches import short_batches
from epl.plan.layout.layout import mesh_of
from epl.plan.layout.mesh import in_one_piece
from epl.plan.layout.stages import has_micro_batches, stages_of, used_taskgraphs
from epl.plan.sync.loss_terms import Loss, Term, plan_losses
from epl.program.program import LOSSES, MEANS
from epl.rules import effects


@dataclass(frozen=True)
class Weighed:
    """A loss whose terms are weighed.

    Attributes:
      number: of the loss.
      loss: the Loss.
      terms: those of its Terms that are.
      parts: how many parts of the batch there are.
      edges: (node, input position, Term) of where gradients come to these.
      is_reported: the loss is merged, too.
      fed: those of the terms that are means over the rows that each worker is fed, and count by these.
    """

    number: int
    loss: Loss
    terms: Tuple[Term, ...]
    parts: int
    edges: Tuple[Tuple[str, int, Term], ...]
    is_reported: bool
    fed: FrozenSet[Term] = frozenset()


@dataclass(frozen=True)
class LossWeights:
    """What is decided of a program's losses.

    Attributes:
      merges: collections of what is merged; a loss is merged as a mean.
      losses: all Losses; None where nothing is averaged.
      weighed: the Weighed among them.
    """

    merges: Dict[str, List[str]]
    losses: Optional[Tuple[Loss, ...]] = None
    weighed: Tuple[Weighed, ...] = ()


def plan_loss_weights(program, target):
    """The LossWeights of a program: weights where communication.gradients_reduce_method="auto" asks for them.

    Where nothing is averaged nothing is weighed; nor where the program has collectives of its own, by which it may have
    made sums of all copies already.
    """
    merges, reported = _merges(program)
    program, config = replace(program, merges=merges), target.config
    if program.role is not None or not (program.apply_calls or reported):
        return LossWeights(merges)
    used = used_taskgraphs(program)
    mesh = mesh_of(used, config, target.cluster, trains=bool(program.apply_calls))
    mesh = in_one_piece(mesh) if program.whole_batches else mesh
    micro_batches = config.pipeline.num_micro_batch if has_micro_batches(program, config) else 1
    apart = config.local_sgd.k_steps and mesh.num_replicas > 1
    # With local_sgd nothing is averaged but what a copy of the model has of its own micro-batches.
    copies = 1 if apart else mesh.num_merged()
    if copies * micro_batches == 1:
        return LossWeights(merges)
    losses = plan_losses(program, analyse(program), reported)
    weighs = config.communication.gradients_reduce_method == "auto" and not user_collectives(program.graph)
    # Of several micro-batches the first would wait for what all of them count, of stages one for what a later one does.
    adds_up = weighs and micro_batches == 1 and len(mesh.stages) == 1
    differ = _of_different_rows(program, losses) if weighs else frozenset()
    counted = {term for term in differ if adds_up and (term.rows or _is_number(program, term.by))}
    losses = tuple(
        replace(
            loss,
            is_weighed=adds_up and _counts_numbers(program, loss),
            uneven=tuple(term for term in loss.terms if term in differ - counted),
        )
        for loss in losses
    )
    if not weighs:
        return LossWeights(merges, losses)
    fed = _of_fed_rows(program, losses) - counted if _feeds_whole_copies(mesh, config) else frozenset()
    stage_of, found = stages_of(program, used) if len(mesh.stages) == len(used) else {}, []
    for number, loss in enumerate(losses):
        copies = 1 if apart else mesh.num_merged(stage_of.get(node_of(loss.tensor), 0))
        parts = copies * micro_batches
        terms = tuple(
            term
            for term in loss.terms
            if term.kind == SUM or term.kind == RATIO and loss.is_weighed or term in counted | fed
        )
        if terms and parts > 1:
            edges = tuple(_edges(program, loss, terms))
            found.append(Weighed(number, loss, terms, parts, edges, loss.tensor in reported, fed & set(terms)))
    return LossWeights(merges, losses, tuple(found))


def _counts_numbers(program, loss):
    """Whether what the quotients of a Loss are divided by are single float32 numbers."""
    return all(_is_number(program, term.by) for term in loss.terms if term.kind == RATIO and term.by)


def _is_number(program, tensor):
    spec = program.spec_of(tensor)
    return spec is not None and spec.shape == () and spec.dtype == FLOAT32


def _of_different_rows(program, losses):
    """The means over rows of which copies of the model may have different numbers, as their data sets say."""
    means = _means(losses)
    short = short_batches(program.graph) if means else frozenset()
    return frozenset(term for term in means if short and not short.isdisjoint(_behind(program.graph, term)))


def _of_fed_rows(program, losses):
    """The means over rows of a batch that each worker is fed, and of nothing that it reads."""
    graph, found = program.graph, set()
    for term in _means(losses):
        behind = _behind(graph, term)
        if not any(graph.nodes[name].op in effects.SOURCES for name in behind):
            found.update([term] if any(batch_placeholder(graph, name) for name in behind) else ())
    return frozenset(found)


def _means(losses):
    return [term for loss in losses for term in loss.terms if term.kind == MEAN and (term.rows or term.by)]


def _behind(graph, term):
    return graph.ancestors([node_of(term.tensor)], data_only=True)


def _feeds_whole_copies(mesh, config):
    """Whether there are several workers, each of which feeds as many copies of the model, of equal parts, as others."""
    whole = mesh.pipeline_workers == 1 and not (mesh.split and mesh.pipelines_of_copy > 1)
    return mesh.num_workers > 1 and whole and not mesh.weights and not config.local_sgd.k_steps


def _merges(program):
    """(collections of what is merged, canonical names of the losses among it)."""
    merges = dict(program.merges)
    reported = [format_input(*parse_input(tensor)) for tensor in merges.pop(LOSSES, ())]
    if reported:
        merges[MEANS] = list(dict.fromkeys(list(merges.get(MEANS, ())) + reported))
    return merges, reported


def _edges(program, loss, terms):
    """(node, input position, Term) of where gradients come to some Terms of a Loss."""
    graph, forward_op = program.graph, program.forward_op
    inside = graph.descendants(loss.seeds, data_only=True)
    backward = [n for n in graph.in_order(inside) if tags.phase(graph.nodes[n]) == tags.BACKWARD]
    triples = [(name, p, each) for name in backward for p, each in enumerate(graph.inputs[name]) if each.index >= 0]
    if loss.kinds == {SUM}:
        return [(name, position, terms[0]) for name, position, each in triples if each.node in loss.seeds]
    of_node = {node_of(term.tensor): term for term in terms}
    return [
        (name, position, of_node[forward_op(name)])
        for name, position, each in triples
        if forward_op(name) in of_node and each.node in inside and forward_op(each.node) != forward_op(name)
    ]
