"""What a device exchanges with others in a training step: of the plan's collectives those that the step reaches.

Only the compiled program tells that, as it tells the messages, and the sizes of what follows from the batch. Of the
devices of a worker the first is looked at; others take part in as many collectives.
"""

import collections
import re
from dataclasses import dataclass, replace

from epl.graph import tags
from epl.graph.index import node_of, parse_input
from epl.plan.exchange.collectives import collectives_in
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX, clone_name
from epl.plan.layout.mesh import DATA
from epl.program.collective import AVERAGES, MESSAGES, SEND, SHARDS
from epl.rules import effects

_MICRO_BATCH = re.compile(r"%s_micro_batch_\d+/" % PREFIX)
_PHASES = (tags.FORWARD, tags.BACKWARD, tags.APPLY, tags.SAVE)


@dataclass(frozen=True)
class Exchange:
    """A collective of a training step, as one device takes part in it.

    Attributes:
      name: its node in the compiled graph; of the first micro-batch.
      operation: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" and so on; "send" for a message.
      axis: of the mesh, along which the devices lie that take part; several are joined by "+".
      devices: how many take part.
      sent_by: type of the operation that carries it between workers; "" where one worker has all of these devices.
      num_bytes: of what the device hands in, each time.
      times: per training step; a fraction for what is not done in each step.
      phase: of the step (epl.graph.tags).
      tensor: what is exchanged; of several tensors that travel together the first.
      wanted_by: the operation for whose sake that is done; "" where it has no single one.
    """

    name: str
    operation: str
    axis: str
    devices: int
    sent_by: str
    num_bytes: int
    times: float
    phase: str
    tensor: str
    wanted_by: str = ""


def training_writes(program):
    """The operations that change variables in training but for metrics', in all copies, of a compiled Program."""
    graph, plan = program.whole, program.plan
    metrics = {variable.name for variable in program.variables.values() if variable.is_metric}
    names = [clone_name(write, i.index) for write in plan.analysis.writes for i in plan.mesh.instances]
    return [name for name in names if name in graph.nodes and variable_of(graph, name) not in metrics]


def exchanges_of(program, size_of):
    """The Exchanges of a training step that makes all changes of variables but those of metrics.

    Args:
      program: a compiled epl.program.program.Program.
      size_of: function from a node of its graph and the number of an output to bytes; None where they are not known.

    Returns:
      A tuple, in the order in which they come.
    """
    return tuple(_Exchanges(program, size_of).of_run(program.whole.ancestors(training_writes(program))))


def bytes_by_axis(exchanges):
    """dict of axis to the bytes that a device hands in along it in a step."""
    found = collections.OrderedDict()
    for each in exchanges:
        found[each.axis] = found.get(each.axis, 0) + int(each.num_bytes * each.times)
    return found


class _Exchanges(object):
    def __init__(self, program, size_of):
        self._program, self._plan, self._graph = program, program.plan, program.whole
        self._size_of, self._order = size_of, program.whole.order
        self._phases = {}

    def of_run(self, reached):
        """The rows of what is among some nodes of the whole graph, each with the times that it comes."""
        made = self._listed(reached)
        made.sort(key=lambda pair: (_PHASES.index(pair[1].phase), self._order.get(pair[0], len(self._order))))
        rows = collections.OrderedDict()
        for _, row in made:
            key = replace(row, name=_MICRO_BATCH.sub("", row.name), tensor=_MICRO_BATCH.sub("", row.tensor), times=0)
            first, count = rows.get(key, (row, 0))
            rows[key] = first, count + row.times
        return [replace(row, times=count) for row, count in rows.values()]

    def _listed(self, reached):
        """(node, row) pairs of the program's collectives; a row has the place of the node."""
        found, sizes, planned = [], self._plan.mesh.shape, len(self._plan.collectives)
        for number, each in enumerate(collectives_in(self._program)):
            # Of several shard ranks the first device is in the first one.
            if each.shard_rank or not self._runs(each, reached):
                continue
            tensor = each.tensors[0] if each.tensors else ""
            node, size = each.result or each.name, each.device_bytes
            if each.purpose == MESSAGES:
                node = node_of(tensor)
            told = parse_input(each.given) if each.given else parse_input(tensor)
            if each.given or each.purpose == MESSAGES and size is None:
                size = self._bytes(told) or size or 0
            elif size is None:
                size = self._handed_in(node)
            row = Exchange(
                name=node if each.given else each.name,
                operation=each.operation,
                axis="+".join(axis for axis in each.axes if sizes[axis] > 1) or DATA,
                devices=each.devices,
                sent_by=each.carrier if each.workers > 1 else "",
                num_bytes=size,
                times=1.0 / each.every if each.every > 1 else 1,
                phase=each.phase if number < planned else self._phase(node),
                tensor=tensor,
                wanted_by=(each.consumers[0][0] if each.consumers else tensor) if each.purpose == SHARDS else "",
            )
            found.append((node, row))
        return found

    def _runs(self, each, reached):
        """Whether a Collective is among what is reached, and this worker hands something in."""
        if each.purpose == MESSAGES:
            return each.operation == SEND and any(name in reached for name, _ in each.consumers)
        # Averages are taken after some steps, by themselves.
        node = each.result or each.name
        return self._program.has(node) and (node in reached or each.purpose == AVERAGES and each.times > 0)

    def _handed_in(self, name):
        """Bytes of the first tensor that a node takes."""
        tensors = [each for each in self._graph.inputs[name] if each.index >= 0]
        return self._bytes(tensors[0]) or 0 if tensors else 0

    def _bytes(self, tensor):
        """Of a tensor of this worker's graph; None where they are not known."""
        return self._size_of(tensor.node, tensor.index) if self._program.has(tensor.node) else None

    def _phase(self, name):
        """The latest phase of a node and of what it takes: what passes have made has none of its own."""
        graph, known, waiting = self._graph, self._phases, [name]
        while waiting:
            node = waiting[-1]
            if node in known:
                waiting.pop()
                continue
            before = self._before(node)
            missing = [each for each in before if each not in known]
            if missing:
                waiting.extend(missing)
                continue
            own = _PHASES.index(tags.phase(graph.nodes[node]))
            known[node] = max([own] + [known[each] for each in before])
            waiting.pop()
        return _PHASES[known[name]]

    def _before(self, node):
        """The nodes whose tensors a node takes, but for those of loops and for variables."""
        graph, place = self._graph, self._order.get(node, -1)
        found = (each.node for each in graph.inputs[node] if each.index >= 0)
        return [
            each
            for each in found
            if self._order.get(each, place) < place and graph.nodes[each].op not in effects.VARIABLES
        ]
