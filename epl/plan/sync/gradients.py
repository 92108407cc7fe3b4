"""Which gradients are aggregated where, and in which groups."""

import logging
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.graph.types import FLOAT16, FLOAT32
from epl.plan.cost.group_sizes import num_groups
from epl.plan.facts.consistency import differing
from epl.plan.facts.merge_points import in_shard_rank, merged_at, shard_ranks_at
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import cut_evenly, num_elements, size_bytes
from epl.program.collective import ALL_GATHER, ALL_REDUCE, GRADIENTS, SPARSE, collective
from epl.program.program import Gradient
from epl.rules import effects

_LOG = logging.getLogger("epl")

_MIB = 1 << 20

# Operations that make the mean of clipped gradients differ from the clipped mean.
_NOT_LINEAR = frozenset(["Minimum", "Maximum", "ClipByValue", "L2Loss", "Sqrt", "Rsqrt", "Select", "SelectV2", "Sign"])


@dataclass(frozen=True)
class DenseGroup:
    """Gradients that travel in one all-reduce.

    Attributes:
      name: of the all-reduce node.
      tensors: canonical names of the gradients, in the order in which they become ready.
      dtype: DataType number.
      num_bytes: of one instance's gradients.
      shard_rank: of the devices among which parts of tensors are reduced (epl.plan.layout.mesh); None: whole ones,
        among all.
    """

    name: str
    tensors: Tuple[str, ...]
    dtype: int
    num_bytes: int
    shard_rank: Optional[int] = None


@dataclass(frozen=True)
class SparseGradient:
    """A gradient that is IndexedSlices.

    Attributes:
      name: prefix of the nodes that aggregate it.
      values, indices: canonical tensor names.
      dtype: DataType number of the values.
      rows: first dimension of the variable, or -1.
      num_bytes: of the whole variable, or of a device's part of it.
      shard_rank: as of a DenseGroup.
    """

    name: str
    values: str
    indices: str
    dtype: int
    rows: int
    num_bytes: int
    shard_rank: Optional[int] = None

    def is_made_dense(self, plan):
        """Whether its rows are added up in a dense tensor for it (communication.sparse_as_dense)."""
        return plan.sparse_as_dense and self.rows > 0

    @property
    def gathered(self):
        """Names of the collectives of its values, where it stays sparse, and of its indices."""
        return self.name + "/values", self.name + "/indices"

    @property
    def reduced(self):
        """Name of the collective of the dense tensor, where it is made one."""
        return self.name + "/reduced"


@dataclass(frozen=True)
class Aggregation:
    """All gradients that have to be aggregated.

    Attributes:
      groups: dense gradients.
      sparse: IndexedSlices.
      consumers: gradient tensor to the (node, input position) pairs that must see its aggregate.
    """

    groups: Tuple[DenseGroup, ...] = ()
    sparse: Tuple[SparseGradient, ...] = ()
    consumers: Dict[str, Tuple[Tuple[str, int], ...]] = None


def plan_aggregation(model, analysis, communication, link, owners=None, warn=True, shard_ranks=1, early=False):
    """Decides where gradients are aggregated: as apply_gradients received them, or as tf.gradients returned them.

    The latter for those that the program assigns to variables itself. What is the same in all copies by then, such as
    what an accumulator of aggregated gradients holds, is not aggregated again.

    Args:
      model: an epl.program.program.Program.
      analysis: its Analysis.
      communication: the configuration's `communication` part.
      link: the Link between the workers, from which the sizes of groups follow.
      owners: node to the place of its worker in a pipeline over several, or to another number; gradients with the same
        one travel together.
      warn: log what the user should know about clipped gradients.
      shard_ranks: those of the Mesh.
      early: gradients are aggregated as tf.gradients returned them, as communication.clip_after_allreduce asks for.
    """
    owners = owners or {}
    found = merged_gradients(model, analysis, communication, warn, shard_ranks, early)
    groups, sparse = [], []
    for call, gradients in found.gradients:
        groups.extend(_dense_groups(model, call, gradients, communication, link, owners, found))
        sparse.extend(_sparse_gradients(model, call, gradients, communication, found.shard_ranks))
    return Aggregation(tuple(groups), tuple(sparse), found.consumers)


def merged_gradients(model, analysis, communication, warn=True, shard_ranks=1, early=False):
    """Which gradients copies of the model merge, and where; as `find_gradients`, of a divided model at its points.

    Args:
      shard_ranks: those of the Mesh.

    Returns:
      What `find_gradients` does; `shard_ranks` of it has, by gradient tensor, the shard ranks in which it is merged,
      where that is not once for all parts.
    """
    if model.merge_points is None:
        return find_gradients(model, analysis, communication, warn, early)
    return _Found.at_points(model, shard_ranks)


