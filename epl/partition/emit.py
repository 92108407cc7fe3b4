"""Nodes of the program of a shard: constants that differ by shard, and the collectives between them."""

from tensorflow.core.framework import attr_value_pb2

from epl.graph import tags
from epl.graph.index import format_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, STRING
from epl.partition.conversion import shard_sizes, shard_starts
from epl.partition.partitioned import COLLECTIVES, SEND_ROWS, ShardCollective
from epl.program.placement import SUM

_PREFIX = "epl_shard"
_TAGS = (tags.TASKGRAPH, tags.PHASE, tags.APPLY_CALL)


class Emit(object):
    """Collects the nodes of the program of a shard.

    Args:
      facts: Facts of the graph that is partitioned.
      shards: how many parts.

    Attributes:
      nodes: name to NodeDef.
      per_shard, collectives: as in epl.partition.partitioned.Partitioned.
      routes: what is known of ids that travel (epl.partition.routed).
      own_entries: what a shard has of lists of entries (epl.partition.own_entries).
    """

    def __init__(self, facts, shards):
        self.facts = facts
        self.shards = shards
        self.nodes = {}
        self.per_shard = {}
        self.collectives = []
        self.routes = {}
        self.own_entries = {}
        self._for = None

    def begin(self, node):
        """What is added from now on is for the sake of a node: it has its device and its tags."""
        self._for = node

    def keep(self, node):
        """Adds a NodeDef as it is."""
        self.nodes[node.name] = node

    def add(self, op, name, inputs, **attrs):
        """Adds a node for the node that was begun; returns its name, which is made unique."""
        whole = "%s/%s/%s" % (_PREFIX, self._for.name, name)
        while whole in self.nodes:
            whole += "_"
        return self._keep(make_node(op, whole, inputs, self._for.device, **attrs))

    def _keep(self, node):
        tags.inherit(node, self._for, _TAGS)
        self.nodes[node.name] = node
        return node.name

    def integers(self, name, values, dtype=INT32):
        """A constant.

        Args:
          name: for people.
          values: for each shard an integer or a list of them.
          dtype: INT32 or INT64.
        """
        values = [[int(v) for v in each] if isinstance(each, (list, tuple)) else int(each) for each in values]
        return self._constants(name, values, dtype)

    def strings(self, name, values):
        """A vector constant of strings; values: for each shard a list of bytes."""
        return self._constants(name, values, STRING)

    def _constants(self, name, values, dtype):
        whole = "%s/%s/%s" % (_PREFIX, self._for.name, name)
        while whole in self.nodes:
            whole += "_"
        made = [constant(whole, each, dtype, self._for.device) for each in values]
        if any(each != values[0] for each in values):
            self.per_shard[whole] = "value", tuple(map(_value_of, made))
        return self._keep(made[0])

    def number(self, name, value, dtype):
        """A scalar constant of any numeric type, the same in all shards (a list: by shard)."""
        values = value if isinstance(value, list) else [value] * self.shards
        if dtype in (INT32, INT64):
            return self.integers(name, values, dtype)
        whole = self.integers(name, [0] * self.shards)
        written = FLOAT64 if dtype == FLOAT64 else FLOAT32  # a third is another number in each of them
        made = [constant(whole, float(each), written, self._for.device) for each in values]
        if any(each != values[0] for each in values):
            self.per_shard[whole] = "value", tuple(map(_value_of, made))
        self._keep(made[0])
        return self.cast(whole, written, dtype)

    def cast(self, text, have, want):
        """A tensor in another type; the same where it is of that already."""
        return text if have == want else self.add("Cast", "cast", [text], SrcT=Type(have), DstT=Type(want))

    def starts(self, name, size, dtype=INT32):
        """A constant: where a shard's part of a dimension begins."""
        return self.integers(name, shard_starts(size, self.shards), dtype)

    def collective(self, kind, text, dtype, tensor, num_bytes, combine=SUM, wanted_by="", **attrs):
        """Adds a collective of one tensor; booleans travel as numbers.

        Args:
          kind: as in epl.partition.partitioned.COLLECTIVES.
          text: the tensor in a shard.
          dtype: its DataType number.
          tensor, num_bytes, wanted_by: as in epl.partition.partitioned.ShardCollective.
          combine: of an all-reduce or reduce-scatter.
          **attrs: "dim", "size" and so on.
        """
        sent = INT32 if dtype == BOOL else dtype
        text = self.cast(text, dtype, sent)
        attrs.update({"combine": combine} if kind in ("all_reduce", "reduce_scatter") else {})
        name = self.add(COLLECTIVES[kind], kind, [text], T=Type(sent), shards=self.shards, **attrs)
        phase = tags.phase(self._for)
        self.collectives.append(ShardCollective(name, kind, tensor, num_bytes, phase, wanted_by or self._for.name))
        return self.cast(name, sent, dtype)

    def send_rows(self, name, rows, counts, dtype, tensor, num_bytes):
        """Sends rows to each shard.

        Args:
          name: for people.
          rows: the tensor, those for shard 0 first.
          counts: how many are for each, a vector of int64.
          dtype: of the rows.
          tensor, num_bytes: as in epl.partition.partitioned.ShardCollective.

        Returns:
          (the rows that come, those of shard 0 first; how many come from each).
        """
        made = self.add(SEND_ROWS, name, [rows, counts], T=Type(dtype), shards=self.shards)
        phase = tags.phase(self._for)
        self.collectives.append(ShardCollective(made, "all_to_all", tensor, num_bytes, phase, self._for.name))
        return made, made + ":1"

    def outputs(self, node, texts, dtypes):
        """Makes what was computed the outputs of a node, which keeps its name and its control inputs."""
        controls = [text for text in node.input if text[0] == "^"]
        if len(texts) == 1:
            made = make_node("Identity", node.name, texts + controls, node.device, T=Type(dtypes[0]))
        else:
            made = make_node("IdentityN", node.name, texts + controls, node.device, T=type_list(dtypes))
        for key, value in node.attr.items():
            if key.startswith(tags.PREFIX):
                made.attr[key].CopyFrom(value)
        self.nodes[node.name] = made


