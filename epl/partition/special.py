"""Operations that do not compute a part as they compute the whole: they need a part's shape or where it begins, or
their parts exchange a few numbers while they are computed.

Functions `(emit, node, texts, strategy, rule, choices) -> whether they have written the node`; where they have not, it
is written with its local inputs as it is. `texts` are the data inputs, in the placements that the strategy wants.
"""

from epl.graph.index import NodeInput as Tensor
from epl.graph.node_defs import Type
from epl.graph.types import BOOL, INT32, INT64
from epl.partition.conversion import shard_sizes
from epl.partition.dims import last_of_rows
from epl.partition.emit import local_shape, replaced, text_of
from epl.partition.losses import log_softmax, softmax, softmax_loss, sparse_softmax_loss
from epl.partition.sizes import whole_size
from epl.program.placement import ROUTED, WHOLE


def _divided(strategy, index=0):
    """The divided dimension of an output, or None."""
    placement = strategy.outputs[index] if strategy.outputs else WHOLE
    return placement.dim if placement.kind == "sharded" else None


def _index_type(node, *keys):
    return next((node.attr[key].type for key in keys if key in node.attr and node.attr[key].type), INT32)


def _replaced_input(emit, node, texts, position, text):
    copy = type(node)()
    copy.CopyFrom(node)
    copy.attr.pop("_output_shapes", None)
    texts = list(texts)
    texts[position] = text
    copy.input[: len(texts)] = texts
    emit.keep(copy)
    return True


def _with_local_shape(position, *types):
    """The input at a position is the shape of the output, or tells it, and becomes that of a part."""

    def write(emit, node, texts, strategy, rule, choices):
        dim = _divided(strategy)
        if dim is None:
            return False
        facts = emit.facts
        shape, tensor = facts.shape(Tensor(node.name, 0)), facts.inputs(node.name)[position]
        dtype = _index_type(node, *types)
        text = local_shape(emit, texts[position], facts.value(tensor), {dim: shape[dim]}, len(shape), dtype)
        return _replaced_input(emit, node, texts, position, text)

    return write


def _tile(emit, node, texts, strategy, rule, choices):
    dim = _divided(strategy)
    if dim is None or strategy.inputs[0].kind == "sharded":
        return False  # what is divided is repeated once
    facts, dtype = emit.facts, _index_type(node, "Tmultiples")
    shape, times = facts.shape(Tensor(node.name, 0)), facts.value(facts.inputs(node.name)[1])
    text = local_shape(emit, texts[1], times, {dim: shape[dim]}, len(shape), dtype)
    return _replaced_input(emit, node, texts, 1, text)


def _slice(emit, node, texts, strategy, rule, choices):
    dim = _divided(strategy)
    if dim is None:
        return False
    facts, dtype = emit.facts, _index_type(node, "Index")
    size = facts.value(facts.inputs(node.name)[2])
    if size is not None and size[dim] == -1:
        return False
    whole = facts.shape(Tensor(node.name, 0))
    text = local_shape(emit, texts[2], size, {dim: whole[dim]}, len(whole), dtype)
    return _replaced_input(emit, node, texts, 2, text)


def _squeeze(emit, node, texts, strategy, rule, choices):
    """A part of one element is no dimension of one element."""
    if strategy.factor is None or node.attr["squeeze_dims"].list.i:
        return False
    copy = type(node)()
    copy.CopyFrom(node)
    copy.attr.pop("_output_shapes", None)
    copy.input[: len(texts)] = texts
    shape = emit.facts.shape(emit.facts.inputs(node.name)[0])
    copy.attr["squeeze_dims"].list.i[:] = [i for i, size in enumerate(shape) if size == 1]
    emit.keep(copy)
    return True


def _shape(emit, node, texts, strategy, rule, choices):
    """Shape, ShapeN, Size, VariableShape: of the whole."""
    inputs = emit.facts.inputs(node.name)
    if all(choices.of(tensor).kind != "sharded" for tensor in inputs):
        return False
    dtype = _index_type(node, "out_type")
    found = [_whole_shape(emit, tensor, choices, dtype) for tensor in inputs]
    if node.op == "Size":
        dims = emit.integers("dims", [[0]] * emit.shards)
        found = [emit.add("Prod", "size", [found[0], dims], T=Type(dtype), Tidx=Type(INT32))]
    emit.outputs(node, found, [dtype] * len(found))
    return True