def find_gradients(model, analysis, communication, warn=True, early=False):
    """Which gradients are aggregated, and where; arguments as for `plan_aggregation`.

    Returns:
      An object with `gradients`, a list of (ApplyCall, list of (Gradient, variable)) pairs, in which no gradient is
      twice, and `consumers`, as of an Aggregation.
    """
    by_hand = [call for call in model.apply_calls if call.between is not None]
    calls = [call for call in model.apply_calls if call.between is None]
    # A sum that holds what is summed already cannot be summed again.
    early = early or communication.clip_after_allreduce or model.scaled or model.short
    early = early or by_hand and communication.gradients_reduce_method == "sum"
    found = _Found(model.short)
    found.add(_ByHand(model), by_hand)
    differ = _differing(model.graph, analysis, found.consumers) if by_hand else None
    found.add(_AfterGradients(model) if early else _BeforeApply(model, warn, differ), calls)
    return found


def returned_gradients(model):
    """Gradients as tf.gradients returned them, and what each call of apply_gradients makes of them.

    Returns:
      list of (ApplyCall, list of (Gradient, variable, (node, input position) pairs that take its values)).
    """
    boundaries, found = _AfterGradients(model), []
    for call in model.apply_calls:
        pairs = boundaries.of(call)
        found.append((call, [(g, v, boundaries.consumers(call, canonical_tensor(g.values))) for g, v in pairs]))
    return found


class _Found(object):
    """What is aggregated for some calls.

    Attributes:
      gradients: (ApplyCall, list of (Gradient, variable)) pairs; no gradient is in two of them.
      consumers: gradient tensor to the (node, input position) pairs that must see its aggregate.
      shard_ranks: gradient tensor to the shard ranks in which it is reduced, where that is not once for all parts.
      short: gradient tensor to its 16-bit type, of those that have one though their variable has not.
    """

    def __init__(self, short):
        self.gradients, self.consumers, self.shard_ranks, self.short, self._seen = [], {}, {}, short, set()

    @classmethod
    def at_points(cls, model, shard_ranks):
        """What is merged at the MergePoints of a divided model."""
        found, calls = cls({}), {}
        for call, nodes, variable in model.merge_points.gradients:
            gradient = Gradient(*(node and merged_at(model, node) for node in nodes))
            found.shard_ranks[gradient.values] = shard_ranks_at(model, nodes.values, shard_ranks)
            if canonical_tensor(nodes.values) in model.short:
                found.short[gradient.values] = model.short[canonical_tensor(nodes.values)]
            for node, tensor in zip(nodes, gradient):
                if tensor:
                    found.consumers[tensor] = found.consumers.get(tensor, ()) + ((node, 0),)
            if tuple(gradient) not in found._seen:
                calls.setdefault(call.index, (call, []))[1].append((gradient, variable))
            found._seen.add(tuple(gradient))
        found.gradients = list(calls.values())
        return found

    def add(self, boundaries, calls):
        for call in calls:
            gradients = boundaries.of(call)
            for gradient, _ in gradients:
                for tensor in map(canonical_tensor, filter(None, gradient)):
                    found = self.consumers.get(tensor, ()) + boundaries.consumers(call, tensor)
                    self.consumers[tensor] = tuple(sorted(set(found)))
            # One tensor may be the gradient for two calls or two variables; it travels once.
            self.gradients.append((call, [(g, v) for g, v in gradients if tuple(g) not in self._seen]))
            self._seen.update(tuple(g) for g, _ in gradients)


def _differing(graph, analysis, consumers):
    return differing(graph, analysis.varying, {edge for edges in consumers.values() for edge in edges})


def _unique(gradients):
    """Without repetitions of a tensor, in order."""
    found, seen = [], set()
    for gradient, variable in gradients:
        if (gradient.values, gradient.indices) not in seen:
            seen.add((gradient.values, gradient.indices))
            found.append((gradient, variable))
    return found


class _ByHand(object):
    """Gradients as tf.gradients returned them, for what leads to the program's own assignments."""

    def __init__(self, model):
        self._graph = model.graph

    def of(self, call):
        created = self._graph.creation_index
        return _unique(sorted(call.gradients, key=lambda item: created[node_of(canonical_tensor(item[0].values))]))

    def consumers(self, call, tensor):
        return _consumers(self._graph, tensor, lambda node: node.name in call.between)


def _conditions(graph, call):
    """What leads to the conditions under which a call's updates run, as with `tf.cond(finite, apply, tf.no_op)`: the
    nodes that make them outside of the call, by names."""
    taken = [name for gradient, _ in call.gradients for name, _ in graph.consumers.get(node_of(gradient.values), ())]
    switches = [name for name in taken if graph.nodes[name].op in effects.SWITCHES]
    own = [name for name in switches if _made_by(graph.nodes[name], call)]
    return (
        graph.ancestors([node_of(graph.nodes[name].input[1]) for name in own], data_only=True) if own else frozenset()
    )