def type_list(dtypes):
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=list(dtypes)))


def slice_of(emit, text, dtype, shape, dim):
    """A shard of a dimension of a tensor that each has whole."""
    size, rank = shape[dim], len(shape)
    if size is not None:
        begins = [[start if i == dim else 0 for i in range(rank)] for start in shard_starts(size, emit.shards)]
        sizes = [[length if i == dim else -1 for i in range(rank)] for length in shard_sizes(size, emit.shards)]
        begin, extent = emit.integers("begin", begins), emit.integers("size", sizes)
    else:
        whole = emit.add("Shape", "shape", [text], T=Type(dtype), out_type=Type(INT32))
        extent = shard_sizes_vector(emit, whole, [dim], rank, INT32)
        begin = _shard_starts_vector(emit, whole, dim, rank)
    return emit.add("Slice", "part", [text, begin, extent], T=Type(dtype), Index=Type(INT32))


def shard_sizes_vector(emit, text, dims, rank, dtype):
    """A vector of sizes with some that are known only when a step runs as those of a shard; -1 stays -1.

    Shard i of n things has (n + shards - 1 - i) // shards, as `shard_sizes` has it.
    """

    def vector(name, inside, outside):
        rows = [[inside(i) if d in dims else outside for d in range(rank)] for i in range(emit.shards)]
        return emit.integers(name, rows, dtype)

    def add(op, name, *texts):
        return emit.add(op, name, list(texts), T=Type(dtype))

    one = vector("ones", lambda i: 1, 1)
    is_size = add("Minimum", "is_size", add("Add", "next", text, one), one)
    over = add("Mul", "over", is_size, vector("rest", lambda i: emit.shards - 1 - i, 0))
    return add("FloorDiv", "part_sizes", add("Add", "more", text, over), vector("parts", lambda i: emit.shards, 1))


