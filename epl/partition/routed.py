r"""Writes lookups whose ids travel to the owners of rows, and gradients that go the same way.

ids -> EplRouteIds -> sorted -> send -> look up -> send back -> each to its place
                             counts, places
"""

from epl.graph.build import Type
from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.partition.emit import INT32, text_of


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


def _travelled(emit, node, text, route):
    """The ids of a route, which travel once for all lookups in tables of the same size and for their gradients."""
    key = text, route.rows
    if key not in emit.routes:
        emit.routes[key] = _Travelled(emit, node, text, route)
    return emit.routes[key]


def _look_up(emit, node, texts, ids, route):
    facts = emit.facts
    table, id_type = facts.inputs(node.name)[0], facts.dtype(route.ids)
    dtype, num_bytes = facts.dtype(table), facts.num_bytes(Tensor(node.name, 0))
    known = _travelled(emit, node, ids, route)
    own = emit.add("Sub", "local", [known.come, emit.starts("start", route.rows, id_type)], T=Type(id_type))
    attrs = {key: node.attr[key] for key in node.attr if not key.startswith("_")}
    rows = emit.add(node.op, "rows", [texts[0], own] + list(texts[2:]), **attrs)
    back, _ = emit.send_rows("send_rows", rows, known.come_counts, dtype, node.name, num_bytes)
    axis = emit.integers("axis", [0] * emit.shards)
    types = {"Tparams": Type(dtype), "Tindices": Type(INT32), "Taxis": Type(INT32)}
    emit.outputs(node, [emit.add("GatherV2", "in_place", [back, known.places, axis], **types)], [dtype])


def _gradient(emit, node, texts, ids, route):
    """The rows of a gradient, or their ids."""
    facts = emit.facts
    given, known = facts.inputs(node.name)[0], _travelled(emit, node, ids, route)
    dtype = facts.dtype(given)
    if given == route.ids:
        return emit.outputs(node, [known.come], [dtype])
    count = emit.add("Size", "count", [known.sorted], T=Type(facts.dtype(route.ids)), out_type=Type(INT32))
    types = {"T": Type(dtype), "Tindices": Type(INT32), "Tnumsegments": Type(INT32)}
    rows = emit.add("UnsortedSegmentSum", "of_id", [texts[0], known.places, count], **types)
    come, _ = emit.send_rows("send_gradient", rows, known.counts, dtype, text_of(given), facts.num_bytes(given))
    return emit.outputs(node, [come], [dtype])


def routed_writer(op):
    """The function that writes a node of a type whose strategy is routed."""
    return _gradient if op == "Reshape" else _look_up
