"""Where batch normalisation takes its statistics from the batches of all replicas (communication.sync_batch_norm).

Two forms are known: the kernels FusedBatchNorm*, and the moments over the batch of tf.nn.moments, which
tf.layers.batch_normalization(fused=False) uses. The mean of a loss over equal batches is the loss of the whole batch
only if every replica normalises by the statistics of the whole batch, and if the gradient with respect to those
statistics is summed over the replicas as well (Peng et al., "MegDet", 2018; Ioffe and Szegedy, 2015).

With micro-batches, those of one number are normalised together: each copy of a normalisation exchanges its own
statistics, as if one device worked through micro-batches as large as those of all replicas. Each stage of a pipeline
has a communicator for that, as far as there are any, so that stages do not wait for each other's turn.

Where devices divide the tensors of a copy of the model, each normalises the rows of all of them, all channels or its
part. What is synchronised is found while the model is whole (epl.plan.sync.merge_marks).
"""

import logging
from dataclasses import dataclass, replace
from typing import FrozenSet, Optional, Tuple

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.bodies import Bodies
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.graph.types import FLOAT32, INT64
from epl.plan.facts.merge_points import in_shard_rank, merged_at
from epl.plan.facts.names import PREFIX, micro_batch_name, micro_batch_tensor
from epl.plan.facts.variable_sizes import known_bytes
from epl.program.collective import ALL_GATHER, ALL_REDUCE, STATISTICS, collective
from epl.rules import tensors

_LOG = logging.getLogger("epl")


_FUSED_NORM_GRADIENTS = frozenset(["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"])


@dataclass(frozen=True)
class SyncedMean:
    """A tensor that is replaced by its mean over all instances: a statistic, or the gradient with respect to one.

    Attributes:
      name: of the all-reduce node.
      tensor: canonical name.
      consumers: (node, input position) pairs that must see the mean.
      slot: of the collective.
      phase: of the step: of a statistic, or of a gradient with respect to one.
      num_bytes: of the tensor; None where they are not known.
      micro_batch: whose copy it is.
    """

    name: str
    tensor: str
    consumers: Tuple[Tuple[str, int], ...]
    slot: int = 0
    phase: str = tags.FORWARD
    num_bytes: Optional[int] = None
    micro_batch: int = 0

    def for_micro_batch(self, nodes, micro_batch):
        """The same for the copies of a micro-batch; None where there are none.

        Args:
          nodes: names of those that have copies.
          micro_batch: its number.
        """
        if self.anchor not in nodes:
            return None
        edges = tuple((micro_batch_name(name, micro_batch), p) for name, p in self.consumers if name in nodes)
        own = _synced(micro_batch_tensor(self.tensor, micro_batch), edges, self.phase, self.num_bytes)
        return replace(own, slot=self.slot, micro_batch=micro_batch)

    def collectives(self, plan):
        """Its Collective."""
        each = _collective(plan, self, ALL_REDUCE, self.name, self.anchor, self.num_bytes, self.phase)
        return [replace(each, tensors=(self.tensor,), consumers=self.consumers)]

    @property
    def anchor(self):
        """The node of the user's graph at whose place it stands."""
        return node_of(self.tensor)


@dataclass(frozen=True)
class SyncedNorm:
    """A FusedBatchNorm* and its gradients.

    Attributes:
      node: the forward node.
      gradients: FusedBatchNormGrad* nodes.
      slot: of the collectives.
      num_bytes: of the statistics of all channels, of one instance; None where they are not known.
      micro_batch: whose copy it is.
      divided: those of its nodes of which each device of a copy of the model has some of the channels.
    """

    node: str
    gradients: Tuple[str, ...]
    slot: int = 0
    num_bytes: Optional[int] = None
    micro_batch: int = 0
    divided: FrozenSet[str] = frozenset()

    def for_micro_batch(self, nodes, micro_batch):
        """As for SyncedMean."""
        if self.node not in nodes:
            return None
        gradients = tuple(micro_batch_name(name, micro_batch) for name in self.gradients)
        node = micro_batch_name(self.node, micro_batch)
        divided = frozenset(micro_batch_name(name, micro_batch) for name in self.divided)
        return replace(self, node=node, gradients=gradients, micro_batch=micro_batch, divided=divided)

    def collectives(self, plan):
        """The Collectives of the statistics, and of the gradients."""
        found = []
        for name in (self.node,) + self.gradients:
            operation, phase = (ALL_GATHER, tags.FORWARD) if name == self.node else (ALL_REDUCE, tags.BACKWARD)
            for shard_rank in self.shard_ranks(plan.mesh, name):
                times = len(plan.mesh.givers(shard_rank, plan.stage(name))) if operation == ALL_GATHER else 1
                size = self.num_bytes * times if self.num_bytes is not None else None
                if shard_rank is not None and size is not None:
                    size //= plan.mesh.num_shards
                own = self.collective(name, shard_rank)
                found.append(_collective(plan, self, operation, own, name, size, phase, shard_rank))
        return found

    def shard_ranks(self, mesh, name):
        """The groups of devices that exchange what one of its nodes needs: None, once for all channels, or each shard
        rank (epl.plan.layout.mesh)."""
        return tuple(range(mesh.shard_ranks)) if name in self.divided else (None,)

    @property
    def anchor(self):
        return self.node

    @staticmethod
    def collective(name, shard_rank=None):
        return in_shard_rank("%s_batch_norm/%s" % (PREFIX, name), shard_rank)


