"""What there is to choose from: every combination of layout and options that leaves the rows of a step as they are."""

import itertools
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from epl.plan.layout.mesh import DATA, SHARD, STAGE

# Keys of configuration that the search chooses, where the user has not set them.
CHOSEN = (
    "auto.auto_parallel",
    "pipeline.num_stages",
    "pipeline.num_chunks",
    "pipeline.num_micro_batch",
    "pipeline.strategy",
    "zero.level",
    "zero.degree",
    "gradient_checkpoint.type",
    "offload.level",
    "amp.level",
)
ONE_F_ONE_B, ZERO_BUBBLE, INTERLEAVED, GPIPE = "PreferBackward", "ZeroBubble", "Interleaved", "PreferForward"
_MOST_STAGES, _MOST_MICRO_BATCHES = 64, 256


@dataclass(frozen=True)
class Choice:
    """One combination.

    Attributes:
      replicas: copies of the model.
      stages: devices of a copy's pipeline; 1: none.
      shards: devices that divide tensors of each stage, as the program marks it.
      chunks: stages on each of them.
      micro_batches, schedule: pipeline.num_micro_batch and pipeline.strategy.
      rows: of a micro-batch of a copy; None where the program does not tell, as all have the same.
      zero, degree: zero.level and zero.degree.
      recomputes: gradient_checkpoint.type="auto".
      offload, amp: offload.level and amp.level.
    """

    replicas: int
    stages: int = 1
    shards: int = 1
    chunks: int = 1
    micro_batches: int = 1
    schedule: str = ONE_F_ONE_B
    rows: Optional[int] = None
    zero: str = ""
    degree: int = 0
    recomputes: bool = False
    offload: str = ""
    amp: str = ""

    @property
    def layout(self):
        """Data x stage x shard, as text."""
        return "%d x %d x %d" % (self.replicas, self.stages, self.shards)

    @property
    def options(self):
        """What else is chosen, in words."""
        found = []
        if self.stages > 1:
            found.append(self.schedule if self.chunks == 1 else "%s, %d chunks" % (self.schedule, self.chunks))
        if self.micro_batches > 1:
            found.append("%d micro-batches" % self.micro_batches)
        if self.zero:
            found.append("ZeRO %s" % self.zero + (" over %d" % self.degree if self.degree else ""))
        if self.recomputes:
            found.append("recomputation")
        if self.offload:
            found.append("offload %s" % self.offload)
        if self.amp:
            found.append("amp %s" % self.amp)
        return ", ".join(found) or "-"


