"""The value that everything works on: a graph with what is known of it, from capture to what a worker runs."""

import collections
from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from epl.graph.index import Graph, parse_input
from epl.program.placement import OWN, WHOLE, Placement
from epl.program.specs import TensorSpec

# A gradient: `values` is the tensor of a dense one; a sparse one (IndexedSlices) has `indices` besides.
Gradient = collections.namedtuple("Gradient", "values indices")


@dataclass(frozen=True)
class TaskGraph:
    """What one strategy scope holds.

    Attributes:
      index: its number, in order of first use.
      kind: "replicate" or "split".
      device_count: devices that one copy of it computes on.
      name: the scope's name, or None.
      where: "file:line" where the scope stands in the user's program.
    """

    index: int
    kind: str
    device_count: int
    name: Optional[str] = None
    where: str = ""


@dataclass(frozen=True)
class Added:
    """What is known of a variable that a pass has added. `global_variables()` of the user's graph does not show it.

    Attributes:
      beside: a variable of the user's. When that gets its first value or one of a checkpoint, this one does so too.
      data: its Placement over the copies of the model: WHOLE, all hold the same; or OWN, each rank keeps a value of its
        own, or each worker where its copies of the model have one together: it is never sent or compared.
      is_saved: checkpoints that hold `beside` hold it too; of what is a worker's own, each worker's along a first
        dimension (not of what each of its copies of the model has). One without it gives it its first value.
    """

    beside: str
    data: Placement = WHOLE
    is_saved: bool = True


@dataclass(frozen=True)
class RowsOf:
    """Which rows of a variable another one holds while an optimizer updates them; between steps there is none of it.

    Attributes:
      variable: name of the whole.
      begin: the first row.
    """

    variable: str
    begin: int


@dataclass(frozen=True)
class Variable:
    """A variable of the user's graph, or one that a pass has added.

    Attributes:
      name: its operation (VariableV2 or VarHandleOp).
      dtype: DataType number.
      shape: tuple of ints, -1 where unknown; None when the rank is unknown.
      initializers: names of the operations that give it its first value.
      is_local: in the collection of local variables (metrics' totals and the like).
      is_metric: in the collection of metrics' variables: all data seen adds to it.
      is_trainable: in the collection of trainable variables.
      added: the Added of a variable that a pass has made; None for the user's.
      rows_of: the RowsOf of one that a pass has made for an update of some rows; None for all others.
      update: of a shard of rows that a pass has made, the nodes that make its update, and give it its rows first where
        it has these for an update alone.
    """

    name: str
    dtype: int
    shape: Optional[Tuple[int, ...]]
    initializers: Tuple[str, ...] = ()
    is_local: bool = False
    is_metric: bool = False
    is_trainable: bool = False
    added: Optional[Added] = None
    rows_of: Optional[RowsOf] = None
    update: FrozenSet[str] = frozenset()

    @property
    def is_own(self):
        """Whether each rank keeps a value of its own."""
        return self.added is not None and self.added.data == OWN

    @property
    def is_gathered(self):
        """Whether checkpoints hold all workers' values of it."""
        return self.is_own and self.added.is_saved


@dataclass(frozen=True)
class ApplyCall:
    """One call of `apply_gradients`, or one of tf.gradients whose results the program assigns to variables itself.

    Attributes:
      index: its number in the graph.
      optimizer: class name; for assignments that the program makes itself, a word for that.
      gradients: (Gradient, variable's operation) pairs; pairs without a gradient are left out.
      between: for the program's own assignments, these and all that leads to them from any gradient; None for
        `apply_gradients`.
    """

    index: int
    optimizer: str
    gradients: Tuple[Tuple[Gradient, str], ...]
    between: Optional[FrozenSet[str]] = None


# A gradient of a variable as tensor, and the tensor that is the same without recomputation; where devices divide them,
# the nodes that hand both on whole.
CheckedGradient = collections.namedtuple("CheckedGradient", "variable tensor without whole")
CheckedGradient.__new__.__defaults__ = ((),)


@dataclass(frozen=True)
class FoundInf:
    """Where a program says whether all gradients that are judged together are finite.

    Attributes:
      flags: the nodes that say it of one gradient each.
      packed: the node that puts these into a vector.
      gates: each operation that is left out where one is not, to the nodes that stand around it; the last of them has
        run in both cases.
      taken, left_out: nodes of which one runs in a step: where all gradients are finite, and where one is not.
      adapted: the node that has run when the loss scale is that of the next step; None where it stays.
    """

    flags: Tuple[str, ...]
    packed: str
    gates: Dict[str, Tuple[str, ...]]
    taken: str
    left_out: str
    adapted: Optional[str] = None