def _whole_shape(emit, tensor, choices, dtype):
    shape, placement = emit.facts.shape(tensor), choices.of(tensor)
    if None not in shape:
        return emit.integers("whole_shape", [list(shape)] * emit.shards, dtype)
    source = emit.facts.dtype(tensor)
    text = emit.add("Shape", "local_shape", [text_of(tensor)], T=Type(source), out_type=Type(dtype))
    if placement.kind != "sharded":
        return text
    size = shape[placement.dim]
    if size is not None:
        return replaced(emit, text, {placement.dim: [size] * emit.shards}, len(shape), dtype)
    size = emit.cast(whole_size(emit, choices, tensor, placement.dim), INT32, dtype)
    masks = [
        [[i == placement.dim for i in range(len(shape))]] * emit.shards,
        [[i != placement.dim for i in range(len(shape))]] * emit.shards,
    ]
    there, elsewhere = [emit.integers(name, mask, dtype) for name, mask in zip(("there", "elsewhere"), masks)]
    other = emit.add("Mul", "others", [text, elsewhere], T=Type(dtype))
    return emit.add("Add", "whole_shape", [other, emit.add("Mul", "size", [there, size], T=Type(dtype))], T=Type(dtype))


def _mean(emit, node, texts, strategy, rule, choices):
    """The mean of a part counts as much as there is of it: the sum over the shards is the mean of the whole."""
    if strategy.factor is None or _divided(strategy) is not None:
        return False
    tensor = emit.facts.inputs(node.name)[0]
    dim, dtype = strategy.inputs[0].dim, emit.facts.dtype(tensor)
    size = emit.facts.shape(tensor)[dim]
    own = emit.add("Mean", "of_part", texts, T=Type(dtype), Tidx=node.attr["Tidx"], keep_dims=node.attr["keep_dims"].b)
    if size is not None:
        weights = [count / float(size) for count in shard_sizes(size, emit.shards)]
        mean = emit.add("Mul", "weighted", [own, emit.number("weight", weights, dtype)], T=Type(dtype))
    else:
        weight = _weight(emit, tensor, texts[0], dim, dtype, choices)
        mean = emit.add("MulNoNan", "weighted", [own, weight], T=Type(dtype))  # the mean of nothing is not a number
    emit.outputs(node, [mean], [dtype])
    return True


def _sum(emit, node, texts, strategy, rule, choices):
    """Axes that a step computes, for the gradient of broadcasting, have the rows too where a batch has just one row, or
    lack them. Those of the graph tell the rank, by which others know where the divided dimension is."""
    tensor, axes = emit.facts.inputs(node.name)
    if strategy.factor is None or emit.facts.graph.nodes[axes.node].op == "Const":
        return False
    dtype, text, rank = emit.facts.dtype(tensor), texts[0], len(emit.facts.shape(tensor))
    types = dict(T=Type(dtype), Tidx=Type(_index_type(node, "Tidx")), keep_dims=True)
    own = emit.integers("divided", [[strategy.inputs[0].dim]] * emit.shards, _index_type(node, "Tidx"))
    if _divided(strategy) is None:
        text, others = emit.add("Sum", "of_part", [text, own], **types), texts[1]
    else:
        others = emit.add("ListDiff", "other_axes", [texts[1], own], T=types["Tidx"], out_idx=Type(INT32))
    text = emit.add("Sum", "of_others", [text, others], **types)
    known = sorted({int(axis) % rank for axis in emit.facts.value(axes)})
    if known and not node.attr["keep_dims"].b:
        text = emit.add("Squeeze", "reduced", [text], T=Type(dtype), squeeze_dims=known)
    emit.outputs(node, [text], [dtype])
    return True


def _weight(emit, tensor, text, dim, dtype, choices):
    """What part of a dimension of unknown size a shard has."""
    shape = emit.add("Shape", "local_shape", [text], T=Type(dtype), out_type=Type(INT32))
    places = [emit.integers("dim", [dim] * emit.shards), emit.integers("axis", [0] * emit.shards)]
    types = {"Tparams": Type(INT32), "Tindices": Type(INT32), "Taxis": Type(INT32)}
    own = emit.cast(emit.add("GatherV2", "own_size", [shape] + places, **types), INT32, dtype)
    whole = whole_size(emit, choices, tensor, dim)
    return emit.add("RealDiv", "weight", [own, emit.cast(whole, INT32, dtype)], T=Type(dtype))


def _counted_from_shard(emit, ids, dtype, size):
    """Ids of rows, counted from where a shard's part of them begins."""
    return emit.add("Sub", "local", [ids, emit.starts("start", size, dtype)], T=Type(dtype))


def _own_rows(emit, ids, dtype, size):
    """(ids counted from where a shard's rows begin, whether they are its own)."""
    own = _counted_from_shard(emit, ids, dtype, size)
    count = emit.integers("rows", shard_sizes(size, emit.shards), dtype)
    above = emit.add("GreaterEqual", "above", [own, emit.integers("zero", [0] * emit.shards, dtype)], T=Type(dtype))
    below = emit.add("Less", "below", [own, count], T=Type(dtype))
    return own, emit.add("LogicalAnd", "is_own", [above, below])