def norms_in_slots(norms, stage_of, num_communicators):
    """The same with the slots of their collectives.

    Args:
      norms: of SyncedMean and SyncedNorm.
      stage_of: node to stage, for models of several stages.
      num_communicators: slots of the pool.
    """
    return tuple(replace(each, slot=stage_of.get(each.anchor, 0) % num_communicators) for each in norms)


def norms_at_points(model):
    """What has to be synchronised in a divided model, by its MergePoints."""
    found, placements = [], model.partitioned.placements
    for norm in model.merge_points.norms:
        if isinstance(norm, SyncedMean):
            found.append(replace(norm, tensor=merged_at(model, norm.anchor)))
        else:
            nodes = (norm.node,) + norm.gradients
            divided = frozenset(name for name in nodes if canonical_tensor(format_input(name, 1)) in placements)
            found.append(replace(norm, divided=divided))
    return tuple(found)


def plan_batch_norm(model, analysis):
    """What has to be synchronised in a Program, in order of creation.

    Args:
      model, analysis: the Program and its Analysis.

    Raises:
      UnsupportedError: a batch normalisation stands in a branch, a loop or a function, or its gradient is
        differentiated again.
    """
    graph = model.graph
    bodies = Bodies(graph)
    for body in bodies.functions.values():
        for name in [n for n in body.nodes if _is_fused(body.nodes[n])] + [v for _, v in _moments(body)]:
            _refuse(name, "stands in the function '%s' (of a loop, a branch or a tf.function)" % body.name)
    made_for = {}
    for node in graph.nodes.values():
        if tags.FORWARD_OP in node.attr:
            made_for.setdefault(tags.get_str(node, tags.FORWARD_OP), []).append(node)
    found = []
    for name in graph.in_order(analysis.cloned):
        if _is_fused(graph.nodes[name]):
            found.append(_norm(model, analysis, name))
    for mean, variance in _moments(bodies.main):
        if mean in analysis.cloned and variance in analysis.cloned:
            found.extend(_means(model, analysis, mean, made_for))
            found.extend(_means(model, analysis, variance, made_for))
    statistics = [name for pair in _moments(bodies.main) for name in pair]
    gradients = [node.name for name in statistics for node in made_for.get(name, ())]
    _refuse_second_order(
        graph, gradients + [g for norm in found if isinstance(norm, SyncedNorm) for g in norm.gradients]
    )
    if model.apply_calls and not found:
        _LOG.warning(
            "communication.sync_batch_norm=True, but no batch normalisation in training mode was found in this model"
        )
    return tuple(found)


def statistics_of(graph):
    """Names of the nodes whose results all replicas would have in common: fused normalisations, and moments."""
    fused = graph.find(tensors.FUSED_NORMS.__contains__)
    return frozenset(fused).union(*_moments(Bodies(graph).main))


def _refuse(name, why):
    raise UnsupportedError(
        "communication.sync_batch_norm: the batch normalisation '%s' %s, where workers cannot agree on when it runs. "
        "Build it outside, with a Python boolean for `training`: one graph for training and one for evaluation."
        % (name, why)
    )


def _is_fused(node):
    training = node.attr["is_training"].b if "is_training" in node.attr else True
    return node.op in tensors.FUSED_NORMS and training


def _norm(model, analysis, name):
    graph = model.graph
    node = graph.nodes[name]
    if name in analysis.in_control_flow:
        _refuse(name, "stands in a branch or a loop")
    factor = node.attr["exponential_avg_factor"].f if "exponential_avg_factor" in node.attr else 1.0
    if factor != 1.0:
        raise UnsupportedError(
            "communication.sync_batch_norm: '%s' computes its moving averages by itself (exponential_avg_factor=%g), "
            "which cannot be synchronised. Build it with fused=False." % (name, factor)
        )
    of_mean = known_bytes(model, format_input(name, 1))
    size = 2 * of_mean if of_mean is not None else None  # and as many variances
    return SyncedNorm(name, tuple(graph.in_order(_fused_gradients(graph, name))), num_bytes=size)


