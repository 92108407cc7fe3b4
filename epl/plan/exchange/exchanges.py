"""What a device exchanges with others in a training step, read off the compiled program.

Collectives are nodes of their own where workers take part, or where copies of the model are merged. What the devices of
one worker exchange that have parts of tensors (epl.split) are plain operations, which end in the node that stands for
the collective. Of the devices of a worker the first is looked at; others take part in as many collectives.
"""

import collections
import re
from dataclasses import dataclass, replace

from epl.graph import tags
from epl.graph.index import format_input, parse_input
from epl.graph.types import FLOAT32
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX, average_name, clone_name, joined_name
from epl.plan.layout.mesh import DATA, SHARD, STAGE
from epl.program.collective import OPERATIONS
from epl.rules import effects

_MICRO_BATCH = re.compile(r"%s_micro_batch_\d+/" % PREFIX)
_OF_SEVERAL = frozenset(["EplAllReduce", "EplReduceScatter"])
_ONE_GETS = frozenset(["EplRecv"])
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
    found = _Exchanges(program, size_of)
    step = program.whole.ancestors(training_writes(program))
    rows = found.of_run(step, 1)
    local = program.plan.local_sgd
    if local is not None:
        averaging = program.whole.ancestors([average_name()]) - step
        rows += [replace(row, phase=tags.APPLY) for row in found.of_run(averaging, 1.0 / local.k_steps)]
    return tuple(rows)


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
        self._users = {each.name for each in self._plan.user_collectives}
        # In these the first device of the worker does not take part.
        self._others = {each.name for each in self._plan.collectives if each.lane}

    def of_run(self, reached, times):
        """The rows of the collectives among some nodes of the whole graph, each with the times that it comes."""
        made = self._between_copies(reached) + self._of_messages(reached) + self._of_shards(reached)
        made.sort(key=lambda pair: (_PHASES.index(pair[1].phase), self._order.get(pair[0], len(self._order))))
        rows = collections.OrderedDict()
        for _, row in made:
            key = replace(row, name=_MICRO_BATCH.sub("", row.name), tensor=_MICRO_BATCH.sub("", row.tensor), times=0)
            first, count = rows.get(key, (row, 0))
            rows[key] = first, count + times
        return [replace(row, times=count) for row, count in rows.values()]

    def _between_copies(self, reached):
        """(node, row) pairs of the collectives that are nodes by themselves, but for those of shards."""
        found = []
        for name in self._graph.find(OPERATIONS.__contains__):
            node = self._graph.nodes[name]
            if name not in reached or not self._program.has(name) or name in self._others:
                continue
            if tags.get_str(node, tags.ROLE) == OF_SHARDS:
                if not name.startswith(joined_name("")):  # the comparison of batches, which no collective stands for
                    found.append((name, self._row(node, SHARD, self._plan.mesh.shard_group.size)))
            else:
                found.append((name, self._row(node, *self._axis(node))))
        return found

    def _axis(self, node):
        """(axes, number of devices) of a collective between copies of the model."""
        mesh = self._plan.mesh
        several = [axis for axis, size in mesh.shape.items() if size > 1]
        if node.name in self._users:
            return "+".join(several) or DATA, mesh.everyone.size
        axes = [axis for axis in several if axis == DATA or (axis == SHARD and not mesh.split)]
        workers, local = node.attr["workers"].i, mesh.copies.local
        if _is_of_owners(node):
            return "+".join(axes) or DATA, workers * self._plan.zero.local
        if "R" in node.attr and node.attr["R"].i > 1:
            local = node.attr["R"].i
        if mesh.is_spread and "R" in node.attr:  # all copies of a block hand in theirs, before workers are told apart
            return "+".join(axes) or DATA, node.attr["R"].i * mesh.num_blocks
        return "+".join(axes) or DATA, workers * local

    def _row(self, node, axis, devices):
        tensors = [each for each in self._graph.inputs[node.name] if each.index >= 0]
        handed = tensors[: tags.get_int(node, "N", 1) if node.op in _OF_SEVERAL else 1]
        size = sum(self._bytes(each) or 0 for each in (tensors if _is_of_owners(node) else handed))
        if _is_of_owners(node):
            size //= self._plan.zero.local
        if node.op == "EplAllReduce" and node.attr["wire_fp16"].b and node.attr["T"].type == FLOAT32:
            size //= 2
        if node.op == "EplSparseAllReduce":
            size = sum(self._plan.dgc.sent_bytes(g) for g in self._plan.aggregation.groups if g.name == node.name)
        return Exchange(
            name=node.name,
            operation=OPERATIONS[node.op],
            axis=axis,
            devices=devices,
            sent_by=node.op if node.attr["workers"].i > 1 or node.op in _ONE_GETS else "",
            num_bytes=0 if node.op in _ONE_GETS else size,
            times=1,
            phase=self._phase(node.name),
            tensor=format_input(*tensors[0]) if tensors else "",
        )

    def _bytes(self, tensor):
        """Of a tensor of this worker's graph; None where they are not known."""
        return self._size_of(tensor.node, tensor.index) if self._program.has(tensor.node) else None

    def _of_messages(self, reached):
        """(node, row) pairs of what this worker sends those that have other parts of the same graph."""
        part, found = self._program.part, []
        for message in part.messages if part is not None else ():
            if message.source != part.index or not reached.intersection(message.consumers):
                continue
            tensor = parse_input(message.tensor)
            row = Exchange(
                name=message.send,
                operation="send",
                axis=STAGE if part.channels.are_neighbours(message.source, message.target) else DATA,
                devices=2,
                sent_by="EplBroadcastSend",
                num_bytes=self._bytes(tensor) or 0,
                times=1,
                phase=self._phase(tensor.node),
                tensor=message.tensor,
            )
            found.append((tensor.node, row))
        return found

    def _of_shards(self, reached):
        """(node, row) pairs of the collectives of devices that have parts of tensors."""
        done, found = self._program.partitioned, []
        for each in done.collectives if done is not None else ():
            handed = parse_input(done.graph.nodes[each.node].input[0])
            for name in self._program.micro_batches.copies(each.node):
                if name not in reached or not self._program.has(name):
                    continue
                copy = handed.node if name == each.node else name[: len(name) - len(each.node)] + handed.node
                size = self._size_of(copy if copy in self._graph.nodes else handed.node, handed.index)
                if size is None:
                    shards = self._plan.mesh.num_shards if each.kind in ("all_gather", "all_to_all") else 1
                    size = each.num_bytes // shards
                carrier = self._graph.nodes.get(joined_name(name))
                row = Exchange(
                    name=name,
                    operation=each.kind,
                    axis=SHARD,
                    devices=self._plan.mesh.num_shards,
                    sent_by=carrier.op if carrier is not None else "",
                    num_bytes=size,
                    times=1,
                    phase=self._phase(name),
                    tensor=each.tensor,
                    wanted_by=each.wanted_by,
                )
                found.append((name, row))
        return found

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


def _is_of_owners(node):
    """Whether copies of the model give each other what they own (zero.level): each a vector for a variable."""
    return node.op == "EplAllGather" and "%s_zero/" % PREFIX in node.name
