r"""A shard's part of a list of entries: those of its rows of a batch.

row of each entry -> number of rows -> where a shard's rows begin -> which entries are its own -> their part
"""

from epl.graph.index import NodeInput as Tensor
from epl.graph.index import parse_input
from epl.graph.node_defs import Type
from epl.graph.types import BOOL, INT32, INT64
from epl.partition.emit import text_of


class _Own(object):
    """What a shard knows of the entries.

    Attributes:
      rows: how many there are, a scalar.
      own_rows: how many of them the shard has.
      places: its entries in the list.
      segments: the rows of its entries, counted from its first one.
    """

    def __init__(self, emit, segments, count):
        facts, self.dtype = emit.facts, emit.facts.dtype(segments)
        text, dtype = text_of(segments), Type(self.dtype)

        def add(op, name, *texts):
            return emit.add(op, name, list(texts), T=dtype)

        def integers(name, values):
            return emit.integers(name, values, self.dtype)

        shards, axis = emit.shards, emit.integers("axis", [0] * emit.shards)
        if count is not None:
            self.rows = emit.cast(text_of(count), facts.dtype(count), self.dtype)
        else:  # the rows are in order, and there may be none
            before = integers("before_first", [[-1]] * shards)
            some = emit.add("ConcatV2", "some", [before, text, axis], T=dtype, N=2, Tidx=Type(INT32))
            dims = emit.integers("dims", [[0]] * shards)
            last = emit.add("Max", "last", [some, dims], T=dtype, Tidx=Type(INT32), keep_dims=False)
            self.rows = add("Add", "rows", last, integers("one", [1] * shards))
        count = integers("shards", [shards] * shards)
        rest = add("FloorMod", "rest", self.rows, count)
        least = add("FloorDiv", "least", self.rows, count)
        which = integers("which", list(range(shards)))
        start = add("Add", "start", add("Mul", "before", least, which), add("Minimum", "more_before", rest, which))
        more = add("Add", "with_more", self.rows, integers("over", [shards - 1 - i for i in range(shards)]))
        self.own_rows = add("FloorDiv", "own_rows", more, count)
        local = add("Sub", "local", text, start)
        above = add("GreaterEqual", "above", local, integers("zero", [0] * shards))
        is_own = emit.add("LogicalAnd", "is_own", [above, add("Less", "below", local, self.own_rows)])
        where, flat = emit.add("Where", "where", [is_own], T=Type(BOOL)), emit.integers("flat", [[-1]] * shards)
        self.places = emit.add("Reshape", "places", [where, flat], T=Type(INT64), Tshape=Type(INT32))
        self.segments = own_part(emit, self, local, self.dtype)


def own_part(emit, own, text, dtype):
    """The entries of a shard's rows, of a tensor with all entries along its first dimension."""
    types = {"Tparams": Type(dtype), "Tindices": Type(INT64), "Taxis": Type(INT32)}
    axis = emit.integers("axis", [0] * emit.shards)
    return emit.add("GatherV2", "own_entries", [text, own.places, axis], **types)


def _own(emit, segments, count=None):
    if segments not in emit.own_entries:
        emit.own_entries[segments] = _Own(emit, segments, count)
    return emit.own_entries[segments]


def part_of_ragged(emit, tensor, placement):
    """A shard's part of a tensor that each has whole.

    Args:
      emit: the Emit.
      tensor: with all entries along its first dimension.
      placement: the Placement, `ragged`.
    """
    segments = Tensor(*parse_input(placement.of))
    own = _own(emit, segments)
    return own.segments if tensor == segments else own_part(emit, own, text_of(tensor), emit.facts.dtype(tensor))


def num_rows(emit, rows):
    """A scalar of int32, the number of all rows that come of entries; rows: epl.partition.entries.RowCount."""
    own = _own(emit, rows.segments, rows.count)
    return emit.cast(own.rows, own.dtype, INT32)


def own_num_rows(emit, rows):
    """A scalar of int32, the number of a shard's rows."""
    own = _own(emit, rows.segments, rows.count)
    return emit.cast(own.own_rows, own.dtype, INT32)


def combine(emit, node, texts, rows, index_type=None):
    """Writes what makes rows of a shard's entries. The last rows of a part may have no entries, so that their number is
    given.

    Args:
      emit: the Emit.
      node: NodeDef of a type in epl.partition.entries.COMBINES.
      texts: the inputs as they lie in a shard.
      rows: its epl.partition.entries.RowCount.
      index_type: of the numbers of rows that it takes, where it is another one.
    """
    dtype, count = node.attr["T"].type, own_num_rows(emit, rows)
    attrs = {key: node.attr[key] for key in ("T", "Tidx", "Tindices", "Tsegmentids") if key in node.attr}
    attrs["Tnumsegments"] = Type(INT32)
    if index_type is not None:
        attrs["Tidx"] = Type(index_type)
    if node.op == "SegmentSum":
        made = emit.add("UnsortedSegmentSum", "of_rows", list(texts[:2]) + [count], **attrs)
    else:
        op = node.op if node.op.endswith("WithNumSegments") else node.op + "WithNumSegments"
        made = emit.add(op, "of_rows", list(texts[:3]) + [count], **attrs)
    emit.outputs(node, [made], [dtype])
