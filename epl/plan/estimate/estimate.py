"""What a training step costs by a plan, before any copy of the model is made: seconds, and bytes of each device.

The one copy of the model that the plan was made of is gone through once: each operation is priced by a Machine
(epl.plan.estimate.prices), each exchange by the link that it goes over (epl.plan.estimate.exchanged), and tensors are
counted as long as something takes them (epl.plan.estimate.lifetimes). From that follow

    one stage   a list schedule: one stream of operations, beside it the exchanges of `Plan.collectives`
    a pipeline  the simulation of its schedule (epl.plan.pipeline.simulate), with the sums of the stages
    bytes       the peak of one micro-batch, and what the others that are alive keep for their backward passes

The time that takes does not depend on the number of devices. docs/search.md says what is not seen.
"""

import collections
from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph import tags
from epl.graph.index import node_of, parse_input
from epl.partition.partitioned import EXCHANGES
from epl.plan.cost.cost import UNKNOWN_SIZE
from epl.plan.cost.device_memory import ACTIVATIONS, COMMUNICATION, GRADIENTS, KINDS, LASTING, SLOTS, STATE, VARIABLES
from epl.plan.cost.own_bytes import own_part
from epl.plan.estimate.exchanged import Exchanged
from epl.plan.estimate.lifetimes import lives
from epl.plan.estimate.prices import Prices
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, schedule
from epl.plan.pipeline.simulate import simulate
from epl.program.collective import FIRST, REDUCE_SCATTER, SHARDS
from epl.program.collective import GRADIENTS as DENSE
from epl.rules import effects

# The schedule of a pipeline of one micro-batch, which has no choice.
_ONE_BY_ONE = "PreferBackward"
# A sum of two reads both, and writes one.
_PASSES_OF_A_SUM = 3
_KIND_OF = {tags.FORWARD: FORWARD, tags.BACKWARD: BACKWARD}


@dataclass(frozen=True)
class StageEstimate:
    """What a device of a stage does in a step.

    Attributes:
      compute_s: seconds of its operations.
      communication_s: in which it waits for exchanges.
      bubble_s: in which it waits for other stages.
      bytes: of each of epl.plan.cost.device_memory.KINDS, where they are most together.
    """

    compute_s: float
    communication_s: float
    bubble_s: float
    bytes: Dict[str, int]

    @property
    def peak_bytes(self):
        return sum(self.bytes.values())


