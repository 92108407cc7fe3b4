"""Writes the program of a shard: every operation with the shapes of its parts, and the collectives between them.

All tensors keep their names. What brings one into another placement is added with names of its own, once for each of
them.
"""

import collections

from epl.graph.index import Graph, canonical_tensor, format_input
from epl.graph.index import NodeInput as Tensor
from epl.graph.lazy import copy_of
from epl.partition.checkpoints import restored_shard, saved_by_shard
from epl.partition.conversion import conversion, conversion_cost, shard_sizes
from epl.partition.emit import Emit, among_zeros, on_one_shard, slice_of
from epl.partition.own_entries import combine, part_of_ragged
from epl.partition.partitioned import Partitioned, WholeInputs
from epl.partition.routed import write_routed
from epl.partition.special import writer_of
from epl.program.placement import RAGGED, SUM, WHOLE
from epl.rules import effects


def rewrite(facts, choices, shards):
    """The Partitioned program that Choices stand for."""
    emit = Emit(facts, shards)
    forms = _Forms(emit, facts, choices)
    without_rule = []
    for name, node in facts.graph.nodes.items():
        emit.begin(node)
        strategy, inputs = choices.strategy.get(name), facts.inputs(name)
        wants = strategy.inputs if strategy is not None else (WHOLE,) * len(inputs)
        apart = saved_by_shard(facts, choices, node)
        wants = [None if i in apart else want for i, want in enumerate(wants)]
        if name not in choices.rule:
            brought = [t for t, want in zip(inputs, wants) if want == WHOLE and choices.of(t) != WHOLE]
            gathered = sum(map(facts.num_bytes, brought))
            without_rule.extend([WholeInputs(name, node.op, gathered)] if gathered else [])
        texts = [forms.text(tensor, want) for tensor, want in zip(inputs, wants)]
        known = choices.routes.get(name)
        if known is not None:
            write_routed(emit, node, texts, forms.text(known.ids, known.placement), known, choices.rows.get(name))
        else:
            _write(emit, node, texts, choices, strategy)
    graph = Graph(emit.nodes, facts.graph.library, facts.graph.versions)
    placements = {
        format_input(*tensor): placement for tensor, placement in choices.placements.items() if placement != WHOLE
    }
    collectives = tuple(emit.collectives)
    return Partitioned(graph, shards, placements, emit.per_shard, collectives, tuple(without_rule), forms.brought())


def _write(emit, node, texts, choices, strategy):
    if node.op in effects.VARIABLES:
        return _write_variable(emit, node, choices.of(Tensor(node.name, 0)))
    rule, rows = choices.rule.get(node.name), choices.rows.get(node.name)
    if rows is not None and rows.like is None:
        return combine(emit, node, texts, rows)
    write = writer_of(node.op) if rule is not None or rows is not None else None
    if write is not None and write(emit, node, texts, strategy, rule, choices):
        return
    emit.keep(_with_inputs(node, texts))


def _with_inputs(node, texts):
    """The node with other data inputs; the node itself where they are the same."""
    if list(node.input[: len(texts)]) == texts:
        return node
    copy = copy_of(node)
    copy.input[: len(texts)] = texts
    copy.attr.pop("_output_shapes", None)
    return copy


def _write_variable(emit, node, placement):
    if placement == WHOLE:
        return emit.keep(node)
    copy = copy_of(node)
    copy.attr.pop("_output_shapes", None)
    values = []
    for size in shard_sizes(node.attr["shape"].shape.dim[placement.dim].size, emit.shards):
        copy.attr["shape"].shape.dim[placement.dim].size = size
        values.append(copy.attr["shape"].SerializeToString(deterministic=True))
    copy.attr["shape"].ParseFromString(values[0])
    if any(value != values[0] for value in values):
        emit.per_shard[node.name] = "shape", tuple(values)
    emit.keep(copy)


class _Forms(object):
    """Tensors in the placements in which they are wanted, each brought there once."""

    def __init__(self, emit, facts, choices):
        self._emit = emit
        self._facts = facts
        self._choices = choices
        self._made = {}
        self._through_whole = _wanted_whole(facts, choices, emit.shards)

    def text(self, tensor, want):
        """The name of a tensor in the program of a shard, in a placement."""
        have = self._choices.of(tensor)
        own = format_input(*tensor)
        if want is None or want == have or (want.kind == "whole shape" and have.kind == "partial"):
            return own
        want = WHOLE if want.kind == "whole shape" else want
        if want == have:
            return own
        key = tensor, want
        if key not in self._made:
            self._made[key] = self._make(tensor, have, want, own)
        return self._made[key]

    def brought(self):
        """See Partitioned."""
        return {canonical_tensor(text): (format_input(*key[0]), key[1]) for key, text in self._made.items()}

    def _make(self, tensor, have, want, own):
        emit, facts = self._emit, self._facts
        dtype, shape = facts.dtype(tensor), facts.shape(tensor)
        if have == WHOLE and want.kind == "partial":
            return on_one_shard(emit, own, dtype)
        if have == WHOLE and want.kind == RAGGED:
            return part_of_ragged(emit, tensor, want)
        if have == WHOLE:
            read = restored_shard(emit, facts, tensor, shape, want.dim)
            return read or slice_of(emit, own, dtype, shape, want.dim)
        if want.kind == "partial" and have.kind == "sharded" and shape[have.dim] is not None:
            if tensor not in self._through_whole:
                return among_zeros(emit, own, dtype, shape, have.dim)
        if want != WHOLE and (tensor in self._through_whole or not _directly(have, want)):
            whole = self.text(tensor, WHOLE)
            if want.kind == "partial":
                return on_one_shard(emit, whole, dtype)
            return slice_of(emit, whole, dtype, shape, want.dim)
        kind, attrs = conversion(have, want), {}
        if kind == "all_gather":
            attrs = {"dim": have.dim, "size": _size(shape, have.dim)}
        elif kind == "reduce_scatter":
            attrs = {"dim": want.dim, "size": _size(shape, want.dim)}
        elif kind == "all_to_all":
            attrs = {"dim": have.dim, "size": _size(shape, have.dim)}
            attrs.update(to_dim=want.dim, to_size=_size(shape, want.dim))
        if have.kind == "partial":
            attrs["combine"] = have.combine
        return emit.collective(kind, own, dtype, own, facts.num_bytes(tensor), **attrs)


def _size(shape, dim):
    return -1 if shape[dim] is None else shape[dim]


def _directly(have, want):
    """Whether one collective makes one placement of another that is not whole."""
    return want.kind == "sharded" and (have.kind == "sharded" or have.combine == SUM)


def _wanted_whole(facts, choices, shards):
    """Tensors that are made whole first, as they are wanted whole anyway or as that is less than several exchanges."""
    wanted = collections.defaultdict(set)
    for name, strategy in choices.strategy.items():
        for tensor, want in zip(facts.inputs(name), strategy.inputs):
            if want is not None and choices.of(tensor) != WHOLE and want != choices.of(tensor):
                wanted[tensor].add(want)
    found, link = set(), facts.machine.worker
    for tensor, placements in wanted.items():
        have, num_bytes = choices.of(tensor), facts.num_bytes(tensor)
        separately = sum(conversion_cost(have, placement, num_bytes, shards, link) for placement in placements)
        if WHOLE in placements or separately > conversion_cost(have, WHOLE, num_bytes, shards, link):
            found.add(tensor)
    return found
