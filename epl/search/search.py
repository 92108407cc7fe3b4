"""The search: all choices at a first glance, the best of them as real plans, and the best of these."""

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any, Dict, Optional, Tuple

from epl import compiler
from epl.cluster.cluster import Cluster
from epl.cluster.machine import machine as machine_of
from epl.cluster.machine import measured
from epl.errors import CaptureError, ConfigError, PlanError, UnsupportedError
from epl.plan.estimate.estimate import Estimate, estimate
from epl.plan.input.batch_rows import open_rows, rows_of_data
from epl.plan.pipeline.auto_stages import plan_stages
from epl.plan.sync.batch_norm import statistics_of
from epl.plan.text import bytes_text
from epl.program.target import Target
from epl.rules import effects
from epl.search.quick import Quick, line_of
from epl.search.space import CHOSEN, ONE_F_ONE_B, Choice, Space, own_layout

_LOG = logging.getLogger("epl")
_MIB = 1 << 20

# Real plans that are made: so many operations of the model together, but no fewer and no more than these.
_OPERATIONS, _FEWEST, _MOST = 160000, 8, 24
# Of them, so many of one kind of plan, in the first round.
_OF_A_KIND = 3
# Estimates are not so exact that plans as close as this differ: the simpler one is taken.
_AS_GOOD = 0.01
_REFUSALS = (CaptureError, ConfigError, PlanError, UnsupportedError)


@dataclass(frozen=True)
class Priced:
    """A plan that was made.

    Attributes:
      choice: its Choice.
      values: dict of keys to values that make it.
      estimate: its Estimate; None of one that is refused.
      row_s: seconds a step for each row, or for each micro-batch of a copy where rows are not known.
      refused: why it is; None of others.
    """

    choice: Choice
    values: Dict[str, Any]
    estimate: Optional[Estimate] = None
    row_s: float = float("inf")
    refused: Optional[str] = None

    @property
    def peak_bytes(self):
        return self.estimate.fullest.peak_bytes


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
      machine: name of the Machine by which plans were priced.
      limit_bytes: that a device has; None: nobody knows.
      total_rows: of a step, where the program leaves them open; else None.
      num_choices: how many were looked at.
      plans: the Priced that were made, best first: those that fit by time, others by bytes, refused ones last.
    """

    machine: str
    limit_bytes: Optional[int]
    total_rows: Optional[int]
    num_choices: int
    plans: Tuple[Priced, ...]

    @property
    def best(self):
        return self.plans[0]

    def fits(self, plan):
        """Whether a Priced has room on its devices."""
        return plan.refused is None and (self.limit_bytes is None or plan.peak_bytes <= self.limit_bytes)

    @property
    def pareto(self):
        """Those of `plans` that no other one beats in both time and bytes, by time."""
        found, least = [], float("inf")
        for plan in sorted((p for p in self.plans if p.refused is None), key=lambda p: (p.row_s, p.peak_bytes)):
            if plan.peak_bytes < least:
                found.append(plan)
                least = plan.peak_bytes
        return found

    def why_not(self, plan):
        """Why a plan was not chosen, in words; "chosen" for the best."""
        if plan is self.best:
            return "chosen"
        if plan.refused is not None:
            return "refused: %s" % plan.refused
        if not self.fits(plan):
            return "does not fit: %s too much" % bytes_text(plan.peak_bytes - self.limit_bytes)
        if plan.choice.offload and not self.best.choice.offload:
            return "offload is for what does not fit otherwise"
        number = next((number for number, other in enumerate(self.plans) if self._dominates(other, plan)), None)
        if number is not None:
            return "dominated by %d" % (number + 1)
        if abs(plan.row_s / self.best.row_s - 1) <= _AS_GOOD:
            return "no more than %.0f %% faster or slower" % (100 * _AS_GOOD)
        return "%.0f %% slower" % (100 * (plan.row_s / self.best.row_s - 1))

    def _dominates(self, one, other):
        """Whether a plan that could have been chosen is better than another one in time or bytes, and in none worse."""
        if not self.fits(one) or bool(one.choice.offload) != bool(self.best.choice.offload):
            return False
        costs, others = (one.row_s, one.peak_bytes), (other.row_s, other.peak_bytes)
        return costs != others and all(cost <= than for cost, than in zip(costs, others))


def machine_for(config, cluster):
    """The Machine by which a search prices plans: `cluster.machine`, or what was measured on this hardware; else the
    cluster's, and of one without GPUs "CPU"."""
    if config.cluster.machine:
        return cluster.machine
    return measured() or (machine_of("CPU") if cluster.device_type == "CPU" else cluster.machine)


