"""What is kept of the forward pass for the backward pass, where recomputation is asked for.

Three ways to say it: the tensors of the collection "checkpoints", blocks marked with `epl.recompute()`, or cuts that
EPL chooses (`epl.plan.memory.segments`).
"""

import logging

from epl.errors import PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.plan.cost.cost import forward_costs
from epl.plan.facts.analysis import analyse
from epl.plan.facts.trip_counts import of_all_trips
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.plan.memory.forward import Forward
from epl.plan.memory.recompute import recomputation
from epl.plan.memory.segments import Chain, Span
from epl.plan.sync.batch_norm import statistics_of
from epl.rules import effects

_LOG = logging.getLogger("epl")
_MIB = 1 << 20


def is_asked_for(program, config):
    """Whether anything of a program is to be computed again, by the configuration or by marks in it."""
    return bool(program.computed) and (bool(config.gradient_checkpoint.type) or _has_marks(program.graph))


def _has_marks(graph):
    return any(tags.RECOMPUTE in node.attr for node in graph.nodes.values())


def plan_recompute(program, target):
    """The Recomputation of a program, or None; raises as `plan_recomputation`."""
    if not is_asked_for(program, target.config):
        return None
    analysis = analyse(program)
    return plan_recomputation(
        program,
        target.config,
        analysis,
        lambda: forward_costs(program.graph, analysis.cloned, program.spec_of, target.cluster.machine),
    )


def plan_recomputation(program, config, analysis, costs_of):
    """What a program computes again.

    Args:
      program: an epl.program.program.Program as the user built it, with the stages that it has.
      config: an epl.Config.
      analysis: its Analysis.
      costs_of: function that returns the Costs (epl.plan.cost.cost) of the forward pass; not called where nothing is
        asked for.

    Returns:
      A Recomputation; None where none is asked for, or nothing is trained.

    Raises:
      PlanError: no tensor is in the collection "checkpoints", or a limit cannot be held.
      UnsupportedError: the model takes gradients of gradients.
    """
    if not is_asked_for(program, config):
        return None
    wanted, graph = config.gradient_checkpoint, program.graph
    marked = _has_marks(graph)
    _check_first_gradients(program)
    forward = Forward(graph, analysis, program.stateful, _synchronised(graph, config))
    costs = of_all_trips(costs_of(), graph, forward.loops, program.spec_of)
    if wanted.type == "auto":
        kept = _chosen(program, forward, costs, wanted)
    elif wanted.type == "collection":
        kept = _collected(program, forward)
    else:
        kept = forward.roots()
    kept = kept.difference(inside_blocks(forward)) if marked else kept
    kept = kept.union(
        at_borders(forward, stages_of(program, used_taskgraphs(program))), small_masks(forward, costs.bytes_of)
    )
    calls = [
        [node_of(canonical_tensor(text)) for gradient, _ in call.gradients for text in gradient if text]
        for call in program.apply_calls
    ]
    plan = recomputation(forward, analysis, kept, calls, config.pipeline.num_micro_batch > 1)
    _tell_of_loops(forward.loops, plan)
    return plan


def _tell_of_loops(loops, plan):
    """Says in the log which loops keep what their gradients need, and why."""
    again = {name for group in plan.groups for name in group.inside}
    trained = [loop for loop in loops.all if loop.pushed]
    if trained:
        count = sum(not loop.nodes.isdisjoint(again) for loop in trained)
        _LOG.info("Recomputation: %d of %d loops are run again.", count, len(trained))
    for loop in trained:
        if loop.kept_because:
            _LOG.warning("Recomputation: the loop '%s' cannot be run again: %s.", loop.name, loop.kept_because)


def _check_first_gradients(program):
    graph = program.graph
    for name, node in graph.nodes.items():
        source = graph.nodes.get(program.forward_op(name)) if tags.phase(node) == tags.BACKWARD else None
        if source is not None and tags.phase(source) == tags.BACKWARD:
            raise UnsupportedError(
                "'%s' belongs to the gradient of '%s', which is itself part of a gradient. Recomputation does not go "
                'together with gradients of gradients: set gradient_checkpoint.type to "" and mark no block with '
                "epl.recompute()." % (name, source.name)
            )


