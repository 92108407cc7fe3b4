r"""Where partial sums are made up: at the tensors at which that takes fewest bytes.

`propagate` puts sums off as long as it can. Between the products that leave sums partial and the operations that need
them whole lies a region of linear operations, and the sums have to be made up somewhere on each path through it:

    product -> a -> add -> c -> relu            at c or at the output of `add`: once for both products
    product -> b ---'  \-> d -> square          at the output of `add`: once for both c and d

That is a minimum cut between the products and those that need the whole, with a tensor's bytes as the capacity of its
node. Of several minimum cuts the one next to the products is taken.
"""

import collections
from dataclasses import replace

from epl.graph.index import NodeInput as Tensor
from epl.partition.conversion import conversion_cost
from epl.partition.min_cut import Network
from epl.partition.rule import strategies
from epl.program.placement import SUM, WHOLE, partial

_SOURCE, _SINK = "source", "sink"
_PARTIAL = partial(SUM)


def postpone(facts, choices, shards):
    """The Choices with sums made up where it costs least.

    Args:
      facts: Facts of the graph.
      choices: as `propagate` has made them; stays as it is.
      shards: how many parts.
    """
    if _PARTIAL not in choices.placements.values():
        return choices
    whole_at = _cut(facts, choices, shards)
    return _made_up(facts, choices, whole_at, shards) if whole_at else choices


def _cut(facts, choices, shards):
    """The tensors at which sums are made up although a linear operation could have taken them as they are."""
    network = Network(_SOURCE, _SINK)
    wanted = collections.defaultdict(set)  # tensor -> placements that others than linear operations want of it
    linear = set()
    for name in choices.order:
        strategy, inputs = choices.strategy[name], facts.inputs(name)
        partials = [t for t, want in zip(inputs, strategy.inputs) if choices.of(t) == _PARTIAL and want == _PARTIAL]
        outputs = [Tensor(name, i) for i, placement in enumerate(strategy.outputs) if placement == _PARTIAL]
        for tensor, want in zip(inputs, strategy.inputs):
            if choices.of(tensor) == _PARTIAL and want not in (_PARTIAL, None) and want.kind != "whole shape":
                wanted[tensor].add(want)
        for output in outputs:
            cost = conversion_cost(_PARTIAL, WHOLE, facts.num_bytes(output), shards, facts.machine.worker)
            network.add((output, "in"), (output, "out"), int(cost))
            if not partials:
                network.add(_SOURCE, (output, "in"))
            for tensor in partials:
                network.add((tensor, "out"), (output, "in"))
        linear.update(partials)
    for tensor, placements in wanted.items():
        if len(placements) == 1 and WHOLE not in placements:
            want, num_bytes = next(iter(placements)), facts.num_bytes(tensor)
            cost = conversion_cost(_PARTIAL, want, num_bytes, shards, facts.machine.worker)
            network.add((tensor, "out"), _SINK, int(cost))
        else:
            network.add((tensor, "out"), _SINK)
    return {here[0] for here, there in network.minimum_cut() if there == (here[0], "out")} & linear


def _made_up(facts, choices, whole_at, shards):
    """The Choices in which everything takes some tensors whole, and what follows from that."""
    found = replace(choices, strategy=dict(choices.strategy), placements=dict(choices.placements))
    for name in choices.order:
        strategy, inputs = found.strategy[name], facts.inputs(name)
        if _PARTIAL not in strategy.inputs:
            continue
        still = [found.of(t) == _PARTIAL and t not in whole_at for t in inputs]
        if any(mine and want == _PARTIAL for mine, want in zip(still, strategy.inputs)):
            continue
        found.strategy[name] = whole = strategies(found.rule[name], shards)[0]
        for index in range(len(whole.outputs)):
            found.placements.pop(Tensor(name, index), None)
    return found