def asks(config):
    """Whether a configuration may have EPL choose a plan, whatever the program is."""
    return config.auto.search or (config.auto.auto_parallel and config.pipeline.num_stages is None)


def is_wanted(program, config, cluster):
    """Whether a plan is to be chosen for a captured Program: it trains, and there is something to choose."""
    if not program.apply_calls or not (config.auto.search or not program.taskgraphs and asks(config)):
        return False
    return cluster.total_gpu_num > 1 or bool(config.auto.memory_limit_mb)


def search(program, config, cluster, machine, batch=None, limit_bytes=None, plans=None):
    """Looks for the plan of which a step takes least, by estimate, of those that fit.

    What the configuration's dict, file or environment says of a key, and the program's scopes, stay as they are. The
    same is found everywhere and at any time: nothing depends on how long it takes.

    Args:
      program: a captured Program.
      config, cluster: what plans are made for.
      machine: the Machine by which they are priced; they are made by the cluster's.
      batch: rows of a step over all devices, where the program leaves them open; None: `auto.batch`.
      limit_bytes: of a device; None: `auto.memory_limit_mb`, else what the Machine says.
      plans: how many real ones are made; None: fewer of larger models.

    Returns:
      A Found.

    Raises:
      PlanError: no plan fits, or none can be made; says by how much, or why, and what would help. Or rows are unknown.
    """
    with _quiet():
        return _Search(program, config, cluster, machine, batch, limit_bytes, plans).found()


def values_of(best, config):
    """dict of the keys of `CHOSEN` that make a Priced of a configuration, but for those that it has anyway."""
    own = config.to_dict()
    return {name: value for name, value in best.values.items() if value != own[name] or name in config.given}


@contextlib.contextmanager
def _quiet():
    """Without what plans say in the log while they are made."""
    before = _LOG.level
    _LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _LOG.setLevel(before)


