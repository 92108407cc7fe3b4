"""Faults that are planted in compiled graphs, by kind and seed: what an audit or a comparison has to find.

A mutation is a function from a Graph to one with the fault; the same kind and seed plant the same in the same graph.
"""

import collections
import random

from epl.graph import tags
from epl.graph.index import NodeInput, format_input
from epl.graph.lazy import copy_of
from epl.graph.types import INT32
from epl.rules import effects

# One way to break a graph: its kind, the node that is changed, and a function Graph -> Graph.
Mutation = collections.namedtuple("Mutation", "kind node apply")


def mutations(graph, seed, count=None):
    """Mutations of a compiled Graph, `count` at most, all kinds in turn, in an order that follows from a seed."""
    by_kind = collections.OrderedDict((kind, list(find(graph))) for kind, find in KINDS.items())
    rng, found = random.Random(seed), []
    for kind in by_kind:
        rng.shuffle(by_kind[kind])
    while any(by_kind.values()):
        for kind, places in by_kind.items():
            if places:
                found.append(places.pop())
    return found[:count]


def _reduces(graph):
    return [graph.nodes[name] for name in graph.find("EplAllReduce".__eq__)]


def _rewired(name, position, tensor):
    """A function that gives a node another input."""

    def apply(graph):
        node = copy_of(graph.nodes[name])
        node.input[position] = format_input(*tensor)
        return _with(graph, node)

    return apply


def _with(graph, *nodes):
    made = collections.OrderedDict(graph.nodes)
    made.update((node.name, node) for node in nodes)
    return type(graph)(made, graph.library, graph.versions)


def _missing_all_reduce(graph):
    """A consumer of an all-reduce gets what one copy put in."""
    for node in _reduces(graph):
        inputs = graph.inputs[node.name]
        for consumer, position in graph.consumers[node.name]:
            index = graph.inputs[consumer][position].index
            if index >= 0:
                yield Mutation("missing all-reduce", consumer, _rewired(consumer, position, inputs[index]))


def _doubled_all_reduce(graph):
    """Behind an all-reduce its result is added to itself, as where gradients are reduced twice."""
    for node in _reduces(graph):
        for consumer, position in graph.consumers[node.name]:
            taken = graph.inputs[consumer][position]
            if taken.index >= 0:
                yield Mutation("doubled all-reduce", consumer, _doubling(consumer, position, taken, node))


def _doubling(consumer, position, taken, like):
    def apply(graph):
        added = type(copy_of(graph.nodes[consumer]))(op="AddV2", name="%s/doubled_%d" % (consumer, position))
        added.input.extend([format_input(*taken)] * 2)
        added.attr["T"].type = like.attr["T"].type
        return _rewired(consumer, position, NodeInput(added.name, 0))(_with(graph, added))

    return apply


def _wrong_scale(graph):
    for node in _reduces(graph):
        yield Mutation("wrong scale", node.name, _scaling(node.name))


def _scaling(name):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        node.attr["scale"].f = 2 * (node.attr["scale"].f if "scale" in node.attr else 1.0)
        return _with(graph, node)

    return apply


def _one_copy_only(graph):
    """An all-reduce gets the first copy's gradient in the place of another's."""
    for node in _reduces(graph):
        count, inputs = node.attr["N"].i, graph.inputs[node.name]
        for position in range(count, node.attr["num_inputs"].i):
            yield Mutation("one copy only", node.name, _rewired(node.name, position, inputs[position % count]))


def _micro_batches(graph):
    """(node, position, another position) of sums of what several micro-batches give."""
    for name in graph.find(lambda op: op in ("AddV2", "AddN")):
        if tags.get_str(graph.nodes[name], tags.ROLE) == "accumulate":
            yield name, 1, 0


def _doubled_micro_batch(graph):
    for name, position, other in _micro_batches(graph):
        yield Mutation("doubled micro-batch", name, _rewired(name, position, graph.inputs[name][other]))


def _dropped_micro_batch(graph):
    """What takes a sum over micro-batches gets that of the first ones."""
    for name, _, other in _micro_batches(graph):
        for consumer, position in graph.consumers[name]:
            if graph.inputs[consumer][position].index >= 0:
                yield Mutation("dropped micro-batch", consumer, _rewired(consumer, position, graph.inputs[name][other]))


def _swapped_gradients(graph):
    """Two updates get each other's gradients."""
    writes = [name for name in graph.find(lambda op: "Apply" in op) if graph.nodes[name].op in _GRADIENT]
    for one, other in zip(writes, writes[1:]):
        position = _GRADIENT[graph.nodes[one].op]
        if graph.nodes[other].op == graph.nodes[one].op:
            yield Mutation("swapped gradients", one, _rewired(one, position, graph.inputs[other][position]))