class _BeforeApply(object):
    """Gradients as apply_gradients received them; without those that are the same in all copies, where that is
    known."""

    def __init__(self, model, warn, differ=None):
        self._graph, self._conditions = model.graph, {}
        self._differ = differ
        self._computed = {canonical_tensor(g.values) for g, _ in model.computed}
        self._warned = not warn

    def of(self, call):
        self._warn_if_clipped(call)
        return _unique([(g, v) for g, v in call.gradients if self._differs(g)])

    def _differs(self, gradient):
        return self._differ is None or node_of(canonical_tensor(gradient.values)) in self._differ

    def consumers(self, call, tensor):
        if call.index not in self._conditions:
            self._conditions[call.index] = _conditions(self._graph, call)
        leads = self._conditions[call.index]
        return _consumers(self._graph, tensor, lambda node: _made_by(node, call) or node.name in leads)

    def _warn_if_clipped(self, call):
        ours = [canonical_tensor(gradient.values) for gradient, _ in call.gradients]
        changed = [node_of(tensor) for tensor in ours if tensor not in self._computed]
        if self._warned or not changed or not self._computed:
            return
        graph = self._graph
        computed = {node_of(tensor) for tensor in self._computed}
        # Walking back from what was applied, only what follows a gradient counts, not the forward pass.
        follows = graph.descendants(computed, data_only=True) - computed
        between = graph.ancestors(changed, stop=graph.nodes.keys() - follows, data_only=True) & follows
        clipping = [
            name
            for name in graph.in_order(between)
            if graph.nodes[name].op in _NOT_LINEAR and tags.phase(graph.nodes[name]) == tags.FORWARD
        ]
        if clipping:
            self._warned = True
            _LOG.warning(
                "gradients are clipped (at '%s') before they are aggregated: each copy of the model clips its own. One "
                "device would clip the gradient of the whole batch; set communication.clip_after_allreduce=True for "
                "that.",
                clipping[0],
            )


class _AfterGradients(object):
    """Gradients as tf.gradients returned them, before the user's own operations (clipping, say) on them."""

    def __init__(self, model):
        self._graph = model.graph
        self._computed = {}
        for gradient, variable in model.computed:
            if variable in model.variables:
                self._computed[canonical_tensor(gradient.values)] = (gradient, variable)
        self._indices = {canonical_tensor(g.indices) for g, _ in self._computed.values() if g.indices is not None}
        self._between = {}

    def of(self, call):
        found, between, seen = [], set(), set()
        stack = []
        for gradient, variable in call.gradients:
            stack.append((canonical_tensor(gradient.values), (gradient, variable)))
            # Owners of rows choose theirs of both.
            stack.extend((canonical_tensor(text), None) for text in [gradient.indices] if text is not None)
        while stack:
            tensor, fallback = stack.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            node = self._graph.nodes[node_of(tensor)]
            if tensor in self._computed:
                found.append(self._computed[tensor])
            elif tensor in self._indices:
                continue
            elif tags.phase(node) == tags.BACKWARD:
                if fallback is not None:
                    found.append(fallback)
            else:
                between.add(node.name)
                stack.extend((text, None) for text in node.input if text[0] != "^")
        between |= _conditions(self._graph, call)
        # Operations between that no gradient flows into (the learning rate, say) are harmless: they consume no
        # boundary.
        self._between[call.index] = between
        created = self._graph.creation_index
        return _unique(sorted(found, key=lambda item: created[node_of(canonical_tensor(item[0].values))]))

    def consumers(self, call, tensor):
        between = self._between[call.index]
        return _consumers(self._graph, tensor, lambda node: _made_by(node, call) or node.name in between)


def _made_by(node, call):
    return tags.phase(node) == tags.APPLY and tags.get_int(node, tags.APPLY_CALL, -1) == call.index


def _consumers(graph, tensor, wanted):
    producer = parse_input(tensor)
    found = []
    for name, position in graph.consumers.get(producer.node, ()):
        node = graph.nodes[name]
        if parse_input(node.input[position]) == producer and wanted(node):
            found.append((name, position))
    return tuple(found)