def _fused_gradients(graph, name):
    """The gradients that take the mean of a FusedBatchNorm*, be it by way of host memory."""
    found, stack = set(), [(name, 3)]
    while stack:
        producer, index = stack.pop()
        for consumer, position in graph.consumers.get(producer, ()):
            node = graph.nodes[consumer]
            if parse_input(node.input[position]) != (producer, index):
                continue
            if node.op in _FUSED_NORM_GRADIENTS:
                found.add(consumer)
            elif tags.HOST in node.attr:
                stack.append((consumer, 0))
    return found


def _refuse_second_order(graph, gradients):
    """From the gradient of a statistic over operations of the program's own to another backward pass."""
    stops = frozenset(node.name for node in graph.nodes.values() if node.op == "StopGradient")
    behind = graph.descendants(gradients, stop=stops, data_only=True) - stops
    own = [name for name in behind if tags.phase(graph.nodes[name]) == tags.FORWARD]
    again = graph.descendants(own, stop=stops, data_only=True)
    found = [name for name in graph.in_order(again) if tags.phase(graph.nodes[name]) == tags.BACKWARD]
    if found:
        raise UnsupportedError(
            "communication.sync_batch_norm: a gradient that has come through a batch normalisation is differentiated "
            "again (by '%s'; a gradient penalty, say), which cannot be synchronised. Leave batch normalisation out of "
            "that part of the model, or set communication.sync_batch_norm=False." % found[0]
        )


def _moments(body):
    """(mean, variance) nodes of tf.nn.moments over the batch dimension."""
    found = []
    for node in body.nodes.values():
        if node.op != "Mean" or not _over_batch(body, node) or tags.phase(node) != tags.FORWARD:
            continue
        squares = body.producer(node.input[0])
        if squares is None or squares.op != "SquaredDifference":
            continue
        stop = body.producer(squares.input[1])
        mean = body.producer(stop.input[0]) if stop is not None and stop.op == "StopGradient" else None
        if mean is not None and mean.op == "Mean" and _over_batch(body, mean) and mean.input[0] == squares.input[0]:
            found.append((mean.name, node.name))
    return found


def _over_batch(body, mean):
    axes = body.producer(mean.input[1])
    return axes is not None and axes.op == "Const" and 0 in integers(axes.attr["value"].tensor)


def integers(tensor):
    """The numbers of an int32 or int64 TensorProto."""
    wide = tensor.dtype == INT64
    if tensor.tensor_content:
        width = 8 if wide else 4
        content = tensor.tensor_content
        return [int.from_bytes(content[i : i + width], "little", signed=True) for i in range(0, len(content), width)]
    return list(tensor.int64_val if wide else tensor.int_val)


def _means(model, analysis, name, made_for):
    """The statistic, and the gradients with respect to it."""
    graph = model.graph
    if name in analysis.in_control_flow:
        _refuse(name, "stands in a branch or a loop")
    edges = tuple(
        (consumer, position)
        for consumer, position in graph.consumers.get(name, ())
        if parse_input(graph.nodes[consumer].input[position]).index == 0
    )
    statistic = canonical_tensor(format_input(name, 0))
    size = known_bytes(model, statistic)
    found = [_synced(format_input(name, 0), edges, tags.FORWARD, size)]
    incoming = {}
    for node in made_for.get(name, ()):
        for position, text in enumerate(node.input):
            producer = graph.nodes[node_of(text)]
            if text[0] == "^" or tags.phase(producer) != tags.BACKWARD or producer.op == "Const":
                continue
            if tags.get_str(producer, tags.FORWARD_OP) != name:
                incoming.setdefault(canonical_tensor(text), []).append((node.name, position))
    return found + [_synced(tensor, tuple(edges), tags.BACKWARD, size) for tensor, edges in incoming.items()]


def _synced(tensor, consumers, phase, num_bytes):
    name = "%s_batch_norm/%s/of_%s" % (PREFIX, tensor.replace(":", "/"), consumers[0][0] if consumers else "none")
    return SyncedMean(name, tensor, consumers, phase=phase, num_bytes=num_bytes)


def norm_collectives(plan):
    """The Collectives of what a Plan's batch normalisations synchronise."""
    return [each for norm in plan.batch_norms for each in norm.collectives(plan)]


def _collective(plan, norm, operation, name, node, num_bytes, phase, shard_rank=None):
    return collective(
        name,
        operation,
        STATISTICS,
        (node,),
        plan.group_of(node),
        norm.slot,
        num_bytes,
        FLOAT32,
        phase,
        shard_rank=shard_rank,
        stage=plan.stage(node),
        micro_batch=norm.micro_batch,
        takes_part=plan.has_stage(node),
    )