def _shard_starts_vector(emit, whole, dim, rank):
    """Where a shard's part of a dimension begins, as a vector, of the vector of sizes of the whole."""

    def vector(name, inside, outside):
        return emit.integers(
            name, [[inside(i) if d == dim else outside for d in range(rank)] for i in range(emit.shards)]
        )

    def add(op, name, *texts):
        return emit.add(op, name, list(texts), T=Type(INT32))

    by, which = vector("shards", lambda i: emit.shards, 1), vector("which", lambda i: i, 0)
    least = add("Mul", "least", add("FloorDiv", "quotient", whole, by), which)
    return add("Add", "begin", least, add("Minimum", "more_before", add("FloorMod", "rest", whole, by), which))


def on_one_shard(emit, text, dtype):
    """A tensor that all shards have whole, as a partial sum: zeros in all shards but the first."""
    mask = emit.number("mask", [1] + [0] * (emit.shards - 1), dtype)
    return emit.add("Mul", "on_one_shard", [text, mask], T=Type(dtype))


def among_zeros(emit, text, dtype, shape, dim):
    """A shard's part of a dimension of known size, as a partial sum: where others have theirs it has zeros."""
    size = shape[dim]
    flat = [
        [each for i in range(len(shape)) for each in ([start, size - start - length] if i == dim else [0, 0])]
        for start, length in zip(shard_starts(size, emit.shards), shard_sizes(size, emit.shards))
    ]
    pairs = [emit.integers("paddings", flat), emit.integers("pairs", [[-1, 2]] * emit.shards)]
    paddings = emit.add("Reshape", "in_pairs", pairs, T=Type(INT32), Tshape=Type(INT32))
    return emit.add("Pad", "among_zeros", [text, paddings], T=Type(dtype), Tpaddings=Type(INT32))


def local_shape(emit, text, tensor_value, dims, rank, dtype):
    """A vector with sizes of a whole tensor, as sizes of a shard's part.

    Args:
      emit: the Emit.
      text: the vector, which all shards have whole.
      tensor_value: what is known of it, or None.
      dims: for each divided dimension its whole size, None where that is not known.
      rank: how many elements the vector has.
      dtype: of the vector.
    """
    if tensor_value is not None and tensor_value.ndim == 1 and None not in tensor_value:
        rows = []
        for shard in range(emit.shards):
            row = [int(each) for each in tensor_value]
            for dim, size in dims.items():
                row[dim] = -1 if row[dim] == -1 else shard_sizes(row[dim], emit.shards)[shard]
            rows.append(row)
        return emit.integers("local_shape", rows, dtype)
    unknown = [dim for dim, size in dims.items() if size is None]
    if unknown:
        text = shard_sizes_vector(emit, text, unknown, rank, dtype)
    known = {dim: shard_sizes(size, emit.shards) for dim, size in dims.items() if size is not None}
    return replaced(emit, text, known, rank, dtype) if known else text


def replaced(emit, text, known, rank, dtype):
    """A vector with some of its elements replaced; `known` has their values by shard."""
    others = emit.integers("others", [[0 if i in known else 1 for i in range(rank)]] * emit.shards, dtype)
    rows = [[known[i][shard] if i in known else 0 for i in range(rank)] for shard in range(emit.shards)]
    kept = emit.add("Mul", "kept", [text, others], T=Type(dtype))
    return emit.add("Add", "with_sizes", [kept, emit.integers("sizes", rows, dtype)], T=Type(dtype))


def text_of(tensor):
    return format_input(*tensor)


def _value_of(node):
    """The value of a constant, as an AttrValue's bytes."""
    return node.attr["value"].SerializeToString(deterministic=True)