def _dense_groups(model, call, gradients, communication, link, workers, found):
    """The DenseGroups of a call; in none are gradients beside others that travel in another form (dgc.sparsity,
    communication.wire_dtype)."""
    apart = {each.gradient for each in model.compressed + model.coded}
    created = model.graph.creation_index
    kinds = {}
    for gradient, variable in gradients:
        if gradient.indices is None:
            known = model.variables[variable]
            tensor = canonical_tensor(gradient.values)
            own_shard_ranks = tuple(found.shard_ranks.get(tensor, (None,)))
            dtype = found.short.get(tensor, types.base(known.dtype))
            kind = (dtype, workers.get(node_of(tensor), 0), own_shard_ranks != (None,), tensor in apart)
            kinds.setdefault(kind, (own_shard_ranks, []))[1].append((gradient, known))
    groups = []
    for kind in sorted(kinds):
        own_shard_ranks, members = kinds[kind]
        shards = model.partitioned.shards if kind[2] else 1
        dense = sorted(members, key=lambda item: created[node_of(canonical_tensor(item[0].values))])
        width = types.DTYPE_BYTES.get(kind[0], 4)
        sized = [(g, num_elements(v) * width // shards) for g, v in dense]
        total = sum(size for _, size in sized)
        fuse_bytes = int(communication.fuse_size_mb * _MIB)
        for members in cut_evenly(sized, num_groups(total, link, communication.max_splits, fuse_bytes)):
            for shard_rank in own_shard_ranks:
                index = len(groups)
                name = in_shard_rank("%s_aggregate/call_%d/group_%d" % (PREFIX, call.index, index), shard_rank)
                groups.append(
                    DenseGroup(
                        name,
                        tuple(canonical_tensor(g.values) for g, _ in members),
                        kind[0],
                        sum(size for _, size in members),
                        shard_rank,
                    )
                )
    return groups


def _sparse_gradients(model, call, gradients, communication, shard_ranks):
    found = []
    for gradient, variable in gradients:
        if gradient.indices is None:
            continue
        known, values = model.variables[variable], canonical_tensor(gradient.values)
        for shard_rank in shard_ranks.get(values, (None,)):
            index = len(found)
            found.append(
                SparseGradient(
                    in_shard_rank("%s_aggregate/call_%d/sparse_%d" % (PREFIX, call.index, index), shard_rank),
                    values,
                    canonical_tensor(gradient.indices),
                    types.base(known.dtype),
                    known.shape[0] if known.shape else -1,
                    size_bytes(known) // (1 if shard_rank is None else model.partitioned.shards),
                    shard_rank,
                )
            )
    return found


def wire_type(plan, dtype):
    """(DataType number of what travels of gradients of a type, its bytes by those of the gradients)."""
    return (FLOAT16, 0.5) if plan.wire_fp16 and dtype == FLOAT32 else (None, 1)


def gradient_collectives(plan, apart=()):
    """A Collective of each DenseGroup, and two of each SparseGradient.

    Args:
      plan: an epl.plan.plan.Plan.
      apart: names of DenseGroups that travel in another form.
    """
    dense, sparse = enumerate(plan.aggregation.groups), enumerate(plan.aggregation.sparse)
    return [dense_collective(plan, group, number) for number, group in dense if group.name not in apart] + [
        each for number, gradient in sparse for each in _sparse_collectives(plan, gradient, number)
    ]


def dense_collective(plan, group, number, operation=ALL_REDUCE):
    """The Collective of a DenseGroup, by its number among all of the plan."""
    wire_dtype, part = wire_type(plan, group.dtype)
    first = group.tensors[0]
    return collective(
        group.name,
        operation,
        GRADIENTS,
        group.tensors,
        plan.group_of(first),
        number % plan.mesh.num_communicators,
        int(group.num_bytes * part),
        group.dtype,
        tags.BACKWARD,
        wire_dtype=wire_dtype,
        tensor_bytes=group.num_bytes,
        consumers=tuple(edge for tensor in group.tensors for edge in plan.aggregation.consumers[tensor]),
        shard_rank=group.shard_rank,
        stage=plan.stage(first),
        takes_part=plan.has_stage(node_of(first)),
    )


def _sparse_collectives(plan, sparse, number):
    consumers, dense = plan.aggregation.consumers, sparse.is_made_dense(plan)
    names = (sparse.reduced, sparse.gathered[1]) if dense else sparse.gathered
    of_each = (
        (sparse.values, ALL_REDUCE if dense else ALL_GATHER, sparse.num_bytes if dense else None, sparse.dtype),
        (sparse.indices, ALL_GATHER, None, None),
    )
    for name, (tensor, operation, num_bytes, dtype) in zip(names, of_each):
        yield collective(
            name,
            operation,
            SPARSE,
            (tensor,),
            plan.group_of(sparse.values),
            number % plan.mesh.num_communicators,
            num_bytes,
            dtype,
            tags.BACKWARD,
            consumers=tuple(consumers[tensor]),
            shard_rank=sparse.shard_rank,
            stage=plan.stage(sparse.values),
            takes_part=plan.has_stage(node_of(sparse.values)),
            after=(sparse.values, sparse.indices),
        )
