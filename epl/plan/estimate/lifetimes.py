"""How many bytes of tensors are alive at one time on the devices of each stage, while one micro-batch is computed."""

import collections

from epl.graph import tags
from epl.plan.cost.device_memory import KINDS, kind_of
from epl.plan.cost.memory import IN_PLACE, VIEWS

# Of a stage: bytes by kind where most are alive, and bytes of what its backward pass takes of its forward pass.
StageLives = collections.namedtuple("StageLives", "peak kept")


def lives(graph, names, prices, phase_of, stage_of, num_stages, lasting=()):
    """A list of the StageLives of stages.

    A tensor lives from the operation that makes it to the last one that takes it. Views share the memory of what they
    show, and operations element by element take over what nobody needs any more, as in epl.plan.cost.memory.

    Args:
      graph: the Graph of one copy of the model.
      names: its nodes in the order of running.
      prices: dict of them to epl.plan.estimate.prices.Price.
      phase_of: dict of them to the phase of the step.
      stage_of: function of a node's name to its stage.
      num_stages: how many stages there are.
      lasting: (node, output) pairs that are taken behind all nodes.
    """
    root, last, size = {}, {}, {}
    ops, inputs_of = graph.ops, graph.inputs
    for place, name in enumerate(names):
        inputs, price = inputs_of[name], prices[name]
        for tensor in inputs:
            if tensor in root:
                last[root[tensor]] = place
        sizes = price.sizes
        if not any(sizes):
            continue
        op = ops[name]
        is_view = op in VIEWS or price.is_same
        for index, num_bytes in enumerate(sizes):
            if is_view and inputs and inputs[0].index >= 0:
                shown = inputs[index] if op == "IdentityN" else inputs[0]
                if shown in root:
                    root[name, index] = root[shown]
            elif num_bytes:
                tensor = name, index
                root[tensor] = tensor
                last[tensor], size[tensor] = place, num_bytes
    for tensor in lasting:
        if tensor in root:
            last[root[tensor]] = len(names)
    return _peaks(graph, names, phase_of, stage_of, num_stages, root, last, size)


def _peaks(graph, names, phase_of, stage_of, num_stages, root, last, size):
    alive = [dict.fromkeys(KINDS, 0) for _ in range(num_stages)]
    total, most, kept = [0] * num_stages, [0] * num_stages, [None] * num_stages
    peak = [dict.fromkeys(KINDS, 0) for _ in range(num_stages)]
    ops, home, made, ends = graph.ops, {}, collections.defaultdict(list), collections.defaultdict(list)
    for tensor in size:
        made[tensor[0]].append(tensor)
        ends[last[tensor]].append(tensor)
    for place, name in enumerate(names):
        phase = phase_of[name]
        if phase == tags.BACKWARD:
            stage = stage_of(name)
            if kept[stage] is None:
                kept[stage] = total[stage]
        if name in made:
            stage, op = stage_of(name), ops[name]
            kind, here = kind_of(name, op, phase), alive[stage]
            over = _taken_over(graph, name, place, root, last, size) if op in IN_PLACE else None
            for tensor in made[name]:
                num_bytes = size[tensor]
                if over is not None and size[over] == num_bytes and over in home:
                    _, before = home.pop(over)
                    over = None
                    here[before] -= num_bytes
                    total[stage] -= num_bytes
                home[tensor] = stage, kind
                here[kind] += num_bytes
                total[stage] += num_bytes
            if total[stage] > most[stage]:
                most[stage], peak[stage] = total[stage], dict(here)
        for tensor in ends.get(place, ()):
            if tensor in home:
                where, kind = home.pop(tensor)
                alive[where][kind] -= size[tensor]
                total[where] -= size[tensor]
    return [StageLives(found, before or 0) for found, before in zip(peak, kept)]


def _taken_over(graph, name, place, root, last, size):
    """A tensor of those that an operation takes which nobody takes after it; None for none."""
    for tensor in graph.inputs[name]:
        found = root.get(tensor)
        if found in size and last[found] == place:
            return found
    return None
