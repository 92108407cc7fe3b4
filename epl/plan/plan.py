"""The plan: everything that is decided before a graph is rewritten, as plain data that prints and compares.

`stage_of`, `owners`, `keepers` and `staying` are decisions about the nodes of the user's graph, by name, so that what
is exchanged can be listed and priced before any node is copied. No pass changes them; what a pass adds has tags that
say which workers have it (epl.graph.tags). Once there are copies for micro-batches, epl.plan.pipeline.copied gives a
plan that says of them what it says of their originals.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Dict, FrozenSet, Optional, Tuple

from epl.cluster.machine import Link
from epl.graph import types
from epl.graph.index import node_of
from epl.partition.partitioned import Partitioned
from epl.plan.exchange.collectives import collectives_of
from epl.plan.facts.analysis import Analysis
from epl.plan.facts.user_collectives import UserCollective
from epl.plan.input.data import DataPlan
from epl.plan.input.equal_steps import Repeated
from epl.plan.input.positions import Position
from epl.plan.input.prefetch import Prefetched
from epl.plan.layout.mesh import AXES, DATA, STAGE, Mesh
from epl.plan.memory.apply_groups import ApplyGroup
from epl.plan.pipeline.micro_batches import MicroBatches
from epl.plan.sync.dgc import Dgc
from epl.plan.sync.gradients import Aggregation
from epl.plan.sync.local_sgd import LocalSgd
from epl.plan.sync.outputs import Merge
from epl.plan.sync.state import StateGroup
from epl.plan.sync.wire_types import Wire
from epl.plan.zero.zero import Zero, stays_in_workers
from epl.program.collective import AVERAGES, GRADIENTS, PARAMETERS
from epl.program.placement import EVERYWHERE, WHOLE, Placed
from epl.program.program import FoundInf, Variable


@dataclass(frozen=True)
class Plan:
    """What every pass works from.

    Attributes:
      mesh: where what is computed, and who communicates.
      analysis: facts about the user's graph.
      variables: by name.
      aggregation: gradients.
      state: merged changes of other variables, of each micro-batch.
      merges: merged outputs.
      reduce_method: how gradients of replicas are combined (communication.gradients_reduce_method).
      wire_fp16: float32 gradients travel as float16, multiplied by fp16_scale.
      sparse_as_dense: IndexedSlices travel as dense tensors.
      stage_of: node to stage, for models of several stages.
      user_collectives: those that the user's graph itself holds (epl.ops).
      data: how input is divided over workers.
      prefetched: data sets whose batches are on their devices before the steps that use them.
      positions: data sets of which checkpoints keep how far they have been read.
      batch_norms: what batch normalisation synchronises over instances (SyncedMean, SyncedNorm), of each micro-batch.
      micro_batches: how a training step is divided; None where it has one micro-batch.
      owners: node to the one worker of a pipeline that computes it, or its first copy, by its place in `mesh.pipeline`;
        all of them compute the others. Empty where each worker computes whole copies of the model. See `owner`.
      keepers: node to the one worker that computes it of those that share the optimizers' state, by its place in
        `zero.shard_group`; all of these compute the others. Empty where each worker has all of the state of its stages.
      staying: those of which one worker has all copies, though those of its stage may be in several.
      link: what the sizes of gradient groups follow from; None where they follow from the configuration, or where there
        are no dense gradients that travel between workers.
      job_seed: a number that all workers share and that differs from job to job.
      compares_copies: all copies of the variables that are the same are compared now and then
        (communication.check_replicas_every).
      collectives_on_gpu: whether NCCL connects the workers, so that collectives may take and give tensors on GPUs.
      placements: variable to its Placed; those that are not in it are the same everywhere, see `placed`.
      local_sgd: when the copies' variables are averaged, if that is done in the place of gradients and state.
      io_autotune: TensorFlow chooses how parallel data sets are.
      io_stats: how long steps wait for data is measured.
      num_apply_group: groups in which each optimizer makes its updates, one after the other.
      apply_groups: these, known once gradients are aggregated.
      dgc: how gradients are compressed; None where they are not.
      wire: which gradients travel in fewer bits; None where all travel as they are.
      bounds_clusters: XLA compiles nothing that waits for other workers.
      zero: how optimizers' state is divided over the copies of the model; None where each has all of it.
      found_infs: on whether gradients are finite, where the loss is scaled.
      steps_per_run: training steps that one call of a session makes.
      saves_beside: checkpoints are written beside training (checkpoint.async).
      strategies: the epl.plan.report.strategy_rows.Strategies that are in force.
      partitioned: the epl.partition.partitioned.Partitioned of a model that is split; None for others.
      borders: tensor to how it comes to a stage with another number of devices, see epl.plan.pipeline.borders.
      decisions: name of the function that has decided (epl.compiler.FEATURES) to what was done to the one copy of the
        model before.
    """

    mesh: Mesh
    analysis: Analysis
    variables: Dict[str, Variable]
    aggregation: Aggregation
    state: Tuple[StateGroup, ...]
    merges: Tuple[Merge, ...]
    reduce_method: str
    wire_fp16: bool
    fp16_scale: float
    sparse_as_dense: bool
    stage_of: Dict[str, int]
    user_collectives: Tuple[UserCollective, ...] = ()
    data: DataPlan = DataPlan()
    repeated: Tuple[Repeated, ...] = ()
    prefetched: Tuple[Prefetched, ...] = ()
    positions: Tuple[Position, ...] = ()
    batch_norms: Tuple = ()
    micro_batches: Optional[MicroBatches] = None
    owners: Dict[str, int] = field(default_factory=dict)
    keepers: Dict[str, int] = field(default_factory=dict)
    staying: FrozenSet[str] = frozenset()
    link: Optional[Link] = None
    job_seed: int = 0
    collectives_on_gpu: bool = False
    compares_copies: bool = False
    placements: Dict[str, Placed] = field(default_factory=dict)
    local_sgd: Optional[LocalSgd] = None
    io_stats: bool = False
    io_autotune: bool = False
    num_apply_group: int = 1
    apply_groups: Tuple[Tuple[ApplyGroup, ...], ...] = ()
    dgc: Optional[Dgc] = None
    wire: Optional[Wire] = None
    bounds_clusters: bool = False
    zero: Optional[Zero] = None
    found_infs: Tuple[FoundInf, ...] = ()
    steps_per_run: int = 1
    saves_beside: bool = False
    strategies: Tuple = ()
    partitioned: Optional[Partitioned] = None
    borders: Dict[str, str] = field(default_factory=dict)
    decisions: Dict[str, object] = field(default_factory=dict)

    @property
    def reduce_mean(self):
        """Whether gradients are averaged over replicas; else they are summed."""
        return self.reduce_method != "sum"

    @property
    def added(self):
        """The Variables that passes have added."""
        return [variable for variable in self.variables.values() if variable.added is not None]

    def placed(self, variable):
        """Where a variable is: its Placed."""
        return self.placements.get(variable, EVERYWHERE)

    def is_sent(self, name):
        """Whether a name is that of a variable that others are given."""
        return name in self.variables and self.placed(name).is_sent

    @property
    def compared(self):
        """The variables of which all copies are compared, as they are to be the same."""
        if not self.compares_copies:
            return frozenset()
        whole = (v for v in self.variables.values() if self.placed(v.name).data == WHOLE)
        return frozenset(v.name for v in whole if types.base(v.dtype) != types.STRING)

    @property
    def averaged(self):
        """The variables of which each copy of the model has its own value until these are averaged (local_sgd)."""
        return frozenset(name for name, placed in self.placements.items() if placed.data.kind == "partial")

    @property
    def gathered(self):
        """Names of the variables of which each worker has a value of its own, and checkpoints all of them."""
        return tuple(variable.name for variable in self.added if variable.is_gathered)

    @property
    def gathered_scale(self):
        """What these are multiplied by in checkpoints: the mean of what all workers keep back of gradients is then
        what the aggregates lack, whatever number of workers and devices there is."""
        return self.gradient_scale * self.mesh.copies.num_workers

    @property
    def saves_together(self):
        """Whether worker 0 needs the others to write a checkpoint."""
        return self.shards_span_workers or bool(self.gathered)

    def stage(self, name):
        """The stage of a node, or of a tensor's node."""
        return self.stage_of.get(node_of(name), 0)

    def instances_with(self, name):
        """The instances of this worker that have a copy of a node, a variable say; the first one always has."""
        if name not in self.analysis.cloned:
            return self.mesh.instances[:1]
        if self.is_owned(name):
            return self.mesh.instances[: self.zero.num_owned]
        return self.mesh.computing(self.stage_of.get(name, 0)) if self.stage_of else self.mesh.instances

    def is_owned(self, name):
        """Whether one copy of the model alone computes a node for all (zero.level)."""
        return self.zero is not None and name in self.zero.owners

    def copy_for(self, name, index):
        """The index of the instance after which the copy of a node is named that an instance of this worker takes."""
        if name not in self.analysis.cloned:
            return 0
        return self.zero.number_for(index) if self.is_owned(name) else index

    def num_copies(self, tensor):
        """How many copies of what makes a tensor all workers have, of those that hold the same."""
        return self.mesh.num_merged(self.stage(tensor))

    @property
    def shards_span_workers(self):
        """Whether several workers divide the tensors of one copy of the model."""
        return self.partitioned is not None and self.mesh.tensor_group.num_workers > 1

    def spans_workers(self, variable):
        """Whether several workers have a shard each of a variable, so that none has all of it."""
        return self.shards_span_workers and self.placed(variable).is_divided

    def shard_of(self, variable, index):
        """The number of the shard that an instance of this worker, given by its own, has of a variable; 0 of one that
        each has whole."""
        return self.mesh.instances[index].shard if self.placed(variable).is_divided else 0

    def shard_ranks_of(self, variable):
        """The shard ranks of this worker that have a shard each of a variable; [None] where each instance has all of
        it."""
        return range(self.mesh.shard_ranks) if self.placed(variable).is_divided else [None]

    @property
    def shares_among_workers(self):
        """Whether several workers divide the state of optimizers, so that one alone computes what `keepers` has."""
        return self.zero is not None and self.zero.shard_group.num_workers > 1

    @property
    def owning_group(self):
        """The Group of the workers over which `owners` and `keepers` divide what is computed: those of a row for each
        keeper, one after the other, with the places of a pipeline in each."""
        if not self.shares_among_workers:
            return self.mesh.pipeline
        if self.mesh.pipeline.num_workers == 1:
            return self.zero.shard_group
        return self.mesh.group(*(DATA, STAGE) if self.mesh.split else AXES)

    def only_holder(self, variable):
        """The one worker that has a variable, or that of the first copy of a pipeline where each copy has it, or the
        first of those that have parts of the owner's copy of the model; None: all have it, or parts."""
        placed, first = self.placed(variable), 0
        if self.is_kept(variable):
            first = self.mesh.copies.workers[placed.data.rank // self.zero.shard_group.local]
            first -= self.mesh.tensor_group.index * self.mesh.pipeline_workers if self.shards_span_workers else 0
        elif placed.stage.kind != "owned":
            return None
        return (
            first - first % self.mesh.pipeline_workers + max(0, placed.stage.rank)
            if self.mesh.pipeline_workers > 1
            else first
        )

    def is_kept(self, variable):
        """Whether one alone of the workers that share the optimizers' state has a variable."""
        return self.placed(variable).data.kind == "owned" and not stays_in_workers(self.zero, self.mesh)

    def owner(self, name, instance):
        """The place in `mesh.pipeline` of the one worker that computes an instance's copy of a node; None: all do."""
        owner = self.owners.get(name)
        if owner is None or name in self.staying or not self.mesh.is_spread:
            return owner
        return self.mesh.worker_of(self.stage(name), instance)

    def instances_here(self, name):
        """The instances of which this worker computes the copy of a node, alone or as all workers of a pipeline do."""
        here = self.mesh.pipeline.index
        return [i for i in self.instances_with(name) if self.owner(name, i) in (None, here)]

    def is_here(self, name):
        """True for a node of the user's of which this worker computes a copy, alone or as all workers do."""
        return self.has_stage(name) and (name not in self.keepers or self.keepers[name] == self.zero.shard_group.index)

    def has_stage(self, name):
        """True for a node of a stage that this worker has, and for what all workers of a pipeline have."""
        owner = self.owners.get(name)
        if owner is None or owner == self.mesh.pipeline.index:
            return True
        return self.mesh.is_spread and bool(self.instances_here(name))

    @property
    def elsewhere(self):
        """Names of the nodes of which this worker computes no copy."""
        here, spread = self.mesh.pipeline.index, self.mesh.is_spread
        found = {name for name, owner in self.owners.items() if owner != here and not (spread and self.has_stage(name))}
        if self.keepers:
            own = self.zero.shard_group.index
            found.update(name for name, keeper in self.keepers.items() if keeper != own)
        return found

    def is_spread(self, name):
        """Whether copies of a node, of those that one worker of a pipeline would have, lie in several."""
        return name in self.owners and len({self.owner(name, i) for i in self.instances_with(name)}) > 1

    def group_of(self, name):
        """The Group of the copies that hold the same of a node, or of a tensor's node."""
        return self.mesh.holding(self.stage(name))

    @property
    def gradient_scale(self):
        """What the sum of all instances' gradients is multiplied by, where all stages have as many devices."""
        return self._gradient_scale(0)

    def gradient_scale_of(self, gradient):
        """The same for a gradient by its tensor's name, as it depends on the devices of the stage that computes it."""
        return self._gradient_scale(self.stage(gradient))

    def _gradient_scale(self, stage):
        mesh = self.mesh
        if self.reduce_mean or mesh.whole:
            return 1.0 / (mesh.num_merged(stage) if self.reduce_mean else 1)
        return float(mesh.span(stage)) / (1 if mesh.split else mesh.num_shards)

    def bytes_per_step(self):
        """Bytes of tensors that one worker hands to collectives in one training step, on average in the long run."""
        return self.sent_bytes(GRADIENTS, PARAMETERS, AVERAGES)

    def sent_bytes(self, *purposes):
        """The same of the collectives for some purposes (epl.program.collective)."""
        sent = [each for each in self.collectives if each.purpose in purposes and each.takes_part and each.workers > 1]
        return int(sum(each.bytes_per_step for each in sent))

    @property
    def collectives(self):
        """The epl.program.collective.Collectives of a step: all that ranks exchange, as far as a plan tells it."""
        if "_collectives" not in self.__dict__:
            self.__dict__["_collectives"] = collectives_of(self)  # made once; a plan does not change
        return self.__dict__["_collectives"]

    def collective(self, name):
        """One of them, by its node."""
        if "_by_name" not in self.__dict__:
            self.__dict__["_by_name"] = {each.name: each for each in self.collectives}
        return self.__dict__["_by_name"][name]

    def summary(self):
        """A dict of the plan's facts that can be saved as JSON."""
        return {
            "mesh": dict(asdict(self.mesh), axes=self.mesh.shape),
            "replicas": self.mesh.shape[DATA],
            "variables": {name: str(placed) for name, placed in sorted(self.placements.items())},
            "gradient_groups": [asdict(g) for g in self.aggregation.groups],
            "sparse_gradients": [asdict(g) for g in self.aggregation.sparse],
            "bytes_per_step": self.bytes_per_step(),
            "link": asdict(self.link) if self.link is not None else None,
            "strategies": [asdict(strategy) for strategy in self.strategies],
            "local_sgd": asdict(self.local_sgd) if self.local_sgd is not None else None,
            "data": self.data.told(),
        }

    def to_json(self):
        return json.dumps(self.summary(), indent=2, sort_keys=True)
