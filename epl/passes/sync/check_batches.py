r"""Refuses a step for which workers that divide the tensors of one model replica were given different data.

    x -> model   becomes   x ------------------------------------> Identity -> model
                            \ digest -> EplAllReduce -> Assert -^-/

Each of these workers computes a part of what follows from the same data, so with different data nothing would be right.
"""

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.index import format_input, parse_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, STRING, UINT8, UINT16
from epl.partition.emit import type_list
from epl.passes.copies.fill_shards import READ_ONCE
from epl.passes.nodes import dtype_of, tagged
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts.names import PREFIX
from epl.program.collective import tag_of
from epl.rules import effects

_AS_NUMBERS = {FLOAT32: INT32, FLOAT64: INT64, BFLOAT16: UINT16, FLOAT16: UINT16}  # their bits
_WHOLE_NUMBERS = frozenset([INT32, UINT8, INT16, INT8, INT64, BOOL, UINT16])
_BUCKETS = 2**31 - 1


def check_batches(program, plan):
    """A comparison for each operation that gives data, where the parts of a replica lie in several workers.

    Raises:
      UnsupportedError: data is read in a loop or a branch.
    """
    if not plan.shards_span_workers:
        return program
    graph, edit = program.graph, program.graph.editor()
    for name in graph.in_order(graph.find(lambda op: op in READ_ONCE or op in effects.PLACEHOLDERS)):
        taken = _taken(graph, plan, name)
        if not taken:
            continue
        if name in plan.analysis.in_control_flow:
            raise UnsupportedError(
                "'%s' (%s) gives data in a loop or a branch, where the workers that divide the model "
                "cannot compare it. Build it outside." % (name, graph.nodes[name].op)
            )
        _compare(graph, edit, plan, name, taken)
    return program.with_graph(edit.finish())


def _taken(graph, plan, name):
    """dict of a node's outputs that can be compared to who takes them, of what devices have copies of."""
    found = {}
    for consumer, position in graph.consumers.get(name, ()):
        index = parse_input(graph.nodes[consumer].input[position]).index
        if index < 0 or consumer not in plan.analysis.cloned or tags.phase(graph.nodes[consumer]) == tags.SAVE:
            continue  # a file may have another name for each worker
        dtype = dtype_of(graph, format_input(name, index))
        if dtype in _AS_NUMBERS or dtype in _WHOLE_NUMBERS or dtype == STRING:
            found.setdefault((index, dtype), []).append((consumer, position))
    return found


def _compare(graph, edit, plan, name, taken):
    host, base = plan.mesh.host_device, "%s_same_batch/%s" % (PREFIX, name)
    group = plan.mesh.tensor_group
    digests = [_digest(edit, host, "%s/%d" % (base, index), format_input(name, index), dtype) for index, dtype in taken]

    def add(op, what, inputs, **attrs):
        return edit.add(tagged(make_node(op, "%s/%s" % (base, what), inputs, host, **attrs), "join")).name

    own = add("Pack", "own", digests, N=len(digests), T=Type(INT64), axis=0)
    pair = [own, add("Neg", "negative", [own], T=Type(INT64))]
    both = add("Pack", "both", pair, N=2, T=Type(INT64), axis=0)
    exchange = make_node(
        "EplAllReduce",
        base,
        [both],
        host,
        N=1,
        R=1,
        num_inputs=1,
        T=Type(INT64),
        comm=group.communicator(0),
        tag=tag_of(base),
        workers=group.num_workers,
        reduce_op="max",
        scale=1.0,
    )
    of_all = edit.add(tagged(exchange, OF_SHARDS)).name
    same = add("Equal", "same", [of_all, both], T=Type(INT64))
    dims = edit.add(constant(base + "/dims", [0, 1], INT32, host)).name
    same = add("All", "all_same", [same, dims], Tidx=Type(INT32), keep_dims=False)
    text = (
        "the workers that divide this model (epl.split, or epl.replicate of a batch of fixed size) have been given "
        "different data by '%s'. Each computes a part of what follows from the same batch: let all of them read, or "
        "feed, the same (without shuffling, or with the same seed)." % name
    )
    message = edit.add(constant(base + "/message", text.encode(), STRING, host)).name
    check = make_node("Assert", base + "/check", [same, message], host, T=type_list([STRING]), summarize=3)
    edit.add(tagged(check, "join"))
    for (index, dtype), consumers in taken.items():
        inputs = [format_input(name, index), "^" + check.name]
        checked = add("Identity", "checked_%d" % index, inputs, T=Type(dtype))
        for consumer, position in consumers:
            edit.set_input(consumer, position, checked)


def _digest(edit, host, base, text, dtype):
    """A number that differs for different tensors, in all likelihood."""

    def add(op, what, inputs, **attrs):
        return edit.add(tagged(make_node(op, "%s/%s" % (base, what), inputs, host, **attrs), "join")).name

    if dtype == STRING:
        text, dtype = add("StringToHashBucketFast", "hash", [text], num_buckets=_BUCKETS), INT64
    if dtype in _AS_NUMBERS:
        text = add("Bitcast", "bits", [text], T=Type(dtype), type=Type(_AS_NUMBERS[dtype]))
        dtype = _AS_NUMBERS[dtype]
    if dtype != INT64:
        text = add("Cast", "numbers", [text], SrcT=Type(dtype), DstT=Type(INT64))
    minus, zero = [edit.add(constant("%s/%s" % (base, v), [i], INT32, host)).name for v, i in _VECTORS]
    flat = add("Reshape", "flat", [text, minus], T=Type(INT64), Tshape=Type(INT32))
    ends = [edit.add(constant("%s/%s" % (base, v), i, INT64, host)).name for v, i in (("first", 1), ("by", 1))]
    size = add("Size", "size", [flat], T=Type(INT64), out_type=Type(INT64))
    end = add("Add", "end", [size, ends[0]], T=Type(INT64))
    places = add("Range", "places", [ends[0], end, ends[1]], Tidx=Type(INT64))
    weighted = add("Mul", "weighted", [flat, places], T=Type(INT64))
    total = add("Sum", "total", [weighted, zero], T=Type(INT64), Tidx=Type(INT32), keep_dims=False)
    return add("Add", "digest", [total, end], T=Type(INT64))


_VECTORS = (("minus_one", -1), ("zero", 0))