@dataclass(frozen=True)
class RowSum:
    """What an update makes of all rows of a variable whose rows are divided, such as a norm's square.

    Attributes:
      joined: the node that adds up what is known of each shard, which all of their updates take.
      parts: the nodes that say it of one shard each.
      dtype: DataType number.
      shape: of the sum.
    """

    joined: str
    parts: Tuple[str, ...]
    dtype: int
    shape: Tuple[int, ...] = ()


# Of a gradient that the loss scale has been taken off: the float32 tensor with it, and what that is multiplied by.
Unscaled = collections.namedtuple("Unscaled", "scaled inverse")


@dataclass(frozen=True)
class Compressed:
    """A gradient of which workers send the largest parts only, and what they keep for that (dgc.sparsity).

    Attributes:
      gradient: canonical tensor name.
      update: the operation of the optimizer that takes it.
      slot: the variable that holds the optimizer's own velocity.
      call: number of the ApplyCall.
      num_elements: of the gradient.
      velocity, residual: variables of each worker; `steps` counts for all gradients of the call.
    """

    gradient: str
    update: str
    slot: str
    call: int
    num_elements: int
    velocity: str
    residual: str
    steps: str


@dataclass(frozen=True)
class Coded:
    """A gradient that travels in fewer bits, and what that leaves over (communication.wire_dtype).

    Attributes:
      gradient: canonical tensor name.
      variable: of which it is the gradient.
      shape, num_elements: of both, or of the shard rank's part.
      residual: the variable of each worker that holds what is left over of its gradient.
      residual_of_sum: what is left over of the sum of the share of elements that the worker adds up.
      shard_rank: of the devices that have such parts of a variable (epl.split), whose gradient it is; None: of the
        whole.
    """

    gradient: str
    variable: str
    shape: Tuple[int, ...]
    num_elements: int
    residual: str
    residual_of_sum: str
    shard_rank: Optional[int] = None

    def share(self, workers):
        """Elements of the largest share where so many workers add up one each."""
        return -(-self.num_elements // workers)


@dataclass(frozen=True)
class SixteenBits:
    """What a program computes in, with amp.level.

    Attributes:
      name: "bfloat16" or "float16".
      why: in words, to stand behind the name; "" where the configuration names it.
    """

    name: str
    why: str = ""

    def __str__(self):
        return "%s, as %s" % (self.name, self.why) if self.why else self.name


@dataclass(frozen=True)
class MergePoints:
    """What copies of a model that is to be divided merge, by the nodes that stand for it.

    Attributes:
      gradients: (ApplyCall, Gradient of the nodes for its tensors, variable) of each.
      state: the epl.plan.sync.state.StateGroups of which the values are such nodes.
      outputs: tensor of a collection (epl.GraphKeys) to its node.
      whole: nodes of what can be merged only where it is whole.
      norms: what batch normalisation synchronises, as in an epl.plan.plan.Plan: of means, the tensors are such nodes.
    """

    gradients: Tuple[Tuple[ApplyCall, Gradient, str], ...] = ()
    state: Tuple = ()
    outputs: Dict[str, str] = field(default_factory=dict)
    whole: Tuple[str, ...] = ()
    norms: Tuple = ()


# What a graph that does not train is for: one copy of the model computes it, in the one process that runs it, or in
# each worker on data of its own.
ALONE, EACH_WORKER = "alone", "each worker"

# Collections of `merges`: what is merged as a mean over all workers, and losses, which are merged as what they are.
MEANS, LOSSES = "global_mean_objects", "global_loss_objects"


@dataclass(frozen=True)
class Program:
    """A graph and what is known of it: what capture makes of the user's, and what passes make of that.

    All but `graph` speaks of nodes by their names in the user's graph.

    Attributes:
      graph: tagged graph, as it stands.
      taskgraphs: in order of first use.
      variables: by name of their operation.
      apply_calls: in order; the program's own assignments of gradients last.
      computed: (Gradient, operation of what it was taken with respect to) pairs, as tf.gradients returned them.
      gradient_calls: for each of these the number of its call of tf.gradients.
      merges: collection key (epl.GraphKeys) to tensor names.
      role: ALONE, EACH_WORKER, or None for a graph that all copies of the model compute.
      whole_batches: the first copy of the model in each worker computes its batches for all, in one piece, and the
        others only make their part of the updates.
      checkpoints: names of the tensors that the user wants to be kept for the backward pass.
      sixteen_bits: the SixteenBits with amp.level, else None.
      scaled: the FoundInfs on gradients, which are judged once they are aggregated where tf.gradients returned them;
        none where the loss is not scaled.
      unscaled: tensor that tf.gradients returned to its Unscaled; not those that a branch of control flow v1 returns.
      row_sums: the RowSums of updates that are divided by rows.
      short: gradients that are aggregated in 16 bits, by tensor, with their DataType number; the variables are float32.
      compressed: the Compressed gradients; none where there is one worker.
      coded: the Coded gradients; none where there is one worker.
      checked: the CheckedGradients that a session compares in its first step, in the order in which they become ready.
      specs: node to a tuple with the TensorSpec of each output, None where nothing is known of one; see `spec_of`.
      forward_of: node to the operation whose gradient it computes.
      automatic: the epl.plan.pipeline.auto_stages.AutoStages where EPL chose the stages, else None.
      micro_batches: the Unrolled that says which nodes have a copy for each micro-batch; None before the copies.
      plan: the epl.plan.plan.Plan that the passes go by; None before there is one.
      source: the Program for which the plan was made, with one copy of the model; None before that.
      part: the Part that this worker has of the graph of all workers that compute a copy of the model together; None
        where one worker computes it.
      stateful: those of the graph's operation types, functions included, of which TensorFlow says that they keep state.
      partitioned: the epl.partition.partitioned.Partitioned where devices have shards of tensors (epl.split); its graph
        is that of one of them.
      merge_points: the MergePoints of a model that is to be divided and has several copies.
      losses: the epl.plan.sync.loss_terms.Losses of which gradients train, or which are reported.
      loss_sources: tensor of a collection to the one that is merged in its place, of losses whose terms are weighed.
      counts: (tensor, (node, input position)) pairs: what each copy of the model counts in its own rows, and what takes
        the sum over all copies.
      segments: the epl.plan.zero.parameters.Segments in which devices get parameters that others keep; none where each
        has all of them.
      again: node that computes something of the forward pass again to the one that it is a copy of.
      weighed: of tensors that are multiplied by their copies' parts of the batch, (tensor, whether that is for the mean
        over all workers' copies) to the product in the first copy.
      order: collective node to (its number, the node, the communicator of the pool, tag); each number is above those of
        all whose results it needs. Empty before the last pass.
    """

    graph: Graph
    taskgraphs: List[TaskGraph] = field(default_factory=list)
    variables: Dict[str, Variable] = field(default_factory=dict)
    apply_calls: List[ApplyCall] = field(default_factory=list)
    computed: List[Tuple[Gradient, str]] = field(default_factory=list)
    gradient_calls: List[int] = field(default_factory=list)
    merges: Dict[str, List[str]] = field(default_factory=dict)
    role: Optional[str] = None
    whole_batches: bool = False
    checkpoints: List[str] = field(default_factory=list)
    sixteen_bits: Optional[SixteenBits] = None
    scaled: Tuple[FoundInf, ...] = ()
    unscaled: Dict[str, Unscaled] = field(default_factory=dict)
    row_sums: Tuple[RowSum, ...] = ()
    short: Dict[str, int] = field(default_factory=dict)
    compressed: Tuple[Compressed, ...] = ()
    coded: Tuple[Coded, ...] = ()
    checked: Tuple[CheckedGradient, ...] = ()
    specs: Dict[str, Tuple[Optional[TensorSpec], ...]] = field(default_factory=dict)
    forward_of: Dict[str, str] = field(default_factory=dict)
    automatic: Optional[Any] = None
    micro_batches: Optional[Any] = None
    stateful: FrozenSet[str] = frozenset()
    plan: Optional[Any] = None
    source: Optional["Program"] = None
    part: Optional[Any] = None
    partitioned: Optional[Any] = None
    merge_points: Optional[MergePoints] = None
    losses: Tuple = ()
    loss_sources: Dict[str, str] = field(default_factory=dict)
    counts: Tuple = ()
    segments: Tuple = ()
    again: Dict[str, str] = field(default_factory=dict)
    weighed: Dict[Tuple[str, bool], str] = field(default_factory=dict)
    order: Dict[str, Tuple[int, str, int, int]] = field(default_factory=dict)

    @property
    def whole(self):
        """The graph of all workers that compute a copy of the model together."""
        return self.graph if self.part is None else self.part.whole

    def has(self, name):
        """Whether this worker has a node of `whole`."""
        return self.part is None or self.part.is_here(name)

    def spec_of(self, tensor):
        """The TensorSpec of a tensor of the one copy of the model, by name; None where nothing is known of it."""
        name, index = parse_input(tensor)
        specs = self.specs.get(name, ())
        return specs[index] if index < len(specs) else None

    def forward_op(self, name):
        """The operation whose gradient a node computes, or None."""
        return self.forward_of.get(name)

    def with_graph(self, graph):
        """The same with another graph; the same object for the same graph."""
        return self if graph is self.graph else replace(self, graph=graph)