def _synchronised(graph, config):
    """Statistics that batch normalisation takes over all replicas: a copy of one replica's would not be the same."""
    return statistics_of(graph) if config.communication.sync_batch_norm else frozenset()


def _collected(program, forward):
    if not program.checkpoints:
        raise PlanError(
            'gradient_checkpoint.type="collection" keeps the tensors of the graph collection "checkpoints", but there '
            'is none in it. Add some with tf.add_to_collection("checkpoints", tensor), or let EPL choose with '
            'gradient_checkpoint.type="auto".'
        )
    return {forward.root(canonical_tensor(tensor)) for tensor in program.checkpoints}


def _chosen(program, forward, costs, wanted):
    """The tensors that EPL keeps: stage by stage, as each has the memory of its own device."""
    used, nodes = used_taskgraphs(program), frozenset(forward.nodes)
    limit = wanted.memory_limit_mb * _MIB or None
    stage_of = stages_of(program, used)
    kept = set(forward.roots())
    gradients = _gradients(program, forward) if limit else {}
    for stage, taskgraph in enumerate(used or [None]):
        if taskgraph is not None and 0 <= wanted.end_taskgraph < taskgraph.index:
            continue
        among = {n for n in nodes if stage_of[n] == stage} if stage_of else nodes
        chosen, cuts, whole = cut_into_segments(forward, costs, limit, among, gradients)
        if cuts is None:
            continue
        kept = {t for t in kept if node_of(t) not in among} | chosen
        _LOG.info(
            "Recomputation%s: %d segments, %d of them computed again in the backward pass; activations%s of a "
            "micro-batch about %.1f MiB instead of %.1f MiB at the peak, by estimate.",
            " in stage %d" % stage if stage_of else "",
            len(cuts.segments),
            sum(segment.again for segment in cuts.segments),
            " and gradients" if limit else "",
            cuts.peak_bytes / _MIB,
            whole.peak_bytes / _MIB,
        )
    return kept


def _gradients(program, forward):
    """dict of tensors that are gradients of variables, as tf.gradients returned them, to the nodes of the forward pass
    whose gradients they are made of, by any way through the backward pass that meets no other such node."""
    graph, found = program.graph, {}
    texts = [text for gradient, _ in program.computed for text in gradient if text]
    for tensor in map(canonical_tensor, texts):
        stack, seen, sources = [node_of(tensor)], set(), set()
        while stack:
            name = stack.pop()
            source = program.forward_op(name) if name in forward.backward else None
            if source is not None:
                sources.add(source)
            elif name in forward.backward and name not in seen:
                seen.add(name)
                stack.extend(producer for producer, index in graph.inputs[name] if index >= 0)
        found[tensor] = sources
    return found


def small_masks(forward, bytes_of):
    """Tensors to keep instead of random numbers: what is made of these alone, where it is smaller (a dropout's mask).

    Args:
      forward: a Forward.
      bytes_of: function of a canonical tensor name to its bytes.
    """
    graph, known, found = forward.graph, frozenset(forward.nodes), set()
    for name in forward.nodes:
        if graph.nodes[name].op not in effects.RANDOM:
            continue
        best = tensor = name
        while True:
            takers = {c for c, _ in graph.consumers.get(node_of(tensor), ()) if c in known}
            follower = next(iter(takers)) if len(takers) == 1 else None
            if follower not in forward.repeatable or set(forward.inputs(follower)) != {tensor}:
                break
            tensor = follower
            if bytes_of(tensor) <= bytes_of(best):
                best = tensor
        if best != name:
            found.add(best)
    return found


