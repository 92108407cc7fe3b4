"""Sizes of whole dimensions that are known only when a step runs."""

from epl.graph.index import format_input
from epl.graph.node_defs import Type
from epl.graph.types import INT32
from epl.partition.own_entries import num_rows


def whole_size(emit, choices, tensor, dim):
    """A scalar, the size of a dimension of a tensor that is divided along it and whose size the graph does not know.

    It is that of a tensor that it was made of and that each shard has whole along that dimension; where there is none,
    the shards add up theirs.
    """
    facts, start = emit.facts, tensor
    while choices.of(tensor).kind == "sharded" and choices.of(tensor).dim == dim:
        rows = choices.rows.get(tensor.node)
        if rows is not None and rows.like is None:
            return num_rows(emit, rows)
        if rows is not None:
            tensor, dim = rows.like, 0
            continue
        shape = facts.shape(tensor)
        if shape is not None and shape[dim] is not None:  # as that of a variable is
            return emit.integers("size", [shape[dim]] * emit.shards)
        rule = choices.rule[tensor.node]
        label = rule.outputs[tensor.index][dim]
        pairs = zip(facts.inputs(tensor.node), rule.inputs)
        found = next(((t, ls.index(label)) for t, ls in pairs if isinstance(ls, tuple) and label in ls), None)
        if found is None:
            own = _size_of(emit, start, choices.of(start).dim)
            return emit.collective("all_reduce", own, INT32, format_input(*start), 4)
        tensor, dim = found
    return _size_of(emit, tensor, dim)


def _size_of(emit, tensor, dim):
    shape = emit.add("Shape", "shape", [format_input(*tensor)], T=Type(emit.facts.dtype(tensor)), out_type=Type(INT32))
    places = [emit.integers("dim", [dim] * emit.shards), emit.integers("axis", [0] * emit.shards)]
    types = {"Tparams": Type(INT32), "Tindices": Type(INT32), "Taxis": Type(INT32)}
    return emit.add("GatherV2", "size", [shape] + places, **types)