# Where updates take the gradient.
_GRADIENT = {"ApplyGradientDescent": 2, "ApplyMomentum": 3, "ApplyAdam": 9}


def _update_twice(graph):
    for name in graph.find(lambda op: effects.is_write(op) and "Apply" in op):
        yield Mutation("update twice", name, _twice(name))


def _twice(name):
    def apply(graph):
        again = copy_of(graph.nodes[name])
        again.name = name + "/again"
        again.input.append("^" + name)
        waiting = [copy_of(graph.nodes[each]) for each, at in graph.consumers[name] if graph.inputs[each][at].index < 0]
        for node in waiting[:1]:  # it runs where that one does
            node.input.append("^" + again.name)
        return _with(graph, again, *waiting[:1])

    return apply


def _missing_update(graph):
    for name in graph.find(lambda op: effects.is_write(op) and "Apply" in op):
        if all(graph.inputs[consumer][position].index < 0 for consumer, position in graph.consumers[name]):
            yield Mutation("missing update", name, _left_out(name))


def _left_out(name):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        empty = type(node)(op="NoOp", name=name, device=node.device)
        empty.input.extend("^" + each for each in sorted({each.node for each in graph.inputs[name]}))
        return _with(graph, empty)

    return apply


def _sum_for_a_mean(graph):
    for name in graph.find("EplReduceScatter".__eq__):
        if tags.get_str(graph.nodes[name], "reduce_op") == "mean":
            yield Mutation("sum for a mean", name, _summing(name))


def _summing(name):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        node.attr["reduce_op"].s = b"sum"
        return _with(graph, node)

    return apply


def _wrong_shard(graph):
    """Two tensors of one shape that are cut out of a vector begin where the other one does."""
    for name in graph.find("EplParts".__eq__):
        shapes = [each.SerializeToString() for each in graph.nodes[name].attr["shapes"].list.shape]
        for one in range(len(shapes)):
            for other in range(one + 1, len(shapes)):
                if shapes[one] == shapes[other]:
                    yield Mutation("wrong shard", name, _exchanging(name, one, other))


def _exchanging(name, one, other):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        starts = node.attr["starts"].list.i
        starts[one], starts[other] = starts[other], starts[one]
        return _with(graph, node)

    return apply


def _wrong_row_order(graph):
    """Two tensors of one size change places in what a worker hands in to a reduction."""
    for name in graph.find("EplReduceScatter".__eq__):
        taken = graph.inputs[name][: tags.get_int(graph.nodes[name], "N")]
        flat = [place for place, each in enumerate(taken) if graph.nodes[each.node].op == "Reshape"]
        for one, other in zip(flat, flat[1:]):
            yield Mutation("wrong row order", name, _changing_places(name, one, other))


def _changing_places(name, one, other):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        node.input[one], node.input[other] = node.input[other], node.input[one]
        return _with(graph, node)

    return apply


def _stale_weight(graph):
    """What is sent to other copies is the variable before its update."""
    for name in graph.find(lambda op: op in ("Identity", "ReadVariableOp")):
        waited = [each.node for each in graph.inputs[name] if each.index < 0]
        if any(effects.is_write(graph.nodes[each].op) for each in waited) and _sent(graph, name):
            yield Mutation("stale weight", name, _not_waiting(name))


def _sent(graph, name):
    return any(graph.nodes[each].op == "EplAllGather" for each in graph.descendants([name], data_only=True))


