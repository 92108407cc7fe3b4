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
    for place, name in enumerate(names):
        node, inputs = graph.nodes[name], graph.inputs[name]
        for tensor in inputs:
            if tensor in root:
                last[root[tensor]] = place
        sizes = prices[name].sizes
        if not any(sizes):
            continue
        is_view = node.op in VIEWS or prices[name].is_same
        for index, num_bytes in enumerate(sizes):
            if is_view and inputs and inputs[0].index >= 0:
                shown = inputs[index] if node.op == "IdentityN" else inputs[0]
                if shown in root:
                    root[name, index] = root[shown]
            elif num_bytes:
                root[name, index] = name, index
                last[name, index], size[name, index] = place, num_bytes
    for tensor in lasting:
        if tensor in root:
            last[root[tensor]] = len(names)
    return _peaks(graph, names, prices, phase_of, stage_of, num_stages, root, last, size)


def _peaks(graph, names, prices, phase_of, stage_of, num_stages, root, last, size):
    alive = [dict.fromkeys(KINDS, 0) for _ in range(num_stages)]
    total, most, kept = [0] * num_stages, [0] * num_stages, [None] * num_stages
    peak = [dict.fromkeys(KINDS, 0) for _ in range(num_stages)]
    home, ends = {}, collections.defaultdict(list)
    for tensor in size:
        ends[last[tensor]].append(tensor)
    for place, name in enumerate(names):
        node, stage = graph.nodes[name], stage_of(name)
        phase = phase_of[name]
        if phase == tags.BACKWARD and kept[stage] is None:
            kept[stage] = total[stage]
        over = _taken_over(graph, name, place, root, last, size) if node.op in IN_PLACE else None
        for index in range(len(prices[name].sizes)):
            tensor = name, index
            if tensor not in size:
                continue
            kind = kind_of(name, node.op, phase)
            if over is not None and size[over] == size[tensor] and over in home:
                _, before = home.pop(over)
                over = None
                alive[stage][before] -= size[tensor]
                total[stage] -= size[tensor]
            home[tensor] = stage, kind
            alive[stage][kind] += size[tensor]
            total[stage] += size[tensor]
        if total[stage] > most[stage]:
            most[stage], peak[stage] = total[stage], dict(alive[stage])
        for tensor in ends.pop(place, ()):
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