def _gather(emit, node, texts, strategy, rule, choices):
    """Each shard looks up the rows that it has and gives zeros for others."""
    facts = emit.facts
    tensors = facts.inputs(node.name)
    if strategy.inputs[1] == ROUTED:
        texts[1] = _counted_from_shard(emit, texts[1], facts.dtype(tensors[1]), facts.shape(tensors[0])[0])
        return _replaced_input(emit, node, texts, 1, texts[1])
    if strategy.factor is None or _divided(strategy) is not None or strategy.inputs[0].kind != "sharded":
        return False
    axis = strategy.inputs[0].dim
    shape, id_type, dtype = facts.shape(tensors[0]), facts.dtype(tensors[1]), facts.dtype(tensors[0])
    own, is_own = _own_rows(emit, texts[1], id_type, shape[axis])
    # No shard has the row of an id that is not in the table: this fails as a lookup in the whole one does.
    known = dict(T=Type(id_type), rows=shape[axis], shards=1, unique=False, what=node.name)
    all_known = emit.add("EplRouteIds", "all_in_table", [texts[1]], **known)
    zero = emit.add("ZerosLike", "zeros", [own, "^" + all_known], T=Type(id_type))
    safe = emit.add("Select", "safe", [is_own, own, zero], T=Type(id_type))
    attrs = {key: node.attr[key] for key in node.attr if not key.startswith("_")}
    rows = emit.add(node.op, "rows", [texts[0], safe] + list(texts[2:]), **attrs)
    mask = _with_ones(emit, is_own, facts.shape(tensors[1]), len(shape) - axis - 1)
    nothing = emit.number("nothing", 0, dtype)
    found = emit.add("SelectV2", "or_nothing", [mask, rows, nothing], T=Type(dtype))
    emit.outputs(node, [found], [dtype])
    return True


def _with_ones(emit, text, shape, count):
    """A tensor of booleans with dimensions of 1 behind its own."""
    for _ in range(count):
        last = emit.integers("last", [-1] * emit.shards)
        text = emit.add("ExpandDims", "expanded", [text, last], T=Type(BOOL), Tdim=Type(INT32))
    return text


def _one_hot(emit, node, texts, strategy, rule, choices):
    if strategy.factor is None or strategy.inputs[0].kind == "sharded":
        return False
    facts, id_type = emit.facts, _index_type(node, "TI")
    size = facts.shape(Tensor(node.name, 0))[_divided(strategy)]
    own = emit.add("Sub", "local", [texts[0], emit.starts("start", size, id_type)], T=Type(id_type))
    depth = emit.integers("depth", shard_sizes(size, emit.shards))
    copy = type(node)()
    copy.CopyFrom(node)
    copy.attr.pop("_output_shapes", None)
    copy.input[:2] = [own, depth]
    emit.keep(copy)
    return True


def _segment_sum(emit, node, texts, strategy, rule, choices):
    """Rows of other shards are left out, as TensorFlow does with those that have negative numbers."""
    if _divided(strategy) != 0 or strategy.inputs[0].kind == "sharded":
        return False
    facts = emit.facts
    size, id_type = facts.shape(Tensor(node.name, 0))[0], facts.dtype(facts.inputs(node.name)[1])
    own, is_own = _own_rows(emit, texts[1], id_type, size)
    nowhere = emit.add("Fill", "nowhere", _filled_like(emit, own, id_type, -1), T=Type(id_type), index_type=Type(INT32))
    ids = emit.add("Select", "own_or_nowhere", [is_own, own, nowhere], T=Type(id_type))
    count = emit.integers("count", shard_sizes(size, emit.shards), _index_type(node, "Tnumsegments"))
    copy = type(node)()
    copy.CopyFrom(node)
    copy.attr.pop("_output_shapes", None)
    copy.input[:3] = [texts[0], ids, count]
    emit.keep(copy)
    return True


def _filled_like(emit, text, dtype, value):
    shape = emit.add("Shape", "shape", [text], T=Type(dtype), out_type=Type(INT32))
    return [shape, emit.integers("value", [value] * emit.shards, dtype)]