@dataclass(frozen=True)
class Space:
    """What is given, and what may be chosen.

    Attributes:
      config: the user's epl.Config; `fixed`: the names of its keys that stay.
      cluster: an epl.Cluster.
      own: (copies of the model, devices of a copy's pipeline, of each stage) of a program with scopes,
        of which no others are chosen; else None.
      total_rows: of a step over all copies, where the program leaves open how many a micro-batch has; else None.
      num_rounds: micro-batches of all copies in a step, where that many stay: each has as many rows as before.
      over_workers: whether the stages of a copy may lie in several workers. What each of them is fed, or reads, is the
        program's own otherwise, which goes by all of them having whole copies.
      can_amp: whether 16 bits may be chosen, which changes numbers.
    """

    config: Any
    fixed: frozenset
    cluster: Any
    own: Optional[Tuple[int, int, int]]
    total_rows: Optional[int]
    num_rounds: Optional[int]
    over_workers: bool = True
    can_amp: bool = False

    def choices(self):
        """All Choices, a list in an order that depends on nothing but the space."""
        found = []
        for replicas, stages, shards, chunks in self.layouts():
            for micro_batches in self._micro_batches(replicas):
                rows = None if self.total_rows is None else self.total_rows // (replicas * micro_batches)
                schedules = self._schedules(stages, chunks, micro_batches)
                options = itertools.product(
                    schedules, self._zero(replicas, stages), self._recomputes(), self._offload(), self._amp()
                )
                for schedule, (zero, degree), *others in options:
                    place = (replicas, stages, shards, chunks, micro_batches)
                    found.append(Choice(*place, schedule, rows, zero, degree, *others))
        return found

    def keys(self, choice):
        """dict of keys to values that make a Choice of what is given."""
        config = self.config
        cut = self.own is None and choice.stages * choice.chunks > 1
        values = {
            "pipeline.num_chunks": choice.chunks,
            "pipeline.num_micro_batch": choice.micro_batches,
            "pipeline.strategy": choice.schedule,
            "zero.level": choice.zero,
            "zero.degree": choice.degree,
            "gradient_checkpoint.type": _recomputation(config, choice),
            "offload.level": choice.offload,
            "amp.level": choice.amp,
        }
        if self.own is None:
            kept = "auto.auto_parallel" in self.fixed
            values["auto.auto_parallel"] = config.auto.auto_parallel if kept else cut
            values["pipeline.num_stages"] = choice.stages * choice.chunks if values["auto.auto_parallel"] else None
        return values

    def layouts(self):
        """(copies of the model, devices of a pipeline, of each stage, stages on each device)."""
        chunks = self._of("pipeline.num_chunks", (1, 2))
        if self.own is not None:
            return [self.own + (self.config.pipeline.num_chunks,)]
        devices, per_worker = self.cluster.total_gpu_num, self.cluster.gpu_num_per_worker
        may_cut = self.config.auto.auto_parallel or "auto.auto_parallel" not in self.fixed
        found = []
        for stages in range(1, min(devices, _MOST_STAGES if may_cut else 1) + 1):
            fits = not devices % stages and (not per_worker % stages or self.over_workers and not stages % per_worker)
            wanted = self._of("pipeline.num_stages", (None,))[0]
            for number in chunks:
                if fits and (number == 1 or stages > 1) and wanted in (None, stages * number):
                    found.append((devices // stages, stages, 1, number))
        return found

    def _micro_batches(self, replicas):
        numbers = self._of("pipeline.num_micro_batch", [1 << i for i in range(_MOST_MICRO_BATCHES.bit_length())])
        fixed = "pipeline.num_micro_batch" in self.fixed
        if self.num_rounds is not None and not fixed:
            return [self.num_rounds // replicas] if not self.num_rounds % replicas else []
        if self.total_rows is not None:
            return [number for number in numbers if not self.total_rows % (replicas * number)]
        return numbers

    def _schedules(self, stages, chunks, micro_batches):
        if "pipeline.strategy" in self.fixed:
            return [self.config.pipeline.strategy]
        if chunks > 1:
            return [INTERLEAVED] if not micro_batches % stages else []
        return [ONE_F_ONE_B, ZERO_BUBBLE] if stages > 1 and micro_batches > 1 else [ONE_F_ONE_B]

    def _zero(self, replicas, stages):
        if replicas == 1 and "zero.level" not in self.fixed:
            return [("", 0)]
        local = max(1, self.cluster.gpu_num_per_worker // stages)
        degrees = self._of("zero.degree", (0, local) if 1 < local < replicas else (0,))
        levels = self._of("zero.level", ("", "v1", "v2", "v3"))
        return [(level, degree) for level in levels for degree in (degrees if level else degrees[:1])]

    def _recomputes(self):
        if "gradient_checkpoint.type" in self.fixed:
            return [bool(self.config.gradient_checkpoint.type)]
        return [False, True]

    def _offload(self):
        # The memory of CPU devices is that of the host.
        return self._of("offload.level", ("", "v0", "v1") if self.cluster.device_type == "GPU" else ("",))

    def _amp(self):
        return self._of("amp.level", ("", "O1") if self.can_amp else ("",))

    def _of(self, name, values):
        return [self.config.to_dict()[name]] if name in self.fixed else list(values)


def _recomputation(config, choice):
    given = config.gradient_checkpoint.type
    return (given or "auto") if choice.recomputes else ""


def own_layout(mesh, num_chunks) -> Tuple[int, int, int]:
    """(copies of the model, devices of a copy's pipeline, of each stage) of a Mesh."""
    return mesh.shape[DATA], mesh.shape[STAGE] // num_chunks, mesh.shape[SHARD]