def _not_waiting(name):
    def apply(graph):
        node = copy_of(graph.nodes[name])
        kept = [each for each in node.input if not each.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
        return _with(graph, node)

    return apply


def _copy_not_updated(graph):
    """A copy of a variable gets its own value in the place of that of the copy which is updated."""
    for name in graph.find(lambda op: op in effects.SETS):
        taken = graph.inputs[name]
        if graph.nodes[taken[effects.VALUE_INPUT].node].op == "EplParts" and graph.nodes[name].op == "Assign":
            yield Mutation("copy not updated", name, _rewired(name, effects.VALUE_INPUT, taken[0]))


def _wrong_weight(graph):
    """What computes with a variable gets another one of the same shape in its place."""
    reads, used = collections.OrderedDict(), graph.ancestors(graph.find(effects.is_write), data_only=True)
    for name in graph.find("VariableV2".__eq__):
        for consumer, _ in graph.consumers[name]:
            if graph.nodes[consumer].op == "Identity" and graph.consumers[consumer]:
                node = graph.nodes[name]
                key = node.attr["shape"].SerializeToString(), tags.get_int(node, tags.INSTANCE)
                reads.setdefault(key, []).append(consumer)
                break
    for alike in reads.values():
        for one, other in zip(alike, alike[1:]):
            for consumer, position in graph.consumers[one]:
                if (
                    consumer in used
                    and graph.nodes[consumer].op == "MatMul"
                    and graph.inputs[consumer][position].index == 0
                ):
                    yield Mutation("wrong weight", consumer, _rewired(consumer, position, NodeInput(other, 0)))


def _gathers(graph):
    """(EplAllGather of the indices, that of the values) of sparse gradients."""
    for name in graph.find("EplAllGather".__eq__):
        values = name[: -len("indices")] + "values"
        if name.endswith("/indices") and values in graph.nodes:
            yield name, values


def _missing_gather(graph):
    """What takes rows of all copies gets those of the first one."""
    for pair in _gathers(graph):
        if graph.nodes[pair[0]].attr["R"].i > 1:
            yield Mutation("missing gather", pair[1], _gathering(pair, lambda taken: taken[:1] * len(taken)))


def _indices_in_another_order(graph):
    """The rows of two copies change places, their indices do not."""
    for pair in _gathers(graph):
        if graph.nodes[pair[0]].attr["R"].i > 1:
            yield Mutation("indices in another order", pair[0], _gathering(pair[:1], lambda taken: taken[::-1]))


def _gathering(names, other):
    """A function that gives nodes what `other` makes of the list of their inputs."""

    def apply(graph):
        nodes = [copy_of(graph.nodes[name]) for name in names]
        for node in nodes:
            node.input[:] = other(list(node.input))
        return _with(graph, *nodes)

    return apply


def _doubled_gather(graph):
    """What takes rows of all copies gets them twice, with their indices."""
    for pair in _gathers(graph):
        yield Mutation("doubled gather", pair[1], _following(pair))


def _following(pair):
    def apply(graph):
        for name in pair:
            twice = name + "/twice"
            axis = copy_of(graph.nodes[name])
            for consumer, position in list(graph.consumers[name]):
                if graph.inputs[consumer][position].index == 0:
                    graph = _rewired(consumer, position, NodeInput(twice, 0))(graph)
            node = type(axis)(op="ConcatV2", name=twice, device=axis.device)
            node.input.extend([name, name, twice + "/axis"])
            node.attr["N"].i = 2
            node.attr["T"].type = axis.attr["T"].type
            node.attr["Tidx"].type = INT32
            graph = _with(graph, node, _zero(axis, twice + "/axis"))
        return graph

    return apply


def _zero(like, name):
    node = type(like)(op="Const", name=name, device=like.device)
    node.attr["dtype"].type = INT32
    node.attr["value"].tensor.dtype = INT32
    node.attr["value"].tensor.tensor_shape.SetInParent()
    node.attr["value"].tensor.int_val.append(0)
    return node


def _wrong_scale_of_rows(graph):
    """Rows of all copies are taken as they are, not as the n-th part of them."""
    for _, values in _gathers(graph):
        for scaled, _ in graph.consumers[values]:
            for consumer, position in graph.consumers[scaled]:
                if graph.nodes[scaled].op == "Mul" and graph.inputs[consumer][position].index == 0:
                    taken = NodeInput(values, 0)
                    yield Mutation("wrong scale of rows", consumer, _rewired(consumer, position, taken))


def _norm_of_a_part(graph):
    """A norm of all gradients has the sum of squares of one of them in the place of another's."""
    for name in graph.find(lambda op: op in ("Pack", "AddN")):
        taken = graph.inputs[name]
        if len(taken) > 1 and all(graph.nodes[each.node].op == "L2Loss" for each in taken):
            yield Mutation("norm of a part", name, _rewired(name, 1, taken[0]))


KINDS = collections.OrderedDict(
    [
        ("missing all-reduce", _missing_all_reduce),
        ("doubled all-reduce", _doubled_all_reduce),
        ("wrong scale", _wrong_scale),
        ("one copy only", _one_copy_only),
        ("doubled micro-batch", _doubled_micro_batch),
        ("swapped gradients", _swapped_gradients),
        ("update twice", _update_twice),
        ("wrong weight", _wrong_weight),
        ("dropped micro-batch", _dropped_micro_batch),
        ("missing update", _missing_update),
        ("sum for a mean", _sum_for_a_mean),
        ("wrong shard", _wrong_shard),
        ("wrong row order", _wrong_row_order),
        ("stale weight", _stale_weight),
        ("copy not updated", _copy_not_updated),
        ("missing gather", _missing_gather),
        ("doubled gather", _doubled_gather),
        ("wrong scale of rows", _wrong_scale_of_rows),
        ("indices in another order", _indices_in_another_order),
        ("norm of a part", _norm_of_a_part),
    ]
)