def _some_rows(indices_at, updates_at):
    """A change of some rows of a variable: a shard makes those of its own rows."""

    def write(emit, node, texts, strategy, rule, choices):
        if strategy.inputs[0].kind != "sharded" or strategy.inputs[0].dim != 0:
            return False
        facts = emit.facts
        tensors = facts.inputs(node.name)
        at = indices_at if indices_at is not None else last_of_rows(tensors, facts)
        values = updates_at if updates_at is not None else at - 1
        id_type, dtype = facts.dtype(tensors[at]), facts.dtype(tensors[values])
        size = facts.shape(tensors[0])[0]
        if strategy.inputs[at] == ROUTED:
            return _replaced_input(emit, node, texts, at, _counted_from_shard(emit, texts[at], id_type, size))
        own, is_own = _own_rows(emit, texts[at], id_type, size)
        where = emit.add("Where", "where", [is_own], T=Type(BOOL))
        squeezed = emit.integers("flat", [[-1]] * emit.shards)
        kept = emit.add("Reshape", "kept", [where, squeezed], T=Type(INT64), Tshape=Type(INT32))
        texts = list(texts)
        texts[at] = _rows(emit, own, id_type, kept)
        if facts.shape(tensors[values]):
            texts[values] = _rows(emit, texts[values], dtype, kept)
        copy = type(node)()
        copy.CopyFrom(node)
        copy.input[: len(texts)] = texts
        emit.keep(copy)
        return True

    return write


def _rows(emit, text, dtype, kept):
    axis = emit.integers("axis", [0] * emit.shards)
    types = {"Tparams": Type(dtype), "Tindices": Type(INT64), "Taxis": Type(INT32)}
    return emit.add("GatherV2", "own_rows", [text, kept, axis], **types)


def _arg_max(emit, node, texts, strategy, rule, choices):
    """The first of the places at which the largest number of all shards stands."""
    if strategy.factor is None or strategy.factor not in rule.notation.resolved:
        return False
    facts = emit.facts
    tensor = facts.inputs(node.name)[0]
    dtype, out, dim = facts.dtype(tensor), facts.dtype(Tensor(node.name, 0)), strategy.inputs[0].dim
    size, rows = facts.shape(tensor)[dim], facts.num_bytes(Tensor(node.name, 0))
    largest = node.op == "ArgMax"
    dims = emit.integers("dims", [[dim]] * emit.shards)
    op, combine = ("Max", "max") if largest else ("Min", "min")
    best = emit.add(op, "of_part", [texts[0], dims], T=Type(dtype), Tidx=Type(INT32), keep_dims=False)
    best_of_all = emit.collective("all_reduce", best, dtype, node.name, rows, combine)
    own = emit.add(
        node.op, "place", [texts[0], dims_scalar(emit, dim)], T=Type(dtype), Tidx=Type(INT32), output_type=Type(out)
    )
    own = emit.add("Add", "place_of_all", [own, emit.starts("start", size, out)], T=Type(out))
    none = emit.add("Fill", "none", _filled_like(emit, own, out, size), T=Type(out), index_type=Type(INT32))
    is_best = emit.add("Equal", "is_best", [best, best_of_all], T=Type(dtype))
    place = emit.add("Select", "or_none", [is_best, own, none], T=Type(out))
    emit.outputs(node, [emit.collective("all_reduce", place, out, node.name, rows, "min")], [out])
    return True


def dims_scalar(emit, dim):
    return emit.integers("dim", [dim] * emit.shards)


_SPECIAL = {
    "Reshape": _with_local_shape(1, "Tshape"),
    "Fill": _with_local_shape(0, "index_type"),
    "BroadcastTo": _with_local_shape(1, "Tidx"),
    "StridedSliceGrad": _with_local_shape(0, "Index"),
    "Conv2DBackpropInput": _with_local_shape(0),
    "Conv2DBackpropFilter": _with_local_shape(1),
    "Tile": _tile,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Shape": _shape,
    "ShapeN": _shape,
    "Size": _shape,
    "VariableShape": _shape,
    "Mean": _mean,
    "Sum": _sum,
    "GatherV2": _gather,
    "Gather": _gather,
    "ResourceGather": _gather,
    "OneHot": _one_hot,
    "UnsortedSegmentSum": _segment_sum,
    "ArgMax": _arg_max,
    "ArgMin": _arg_max,
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "SparseSoftmaxCrossEntropyWithLogits": sparse_softmax_loss,
    "SoftmaxCrossEntropyWithLogits": softmax_loss,
}
_SPECIAL.update(
    (prefix + "Scatter" + kind, _some_rows(1, 2))
    for prefix in ("", "Resource")
    for kind in ("Add", "Sub", "Update", "Mul", "Div", "Min", "Max")
)
_SPARSE_APPLY = _some_rows(None, None)


def writer_of(op):
    """The function for an operation type, or None."""
    return _SPARSE_APPLY if "SparseApply" in op else _SPECIAL.get(op)