@dataclass(frozen=True)
class Estimate:
    """What a training step costs.

    Attributes:
      machine: name of the Machine.
      batch: rows that a micro-batch of one model replica was taken to have where the program leaves them open.
      stages: a StageEstimate per device of a model replica's pipeline; one without a pipeline.
      step_s: seconds of a step.
      input_s: of them, until data is on the device.
      contention_s: of them, as devices of a host share its cores.
    """

    machine: str
    batch: int
    stages: Tuple[StageEstimate, ...]
    step_s: float
    input_s: float
    contention_s: float

    @property
    def slowest(self):
        """The StageEstimate of the stage that computes and communicates longest."""
        return max(self.stages, key=lambda stage: stage.compute_s + stage.communication_s)

    @property
    def fullest(self):
        """The StageEstimate of the stage with most bytes."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)


def estimate(program, cluster, machine=None, batch=None):
    """Estimates a training step.

    Args:
      program: what `epl.compiler.planned` returns: the one copy of the model, with its plan.
      cluster: the epl.Cluster for which it was planned.
      machine: an epl.cluster.machine.Machine; None: the cluster's.
      batch: rows of a micro-batch of a model replica, where the program leaves them open; None: UNKNOWN_SIZE.

    Returns:
      An Estimate.
    """
    return _Step(program, cluster, machine or cluster.machine, batch or UNKNOWN_SIZE).estimate()


class _Stream(object):
    """The operations of a device, one after the other, and beside them exchanges, one after the other too.

    Args:
      overlaps: whether exchanges go on while operations run; else these wait, as both need the same cores.
    """

    def __init__(self, overlaps):
        self._overlaps, self.now, self._free, self.ends = overlaps, 0.0, 0.0, {}

    def run(self, seconds, keys):
        """An operation that waits for exchanges, by their keys."""
        for key in keys:
            self.now = max(self.now, self.ends.get(key, 0.0))
        self.now += seconds

    def send(self, key, seconds, keys=()):
        """An exchange of what is there now, and what other exchanges bring."""
        begin = max([self.now, self._free] + [self.ends.get(other, 0.0) for other in keys])
        self.ends[key] = self._free = begin + seconds
        if not self._overlaps:
            self.now = self._free


class _Step(object):
    def __init__(self, program, cluster, machine, batch):
        self._program, self._graph, self._plan = program, program.graph, program.plan
        self._machine, self._cluster, self._batch = machine, cluster, batch
        mesh, several = self._plan.mesh, self._plan.micro_batches
        self._count = several.count if several is not None else 1
        self._repeated, self._once = self._in_order()
        self._names = self._repeated + self._once
        rows = batch if mesh.split else max(1, batch // mesh.num_shards)
        self._prices = Prices(program, self._names, machine.device, rows).of
        self._exchanged = Exchanged(machine, len(set(cluster.nodes)))
        places = list(zip(mesh.instances[0].workers, mesh.instances[0].devices))
        self._places = sorted(set(places))
        self._place_of = [self._places.index(place) for place in places]
        self._seconds = {name: price.start_s + price.work_s for name, price in self._prices.items()}
        self._sums_s = self._adding_s()
        self._owned = _largest_share(self._plan, self._once, self._seconds.__getitem__)
        self._collectives = [c for c in self._plan.collectives if c.times and c.micro_batch == 0 and c.takes_part]
        again = {c.purpose for c in self._plan.collectives if c.micro_batch}
        self._of_shards = collections.Counter()
        for each in self._collectives:
            if each.purpose == SHARDS:
                self._of_shards[each.result] += self._exchanged.seconds(each)
        self._sent = [(c, self._exchanged.seconds(c) / c.every) for c in self._collectives if c.purpose != SHARDS]
        self._sent_again = [(c, seconds) for c, seconds in self._sent if c.purpose in again]
        self._beside = self._beside_operations()

    def estimate(self):
        live = [1] * len(self._place_of)
        if len(self._places) == 1:
            times = [self._one_stage()]
        else:
            times, live = self._pipeline()
        step_s = max(map(sum, times))
        found = zip(times, self._bytes(live))
        stages = tuple(StageEstimate(compute, waits, bubble, sizes) for (compute, waits, bubble), sizes in found)
        input_s, contention_s = self._input_s(), max(0.0, self._host_s() - step_s)
        total = step_s + input_s + contention_s
        return Estimate(self._machine.name, self._batch, stages, total, input_s, contention_s)

    def _in_order(self):
        """Nodes of a step in the order of running: those of each micro-batch, and those that come once behind them."""
        graph, plan = self._graph, self._plan
        metrics = {variable.name for variable in self._program.variables.values() if variable.is_metric}
        writes = [w for w in plan.analysis.writes if not metrics.intersection(t.node for t in graph.inputs[w])]
        step = graph.ancestors(writes)
        # TensorFlow drops what nobody takes, such as gradients with respect to data.
        counts = step.intersection(graph.find(lambda op: effects.kind_of(op) not in (None, effects.PURE)))
        step &= graph.ancestors(counts, data_only=True)
        several = plan.micro_batches.nodes if plan.micro_batches is not None else ()
        names, self._phase = sorted(step, key=graph.order.__getitem__), graph.phases
        once = [name for name in names if self._phase[name] == tags.APPLY and name not in several]
        behind = set(once)
        return [name for name in names if name not in behind], once

    def _adding_s(self):
        """Seconds by place in which gradients of micro-batches are added up, and their mean is taken."""
        found, device = [0.0] * len(self._places), self._machine.device
        for node, index in self._gradients() if self._count > 1 else ():
            moved = (_PASSES_OF_A_SUM * (self._count - 1) + 2) * self._prices[node].sizes[index]
            found[self._place_of[self._stage(node)]] += self._count * device.start_s + moved / device.memory_bytes_per_s
        return found

    def _stage(self, name):
        return self._plan.stage_of.get(name, 0)

    def _beside_operations(self):
        """dict of nodes to seconds of what goes on beside the operations: exchanges of shards, and copies from the
        host."""
        speed = self._machine.worker.bytes_per_s
        found = {name: price.sent / speed for name, price in self._prices.items() if price.sent}
        if self._of_shards:
            found.update((name, self._of_shards[name]) for name in self._graph.find(EXCHANGES.__contains__))
        return {name: seconds for name, seconds in found.items() if seconds and name in self._prices}

    def _one_stage(self):
        """(seconds of operations, of waiting for exchanges, of waiting for other stages)."""
        total = 0.0
        for sent, times in ((self._sent_again, self._count - 1), (self._sent, 1)):
            stream = _Stream(overlaps=not self._machine.device.cores) if times else None
            if stream is not None:
                behind = self._runs(stream, self._repeated, sent)
                if sent is self._sent:
                    behind = self._runs(stream, self._once, behind)
                    for collective, seconds in behind:
                        stream.send(collective.name, seconds)
                    stream.run(0.0, list(stream.ends))
                total += stream.now * times
        compute = self._count * sum(map(self._seconds.__getitem__, self._repeated))
        compute += self._owned * sum(map(self._seconds.__getitem__, self._once))
        adding = sum(self._sums_s)
        return compute + adding, max(0.0, total - compute), 0.0

    def _runs(self, stream, names, sent):
        """Runs nodes on a stream, and begins each exchange behind the last node whose result it takes; returns the
        exchanges that take nothing of these nodes."""
        place = {name: number for number, name in enumerate(names)}
        begun, waits, behind = collections.defaultdict(list), collections.defaultdict(list), []
        for collective, seconds in sent:
            by = [place[node_of(each)] for each in collective.after or collective.tensors if node_of(each) in place]
            if by:
                begun[names[max(by)]].append((collective, seconds))
            elif collective.turn == FIRST:
                stream.send(collective.name, seconds)
            else:
                behind.append((collective, seconds))
            for consumer, _ in collective.consumers:
                waits[consumer].append(collective.name)
        share = self._owned if names is self._once else 1.0
        graph, seconds_of, ends = self._graph, self._seconds, stream.ends
        awaited = [c.name for c, _ in sent if c.name in graph.nodes] + list(self._beside)
        apart = {user for name in awaited for user, _ in graph.consumers.get(name, ())}.union(self._beside)
        for name in names:
            if name not in waits and name not in begun and name not in apart:
                stream.now += seconds_of[name] * share
                continue
            keys = waits.get(name, []) + [each.node for each in graph.inputs[name] if each.node in ends]
            if name in self._beside:
                stream.send(name, self._beside[name], keys)
            else:
                stream.run(seconds_of[name] * share, keys)
            for collective, seconds in begun.get(name, ()):
                stream.send(collective.name, seconds)
        return behind

    def _pipeline(self):
        """([as of _one_stage] by place, the most micro-batches whose activations are alive by stage)."""
        plan, num_stages = self._plan, len(self._place_of)
        order = plan.micro_batches.order if plan.micro_batches is not None else schedule(_ONE_BY_ONE, num_stages, 1)
        actions = plan.micro_batches.action_of if plan.micro_batches is not None else {}
        sums, crossing = collections.Counter(), collections.Counter()
        seen = set()
        for name in self._repeated:
            stage = self._stage(name)
            kind = _KIND_OF.get(self._phase[name], FORWARD)
            sums[actions.get(name, (kind, stage))] += self._seconds[name] + self._beside.get(name, 0.0)
            for producer, index in self._graph.inputs[name]:
                before = self._stage(producer)
                if index >= 0 and before != stage and (producer, index, stage) not in seen:
                    seen.add((producer, index, stage))
                    sizes = self._prices[producer].sizes
                    crossing[before, stage] += sizes[index] if index < len(sizes) else 0
        for collective, seconds in self._sent_again:
            sums[_KIND_OF.get(collective.phase, FORWARD), collective.stage] += seconds
        if not any(action.kind == WEIGHT for device in order for action in device):
            for stage in range(num_stages):
                sums[BACKWARD, stage] += sums.pop((WEIGHT, stage), 0.0)
        line = simulate(order, lambda action: sums[action.kind, action.stage], self._transfers(crossing))
        waits, ends, busy = [[0.0] * len(self._places) for _ in range(3)]
        once = list(self._sums_s)
        for name in self._once:
            once[self._place_of[self._stage(name)]] += self._seconds[name] * self._owned
        for collective, seconds in self._sent:
            if collective.purpose not in {c.purpose for c, _ in self._sent_again}:
                waits[self._place_of[collective.stage]] += seconds
        for slots in line.slots:
            for slot in slots:
                place = self._place_of[slot.action.stage]
                ends[place] = max(ends[place], slot.end)
                busy[place] += slot.end - slot.start
        total = max(map(sum, zip(ends, once, waits)))
        times = [(b + o, w, total - b - o - w) for b, o, w in zip(busy, once, waits)]
        return times, line.peak_live

    def _transfers(self, crossing):
        workers = self._plan.mesh.instances[0].workers

        def transfer(begin, end):
            within = workers[begin] == workers[end]
            link = self._machine.worker if within else self._exchanged.between_workers
            return link.latency_s + crossing[begin, end] / link.bytes_per_s

        return transfer

    def _input_s(self):
        """Seconds until what is fed, or read, is on the device; data sets that are prefetched are there before."""
        if self._plan.prefetched:
            return 0.0
        sources = effects.SOURCES | effects.PLACEHOLDERS
        given = set(self._repeated).intersection(self._graph.find(sources.__contains__))
        size = sum(sum(self._prices[name].sizes) for name in given)
        return self._count * size / self._machine.worker.bytes_per_s

    def _host_s(self):
        """Seconds that the cores of a host need for what all of its devices compute; 0 where each has its own."""
        cores, mesh = self._machine.device.cores, self._plan.mesh
        if not cores:
            return 0.0
        nodes = self._cluster.nodes
        devices = mesh.devices_per_worker * max(map(nodes.count, set(nodes)))
        copies = devices / float(len(self._places))
        found = 0.0
        for names, times in ((self._repeated, self._count), (self._once, self._owned)):
            found += times * sum(self._prices[n].start_s / cores + self._prices[n].work_s for n in names)
        return copies * (found + sum(self._sums_s))

    def _bytes(self, live):
        """Of each place, bytes by kind where they are most; `live`: micro-batches that are alive at once, by stage."""
        num_stages = len(self._place_of)
        gradients = self._gradients()
        if self._scatters or self._count > 1:
            names, lasting = self._repeated, gradients if self._count > 1 else ()
        else:
            names, lasting = self._names, ()
        found = lives(self._graph, names, self._prices, self._phase, self._stage, num_stages, lasting)
        sizes = self._lasting()
        for place in range(len(self._places)):
            stages = [stage for stage in range(num_stages) if self._place_of[stage] == place]
            top = max(stages, key=lambda stage: sum(found[stage].peak.values()) - found[stage].kept)
            for kind, size in found[top].peak.items():
                if kind not in LASTING:
                    sizes[place][kind] += size
            sizes[place][ACTIVATIONS] += sum(found[s].kept * (live[s] - (s == top)) for s in stages)
        self._add_gradients(sizes, gradients)
        return [dict(each) for each in sizes]

    def _add_gradients(self, sizes, gradients):
        """Adds to bytes by place and kind what is kept of gradients over micro-batches, or by their owners, and what
        the largest group of them takes on its way."""
        whole = collections.Counter()
        for node, index in gradients:
            whole[self._place_of[self._stage(node)]] += self._prices[node].sizes[index]
        for place, size in whole.items():
            if self._count > 1 and not self._scatters:
                sizes[place][GRADIENTS] += size  # the sums, beside those of the last micro-batch
            elif self._count == 1 and self._scatters:
                # Most are alive either while the backward pass goes on or once each owner has all of its own.
                passing = sum(sizes[place][kind] for kind in KINDS if kind not in LASTING)
                sizes[place][GRADIENTS] += max(0, size // self._plan.zero.shard_group.size - passing)
        for collective, _ in self._sent:
            if collective.purpose == DENSE and not self._scatters:
                place = self._place_of[collective.stage]
                sizes[place][COMMUNICATION] = max(sizes[place][COMMUNICATION], collective.num_bytes or 0)

    @property
    def _scatters(self):
        """Whether each device keeps of gradients what it updates alone."""
        return any(c.operation == REDUCE_SCATTER and c.purpose == DENSE for c in self._collectives)

    def _gradients(self):
        """(node, output) pairs of the dense gradients that updates take."""
        if self._plan.micro_batches is not None:
            found = [parse_input(each.values) for each in self._plan.micro_batches.gradients]
        else:
            found = [parse_input(tensor) for group in self._plan.aggregation.groups for tensor in group.tensors]
        known = self._prices
        return [tuple(each) for each in found if each.node in known and each.index < len(known[each.node].sizes)]

    def _lasting(self):
        """A Counter of bytes by kind of each place: of variables, of which a device has its part alone."""
        graph, plan = self._graph, self._plan
        updated = {
            each.node
            for write in plan.analysis.writes
            if tags.phase(graph.nodes[write]) == tags.APPLY
            for each in graph.inputs[write]
        }
        found = [collections.Counter() for _ in self._places]
        owned = collections.Counter()
        for name, variable in plan.variables.items():
            node = graph.nodes.get(name)
            if node is None or tags.HOST in node.attr or variable.rows_of is not None:
                continue
            kind = VARIABLES if variable.is_trainable else SLOTS if name in updated else STATE
            size, place = own_part(self._program, name, size_bytes(variable)), self._place_of[self._stage(name)]
            placed = plan.placed(name).data
            if placed.kind == "owned":
                owned[place, kind, placed.rank] += size
            else:
                found[place][kind] += size
        for place, kind in {key[:2] for key in owned}:
            found[place][kind] += max(size for key, size in owned.items() if key[:2] == (place, kind))
        return found


def _largest_share(plan, once, seconds):
    """Of what updates take, the part of the device that owns most of them (zero.level)."""
    if plan.zero is None:
        return 1.0
    by_owner, rest = collections.Counter(), 0.0
    for name in once:
        if name in plan.zero.owners:
            by_owner[plan.zero.owners[name]] += seconds(name)
        else:
            rest += seconds(name)
    total = rest + sum(by_owner.values())
    return (rest + max(by_owner.values() or [0.0])) / total if total else 1.0