class _Search(object):
    def __init__(self, program, config, cluster, machine, batch, limit_bytes, plans):
        self._program, self._config, self._cluster, self._machine = program, config, cluster, machine
        self._limit = limit_bytes or _limit(config, cluster, machine)
        # Rows that the program takes by itself are those of each micro-batch.
        self._total_rows = None if rows_of_data(program.graph) else _open_rows(program, config, batch)
        own = None
        if program.taskgraphs:
            mesh = compiler.mesh_of_program(program, config, cluster)
            own = own_layout(mesh, config.pipeline.num_chunks)
        fixed = config.given.intersection(CHOSEN)
        if config.auto.auto_parallel and not config.pipeline.num_stages:
            fixed -= {"auto.auto_parallel", "pipeline.num_stages"}  # it asks for a choice
        divides = config.io.slicing or config.io.shard_dataset
        self._space = Space(
            config,
            fixed,
            cluster,
            own,
            self._total_rows,
            self._rounds(own),
            over_workers=divides or cluster.worker_num == 1 or "pipeline.num_stages" in fixed,
            can_amp=config.auto.amp or "amp.level" in fixed,
        )
        self._number = plans or max(_FEWEST, min(_MOST, _OPERATIONS // max(1, len(program.graph.nodes))))
        self._made = {}
        self._too_many = float("inf")  # stages into which the model cannot be cut

    def _rounds(self, own):
        """Micro-batches of all copies in a step, where that many stay."""
        if self._total_rows is not None and not statistics_of(self._program.graph):
            return None
        copies = own[0] if own is not None else self._cluster.total_gpu_num
        return copies * self._config.pipeline.num_micro_batch

    def found(self):
        choices = self._space.choices()
        if not choices:
            self._refuse_layout()
        quick = Quick(self._lines(choices), self._cluster, self._machine)
        first = {choice: quick.of(choice) for choice in choices}
        self._look_at(first)
        plans = list(self._made.values())
        found = Found(self._machine.name, self._limit, self._total_rows, len(choices), ())
        if not any(map(found.fits, plans)):
            self._refuse(plans, quick)
        fitting = sorted(filter(found.fits, plans), key=_rank)
        offload = bool(fitting[0].choice.offload)
        alike = [plan for plan in fitting if bool(plan.choice.offload) == offload]
        as_good = [plan for plan in alike if plan.row_s <= alike[0].row_s * (1 + _AS_GOOD)]
        best = min(as_good, key=lambda plan: (_num_set(plan.choice), plan.row_s))
        too_large = [plan for plan in plans if plan.refused is None and not found.fits(plan)]
        rest = [plan for plan in fitting if plan is not best] + sorted(too_large, key=lambda p: p.peak_bytes)
        return replace(found, plans=tuple([best] + rest + [plan for plan in plans if plan.refused is not None]))

    def _refuse_layout(self):
        """Says why there is nothing to choose from."""
        devices, fixed = self._cluster.total_gpu_num, self._space.fixed
        if not self._space.layouts():
            keys = ", ".join(sorted(fixed.intersection(["pipeline.num_stages", "pipeline.num_chunks"])))
            raise PlanError(
                "No layout has what is set (%s) on %d workers with %d devices each. Stages go over a number of devices "
                "that divides those of a worker, or is a multiple of them. Leave these keys to the search, or use "
                "another number of devices." % (keys, self._cluster.worker_num, self._cluster.gpu_num_per_worker)
            )
        also = ", or leave pipeline.num_micro_batch to the search" if "pipeline.num_micro_batch" in fixed else ""
        raise PlanError(
            "No plan leaves the %s rows of a step as they are on %d devices. Use a number of rows that divides by the "
            "devices (auto.batch, or --batch)%s." % (self._total_rows, devices, also)
        )

    def _lines(self, choices):
        """Lines of one copy of the model: on one device, or as the program's own scopes lay it out."""
        some = next(choice for choice in choices if not choice.zero or "zero.level" in self._space.fixed)
        cluster = self._cluster
        if self._space.own is None:
            cluster = Cluster(device_type=cluster.device_type).with_machine(cluster.machine)
        rows = max(1, (self._total_rows or 1) // self._cluster.total_gpu_num)
        found = {}
        for recomputes, amp in sorted({(choice.recomputes, choice.amp) for choice in choices}):
            plain = replace(some, recomputes=recomputes, amp=amp, stages=1, chunks=1, schedule=ONE_F_ONE_B, offload="")
            try:
                one, two = [
                    self._planned(replace(plain, replicas=1, micro_batches=number, zero="", degree=0), cluster)
                    for number in (1, 2)
                ]
            except _REFUSALS:
                if (False, "") not in found:
                    raise
                found[recomputes, amp] = found[False, ""]  # what is made of it will say why not
                continue
            more = rows if self._total_rows is None else 2 * rows
            first, wider = [estimate(one, cluster, self._machine, each) for each in (rows, more)]
            found[recomputes, amp] = line_of(first, wider, estimate(two, cluster, self._machine, rows), rows, more)
        return found

    def _planned(self, choice, cluster):
        return compiler.planned(self._program, self._config.replaced(self._space.keys(choice)), cluster)

    def _look_at(self, first):
        """Makes real plans of the choices that look best, and then of what differs from the best of these a little."""
        number, limit = self._number, self._limit or float("inf")
        order = sorted(
            first, key=lambda c: (first[c][1] > limit, bool(c.offload), first[c][0], _num_set(c), _as_key(c))
        )
        small = sorted(first, key=lambda choice: (first[choice][1], first[choice][0], _as_key(choice)))
        default = [c for c in order if not (c.zero or c.recomputes or c.offload or c.amp) and c.stages == 1][:1]
        for choice in default + _diverse(order, number // 2):
            self._make(choice)
        for choice in small:
            if choice.stages * choice.chunks < self._too_many:
                self._make(choice)
                break
        while len(self._made) < number:
            best = self._best(limit)
            left = [c for c in order if c not in self._made and c.stages * c.chunks < self._too_many]
            near = [c for c in left if best is not None and _differ(c, best) == 1] or left
            if not near:
                break
            self._make(near[0])
        for choice in small:  # whatever fits is better than nothing
            if self._best(limit) is not None or len(self._made) >= 2 * number:
                break
            self._make(choice)

    def _best(self, limit):
        fit = [p for p in self._made.values() if p.refused is None and p.peak_bytes <= limit]
        return min(fit, key=_rank).choice if fit else None

    def _make(self, choice):
        if choice in self._made or choice.stages * choice.chunks >= self._too_many:
            return
        values = self._space.keys(choice)
        try:
            planned = self._planned(choice, self._cluster)
            found = estimate(planned, self._cluster, self._machine, choice.rows)
        except _REFUSALS as error:
            if self._space.own is None and choice.stages > 1 and not self._can_be_cut(choice):
                self._too_many = choice.stages * choice.chunks
            self._made[choice] = Priced(choice, values, refused=str(error).split(". ")[0].rstrip("."))
            return
        units = choice.replicas * choice.micro_batches * (choice.rows or 1)
        self._made[choice] = Priced(choice, values, found, found.step_s / units)

    def _can_be_cut(self, choice):
        """Whether the model has as many stages; where it has not, it has not more either."""
        try:
            plan_stages(self._program, Target(self._config.replaced(self._space.keys(choice)), self._cluster))
        except _REFUSALS:
            return False
        return True

    def _refuse(self, plans, quick):
        """Says that no plan fits, or that none can be made."""
        made = [plan for plan in plans if plan.refused is None]
        if not made:
            raise PlanError("No plan can be made for this program: %s." % plans[0].refused)
        least = min(made, key=lambda plan: plan.peak_bytes)
        raise PlanError(
            "No plan fits into %s of a device. The smallest (%s: %s) needs %s, which is %s too much. %s"
            % (
                bytes_text(self._limit),
                least.choice.layout,
                least.choice.options,
                bytes_text(least.peak_bytes),
                bytes_text(least.peak_bytes - self._limit),
                self._advice(least, quick),
            )
        )

    def _advice(self, least, quick):
        """What would make a plan fit."""
        found = []
        rows = least.choice.rows
        if rows is not None and rows > 1:
            half = replace(least.choice, rows=rows // 2)
            saved = quick.of(least.choice)[1] - quick.of(half)[1]
            found.append("half the rows in a micro-batch (%s less)" % bytes_text(int(max(0, saved))))
        elif rows is None:
            found.append("smaller batches")
        found.append("more devices")
        kept = sorted(self._space.fixed.difference(["auto.auto_parallel", "amp.level"]))
        if kept:
            found.append("leaving to the search what is set: %s" % ", ".join(kept))
        if not self._space.can_amp:
            found.append("16 bits (auto.amp=True, or --amp), which change numbers")
        return "What would help: %s." % "; ".join(found)


def _limit(config, cluster, machine):
    if config.auto.memory_limit_mb:
        return int(config.auto.memory_limit_mb * _MIB)
    has = machine.device.memory_bytes
    if has and machine.device.cores:  # the memory of the host, which its devices share
        nodes = cluster.nodes
        has //= cluster.gpu_num_per_worker * max(map(nodes.count, set(nodes)))
    return has


def _open_rows(program, config, batch):
    """Rows of a step where what is fed leaves them open; None where nothing is."""
    graph = program.graph
    is_open = any(any(open_rows(graph.nodes[name])) for name in graph.find(_is_data))
    rows = batch or config.auto.batch or None
    if is_open and not rows:
        raise PlanError(
            "This program is fed batches of any size, and which plan is best depends on how many rows there are. Say "
            "how many a training step has over all devices: auto.batch, or --batch of python -m epl.plan --search."
        )
    return rows if is_open else None


def _is_data(op):
    return op in effects.PLACEHOLDERS or op in effects.SOURCES


def _rank(plan):
    """By which plans that fit are compared. An estimate does not count what the host computes, so that those with
    offload are the last."""
    return bool(plan.choice.offload), plan.row_s, plan.peak_bytes


def _num_set(choice):
    """How much of a Choice is what one would not set without a reason."""
    extra = (
        choice.stages > 1,
        choice.chunks > 1,
        choice.zero,
        choice.degree,
        choice.recomputes,
        choice.offload,
        choice.amp,
    )
    return sum(map(bool, extra)) + (choice.schedule != ONE_F_ONE_B)


def _kind(choice):
    return choice.stages, choice.zero, choice.recomputes, choice.offload


def _diverse(order, number):
    """The first of some Choices, but only a few of each kind."""
    found, counts = [], {}
    for choice in order:
        kind = _kind(choice)
        if counts.get(kind, 0) < _OF_A_KIND and len(found) < number:
            counts[kind] = counts.get(kind, 0) + 1
            found.append(choice)
    return found


def _differ(one, other):
    """In how many ways two Choices differ; how rows follow from the rest does not count."""
    pairs = [
        ((one.stages, one.shards), (other.stages, other.shards)),
        ((one.chunks, one.schedule), (other.chunks, other.schedule)),
        (one.micro_batches * one.replicas, other.micro_batches * other.replicas),
        ((one.zero, one.degree), (other.zero, other.degree)),
        (one.recomputes, other.recomputes),
        (one.offload, other.offload),
        (one.amp, other.amp),
    ]
    return sum(a != b for a, b in pairs)


def _as_key(choice):
    """An order of Choices that is the same everywhere."""
    return (choice.stages, choice.chunks, choice.micro_batches, choice.schedule, choice.zero, choice.degree) + (
        choice.recomputes,
        choice.offload,
        choice.amp,
    )