def cut_into_segments(forward, costs, limit_bytes=None, among=None, gradients=()):
    """Chooses the tensors to keep, see `epl.plan.memory.segments`.

    Args:
      forward: a Forward.
      costs: Costs of the forward pass (epl.plan.cost.cost).
      limit_bytes: of activations and gradients of variables at the peak; None: the smallest peak of activations for
        which the step takes at most a third longer.
      among: names of nodes; of the others everything is kept. None: all.
      gradients: dict of tensors that are gradients of variables to the nodes of the forward pass that they belong to.

    Returns:
      (frozenset of canonical names of tensors to keep, the Segmentation, the Segmentation without cuts).

    Raises:
      PlanError: no cuts keep the limit; says what the smallest peak would be.
    """
    nodes = [n for n in forward.nodes if among is None or n in among]
    index_of = _positions(nodes, forward.loops)
    last, used = {}, {forward.root(tensor) for _, _, tensor in forward.uses}
    for name in nodes:
        for tensor in forward.inputs(name):
            root = forward.root(tensor)
            last[root] = max(last.get(root, 0), index_of[name])
    spans = {}
    for tensor in sorted(used.union(last)):
        first = index_of.get(node_of(tensor))
        if node_of(tensor) in forward.loops.carriers:
            continue  # an array's elements are kept, or computed again, by what made them
        if first is not None and node_of(tensor) in forward.repeatable:
            spans[tensor] = Span(first, max(first, last.get(tensor, first)), costs.bytes_of(tensor), tensor in used)
    if not spans:
        return frozenset(), None, None
    seconds = [0.0] * len(nodes)
    for name in nodes:
        if name in costs.operations and name in forward.repeatable:
            seconds[index_of[name]] += costs.operations[name].forward_s
    waiting = None
    if limit_bytes is not None:
        # Updates may be put off until the backward pass is through, or wait for other workers.
        waiting = [0] * len(nodes)
        for tensor, sources in dict(gradients).items():
            places = [index_of[name] for name in sources if name in index_of]
            if places:
                waiting[max(places)] += costs.bytes_of(tensor)
    chain = Chain(list(spans.values()), seconds, gradients=waiting)
    if limit_bytes is None:
        allowed = sum(cost.total_s for cost in costs.operations.values()) / 3
        cuts = chain.smallest_peak_within(allowed)
    else:
        cuts = chain.fastest(limit_bytes)
        if cuts is None:
            raise PlanError(
                "gradient_checkpoint.memory_limit_mb=%g cannot be kept: with the smallest peak that recomputation "
                "reaches, activations and gradients of one micro-batch need %.1f MiB (%.1f MiB without it). Use a "
                "larger limit, or smaller batches."
                % (
                    limit_bytes / _MIB,
                    chain.smallest_peak().peak_bytes / _MIB,
                    chain.everything_kept().peak_bytes / _MIB,
                )
            )
    kept = set()
    for segment in cuts.segments:
        for tensor, span in spans.items():
            crosses = span.first < segment.end <= span.last
            if crosses or (not segment.again and segment.begin <= span.first < segment.end):
                kept.add(tensor)
    return frozenset(kept), cuts, chain.everything_kept()


def _positions(nodes, loops):
    """Node to its place in the forward pass; no cut goes through what is computed again all together."""
    found = {name: i for i, name in enumerate(nodes)}
    for together in loops.together():
        places = [found[name] for name in together if name in found]
        found.update((name, max(places)) for name in together if name in found)
    return found


def at_borders(forward, stage_of):
    """Tensors that another stage of a pipeline takes: each stage computes only its own part again."""
    found = set()
    for name in forward.nodes if stage_of else ():
        for tensor in forward.inputs(name):
            if stage_of.get(node_of(tensor)) != stage_of.get(name):
                found.add(forward.root(tensor))
    for user, _, tensor in forward.uses if stage_of else ():
        if stage_of.get(node_of(tensor)) != stage_of.get(user):
            found.add(forward.root(tensor))
    return found


def inside_blocks(forward):
    """Tensors that only the block marked with `epl.recompute()` in which they are made uses in the forward pass."""
    graph = forward.graph
    block = {name: tags.get_int(graph.nodes[name], tags.RECOMPUTE, -1) for name in forward.nodes}
    made = {tensor for tensor in forward.roots() if block.get(node_of(tensor), -1) >= 0}
    outside = {
        forward.root(tensor)
        for name in forward.nodes
        for tensor in forward.inputs(name)
        if block[name] != block[node_of(forward.root(tensor))]
    }
    return made - outside
