r"""What lies between products and is computed whole by every shard is computed in parts where that costs less.

    product -> all_reduce -> add -> normalise -> product      becomes
    product -> reduce_scatter -> [part of] add -> normalise -> all_gather -> product

Both ways send the same bytes, but in the second each shard computes, and keeps for the backward pass, its part of the
rows alone (sequence parallelism; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
2022). Which operations do so is a minimum cut: on the source's side lies what is computed in parts.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import NodeInput as Tensor
from epl.partition.conversion import conversion_cost
from epl.partition.min_cut import Network
from epl.partition.rule import strategies
from epl.program.placement import SUM, WHOLE, WHOLE_SHAPE, partial, sharded
from epl.rules import effects, tensors

_SOURCE, _SINK = "source", "sink"
_ROWS, _PARTIAL = sharded(0), partial(SUM)
# Where a tensor that lies by rows, or as a sum, is wanted so, nothing is sent.
_AS_IT_IS = (None, WHOLE_SHAPE, _PARTIAL, _ROWS)
# They hand on what they take, and compute nothing.


def between(facts, choices, shards, inside):
    """The Choices with what is computed in parts of the rows; see above.

    Args:
      facts: Facts of the graph.
      choices: the Choices; stay as they are.
      shards: how many parts.
      inside: names of the nodes in loops and branches, where shards exchange nothing.
    """
    candidates = _candidates(facts, choices, shards, inside)
    chosen = _on_rows(facts, choices, shards, candidates) if candidates else ()
    if not chosen:
        return choices
    found = replace(choices, strategy=dict(choices.strategy), placements=dict(choices.placements))
    for name in chosen:
        found.strategy[name] = candidates[name]
        for index, placement in enumerate(candidates[name].outputs):
            found.placements[Tensor(name, index)] = placement
    _put_off(facts, found, shards, chosen)
    return found


def _put_off(facts, choices, shards, chosen):
    """Lets linear operations take sums over rows as they are, so that only what needs a sum makes it up."""
    fresh = {Tensor(name, i) for name in chosen for i, p in enumerate(choices.strategy[name].outputs) if p == _PARTIAL}
    for name in choices.order if fresh else ():
        inputs, rule = facts.inputs(name), choices.rule.get(name)
        if rule is None or name in choices.fixed or fresh.isdisjoint(inputs):
            continue
        if choices.strategy[name] != strategies(rule, shards)[0]:
            continue
        outputs = [Tensor(name, i) for i in range(len(rule.outputs))]
        if sum(map(facts.num_bytes, outputs)) > sum(map(facts.num_bytes, fresh.intersection(inputs))):
            continue
        for each in strategies(rule, shards):
            sums = {t for t, want in zip(inputs, each.inputs) if want == _PARTIAL}
            if sums and sums == fresh.intersection(inputs) and all(p == _PARTIAL for p in each.outputs):
                choices.strategy[name] = each
                choices.placements.update((tensor, _PARTIAL) for tensor in outputs)
                fresh.update(outputs)
                break


def _candidates(facts, choices, shards, inside):
    """dict of nodes that follow from sums which are made whole for them, and that could take rows, to how."""
    found = {}
    for name in choices.order:
        node = facts.graph.nodes[name]
        if name in inside or name in choices.fixed or tags.phase(node) == tags.APPLY:
            continue
        if effects.kind_of(node.op) not in (None, effects.PURE):
            continue
        inputs = facts.inputs(name)
        if any(t.node in found or choices.of(t) == _PARTIAL for t in inputs):
            strategy = _by_rows(facts, choices, shards, name, inputs)
            if strategy is not None:
                found[name] = strategy
    return found


def _by_rows(facts, choices, shards, name, inputs):
    """The Strategy by which a node that is computed whole would take rows, and give rows or sums over them, or None."""
    rule, current = choices.rule.get(name), choices.strategy[name]
    if rule is None or current.routed or rule.notation.product:
        return None
    if any(placement != WHOLE for placement in current.outputs) or any(facts.is_variable(t) for t in inputs):
        return None
    if any(choices.of(t) not in (WHOLE, _PARTIAL) for t in inputs):
        return None
    for each in strategies(rule, shards):
        rows = [t for t, want in zip(inputs, each.inputs) if want == _ROWS]
        fits = rows and not each.routed and each.factor not in rule.notation.resolved
        if fits and all(want in (_ROWS, WHOLE, None) or want == WHOLE_SHAPE for want in each.inputs):
            known = all(facts.shape(t) and facts.shape(t)[0] is not None for t in rows)
            if known and all(placement in (_ROWS, _PARTIAL) for placement in each.outputs):
                return each
    return None


def _on_rows(facts, choices, shards, candidates):
    """The names of the candidates for which it costs least to be computed in parts."""
    network, seen = Network(_SOURCE, _SINK), set()

    def cost(have, want, tensor):
        return int(conversion_cost(have, want, facts.num_bytes(tensor), shards, facts.machine.worker))

    def takers(tensor):
        """Of those that take a tensor whole: the candidates that could take rows; whether there are others."""
        own, others = [], False
        for consumer, position in facts.graph.consumers.get(tensor.node, ()):
            if facts.graph.inputs[consumer][position] != tensor:
                continue
            if consumer in candidates and candidates[consumer].inputs[position] == _ROWS:
                own.append(consumer)
            elif consumer not in choices.strategy or choices.strategy[consumer].inputs[position] not in _AS_IT_IS:
                others = True
        return own, others

    worth = facts.machine.link_bytes_per_computed_byte  # bytes over the link for which it pays to compute a byte less
    for name, strategy in candidates.items():
        outputs = [Tensor(name, i) for i in range(len(strategy.outputs))]
        computed = [] if facts.graph.nodes[name].op in tensors.HAND_ALL_ON else outputs + facts.inputs(name)
        saved = sum(map(facts.num_bytes, computed)) * (shards - 1) / float(shards) * worth
        network.add(_SOURCE, name, int(saved))
        for tensor, placement in zip(outputs, strategy.outputs):
            own, others = takers(tensor)
            if placement == _PARTIAL:
                network.add(name, _SINK, cost(_PARTIAL, WHOLE, tensor))
            elif own or others:
                _joined(network, name, (tensor, "whole"), cost(_ROWS, WHOLE, tensor), own, others)
        for tensor in facts.inputs(name):
            if choices.of(tensor) == _PARTIAL and tensor not in seen:
                seen.add(tensor)
                own, others = takers(tensor)
                if not others:
                    more = cost(_PARTIAL, WHOLE, tensor) - cost(_PARTIAL, _ROWS, tensor)
                    _joined(network, _SOURCE, (tensor, "sum"), more, own, False)
    whole = {head for tail, head in network.minimum_cut() if tail == _SOURCE}
    return [name for name in candidates if name not in whole]


def _joined(network, tail, node, cost, own, others):
    """A cost that arises once if any of those that take a tensor take it whole."""
    network.add(tail, node, cost)
    for each in own:
        network.add(node, each)
    if others:
        network.add(node, _SINK)
