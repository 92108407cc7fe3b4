r"""Writes lookups whose ids travel to the owners of rows, and gradients that go the same way.

ids -> EplRouteIds -> sorted -> send -> look up -> send back -> each to its place
                             counts, places
"""

from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.graph.node_defs import Type
from epl.graph.types import INT32
from epl.partition.emit import text_of
from epl.partition.own_entries import combine


class _Travelled(object):
    """Ids on their way.

    Attributes:
      sorted, counts, places: as EplRouteIds gives them.
      come: the ids that come to a shard, of rows that it has.
      come_counts: how many come from each.
    """

    def __init__(self, emit, node, text, route):
        facts, dtype = emit.facts, emit.facts.dtype(route.ids)
        attrs = dict(T=Type(dtype), rows=route.rows, shards=emit.shards, unique=route.unique, what=node.name)
        made = emit.add("EplRouteIds", "route", [text], **attrs)
        self.sorted, self.counts, self.places = made, format_input(made, 1), format_input(made, 2)
        num_bytes = facts.num_bytes(route.ids)
        self.come, self.come_counts = emit.send_rows(
            "send_ids", made, self.counts, dtype, text_of(route.ids), num_bytes
        )
        self._emit, self._dtype, self._once = emit, dtype, None

    def once(self):
        """(the ids that come, each of them once; which of them each one is)."""
        if self._once is None:
            made = self._emit.add("Unique", "once", [self.come], T=Type(self._dtype), out_idx=Type(INT32))
            self._once = made, format_input(made, 1)
        return self._once

    def summed(self, rows, dtype):
        """The sums of rows of the same id, of rows that come with the ids."""
        ids, places = self.once()
        return _sum_of_places(self._emit, rows, places, ids, dtype, self._dtype)


def _sum_of_places(emit, rows, places, ids, dtype, id_type):
    """For each of some ids the sum of the rows that have its place."""
    count = emit.add("Size", "count", [ids], T=Type(id_type), out_type=Type(INT32))
    types = {"T": Type(dtype), "Tindices": Type(INT32), "Tnumsegments": Type(INT32)}
    return emit.add("UnsortedSegmentSum", "of_id", [rows, places, count], **types)


def _travelled(emit, node, text, route):
    """The ids of a route, which travel once for all lookups in tables of the same size and for their gradients."""
    key = text, route.rows
    if key not in emit.routes:
        emit.routes[key] = _Travelled(emit, node, text, route)
    return emit.routes[key]


def _look_up(emit, node, texts, ids, route):
    facts, table = emit.facts, emit.facts.inputs(node.name)[0]
    dtype, num_bytes = facts.dtype(table), facts.num_bytes(Tensor(node.name, 0))
    known = _travelled(emit, node, ids, route)
    own = _own_ids(emit, known, route)
    attrs = {key: node.attr[key] for key in node.attr if not key.startswith("_")}
    rows = emit.add(node.op, "rows", [texts[0], own] + list(texts[2:]), **attrs)
    back, _ = emit.send_rows("send_rows", rows, known.come_counts, dtype, node.name, num_bytes)
    emit.outputs(node, [_gather(emit, "in_place", back, known.places, dtype)], [dtype])


def _own_ids(emit, known, route):
    """The ids that come to a shard, counted from the first row that it has."""
    id_type = emit.facts.dtype(route.ids)
    return emit.add("Sub", "local", [known.come, emit.starts("start", route.rows, id_type)], T=Type(id_type))


def _gather(emit, name, rows, places, dtype, id_type=INT32):
    types = {"Tparams": Type(dtype), "Tindices": Type(id_type), "Taxis": Type(INT32)}
    return emit.add("GatherV2", name, [rows, places, emit.integers("axis", [0] * emit.shards)], **types)


def _look_up_and_combine(emit, node, texts, ids, route, rows):
    """Of entries that a shard has: each of its rows of the batch is made of some rows of the table."""
    facts, dtype = emit.facts, emit.facts.dtype(Tensor(node.name, 0))
    num_bytes = facts.guess(route.ids)[0] * facts.num_bytes(facts.inputs(node.name)[0]) // route.rows
    known = _travelled(emit, node, ids, route)
    found = _gather(emit, "rows", texts[0], _own_ids(emit, known, route), dtype, facts.dtype(route.ids))
    back, _ = emit.send_rows("send_rows", found, known.come_counts, dtype, node.name, num_bytes)
    combine(emit, node, [back, known.places] + list(texts[2:]), rows, INT32)


def _gradient(emit, node, texts, ids, route):
    """The rows of a gradient, or their ids."""
    facts = emit.facts
    given, known = facts.inputs(node.name)[0], _travelled(emit, node, ids, route)
    dtype = facts.dtype(given)
    if given == route.ids:
        return emit.outputs(node, [known.once()[0] if route.summed else known.come], [dtype])
    rows = _sum_of_places(emit, texts[0], known.places, known.sorted, dtype, facts.dtype(route.ids))
    come, _ = emit.send_rows("send_gradient", rows, known.counts, dtype, text_of(given), facts.num_bytes(given))
    return emit.outputs(node, [known.summed(come, dtype) if route.summed else come], [dtype])


def _gradient_of_combined(emit, node, texts, ids, route):
    """The rows of the gradient of what a shard has made of its entries, and their ids."""
    facts = emit.facts
    dtype, id_type, segments = facts.dtype(Tensor(node.name, 0)), facts.dtype(route.ids), facts.inputs(node.name)[2]
    known = _travelled(emit, node, ids, route)
    count = emit.add("Size", "count", [known.sorted], T=Type(id_type), out_type=Type(INT32))
    types = {"T": Type(dtype), "Tidx": Type(INT32), "Tsegmentids": Type(facts.dtype(segments))}
    rows = emit.add(node.op[: -len("V2")], "of_id", [texts[0], known.places, texts[2], count], **types)
    num_bytes = facts.num_bytes(Tensor(node.name, 0))
    come, _ = emit.send_rows("send_gradient", rows, known.counts, dtype, node.name, num_bytes)
    emit.outputs(node, [known.summed(come, dtype), known.once()[0]], [dtype, id_type])


def write_routed(emit, node, texts, ids, route, rows):
    """Writes a node whose strategy is routed.

    Args:
      emit: the Emit.
      node: NodeDef.
      texts: its inputs, in the places that the strategy wants.
      ids: the ids of the route.
      route: the epl.partition.routes.Route.
      rows: the epl.partition.entries.RowCount where it combines what it looks up, else None.
    """
    if rows is not None:
        return _look_up_and_combine(emit, node, texts, ids, route, rows)
    write = _gradient_of_combined if node.op.startswith("SparseSegment") else _look_up
    return (_gradient if node.op == "Reshape" else write)(emit, node, texts, ids, route)
