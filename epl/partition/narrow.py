"""Operations on whole tensors of which all that comes is used in parts compute parts only.

zeros -> [shard's part] -> assign      becomes      part of zeros -> assign
"""

from dataclasses import replace

from epl.graph.index import NodeInput as Tensor
from epl.partition.rule import strategies
from epl.program.placement import WHOLE


def narrow(facts, choices, shards):
    """The Choices in which nothing is computed whole only to be divided."""
    found = replace(choices, strategy=dict(choices.strategy), placements=dict(choices.placements))
    for name in reversed(choices.order):
        rule, strategy, inputs = found.rule.get(name), found.strategy[name], facts.inputs(name)
        if rule is None or name in choices.fixed:
            continue
        if strategy.outputs != (WHOLE,) or any(found.of(t) != WHOLE for t in inputs):
            continue
        if any(facts.is_variable(t) for t in inputs):
            continue  # of a variable that is whole everything is read, and changed
        wanted = _wanted(facts, found, name)
        if len(wanted) != 1 or next(iter(wanted)) is None or next(iter(wanted)).kind != "sharded":
            continue
        placement = next(iter(wanted))
        parts = [each for each in strategies(rule, shards) if each.outputs == (placement,) and not each.routed]
        if parts:
            found.strategy[name] = parts[0]
            found.placements[Tensor(name, 0)] = placement
    return found


def _wanted(facts, choices, name):
    """The placements in which others want what a node gives."""
    wanted = set()
    for consumer, position in facts.graph.consumers.get(name, ()):
        if facts.graph.inputs[consumer][position].index < 0:
            continue
        strategy = choices.strategy.get(consumer)
        wanted.add(strategy.inputs[position] if strategy is not None else None)
    return wanted
