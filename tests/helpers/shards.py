"""Runs a partitioned graph in one process: a copy for each shard in one graph, collectives as plain operations.

add, concatenate and split in place of all-reduce, all-gather, reduce-scatter and all-to-all
"""

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.record import make_program
from epl.cluster.machine import NOMINAL
from epl.communicators import library
from epl.graph import tags
from epl.graph.index import format_input, parse_input
from epl.graph.node_defs import Type, constant, make_node
from epl.partition.conversion import shard_sizes
from epl.partition.emit import type_list
from epl.partition.marks import Marks
from epl.partition.partition import partition
from epl.partition.partitioned import ALL_GATHER, ALL_REDUCE, EXCHANGES, REDUCE_SCATTER, SEND_ROWS, for_shard
from epl.rules import effects

_JOINS = {"sum": "AddN", "max": "Maximum", "min": "Minimum", "prod": "Mul"}
# What TensorFlow would make of so many nodes takes longer than to run them once.
_AS_IT_IS = tf.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True)
_AS_IT_IS.graph_options.rewrite_options.disable_meta_optimizer = True
_AS_IT_IS.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0

# By which a partition compares costs.
MACHINE = NOMINAL


def partitioned(graph, shards, variables=(), tensors=None, placements=None, by_rows=False):
    """The Partitioned program of a tf.Graph; `by_rows`: shards divide the rows of what is fed in the forward pass."""
    program, rows = make_program(graph), {}
    if by_rows:
        nodes = program.graph.nodes
        forward = frozenset(name for name, node in nodes.items() if tags.phase(node) == tags.FORWARD)
        rows = {"rows": forward, "batches": frozenset(program.graph.find(effects.PLACEHOLDERS.__contains__))}
    marks = Marks(shards, frozenset(variables), tensors or {}, placements=placements or {}, machine=MACHINE, **rows)
    return partition(program, marks, tf_compat.op_def)


def simulation(done, once=frozenset(), wanted=None):
    """A tf.Graph with all shards of a Partitioned program; shard i's nodes are named "shard_i/...".

    Args:
      done: the Partitioned.
      once: what `same_everywhere` has found; the nodes of shard 0 serve all shards.
      wanted: nodes; others are left out, but for what these need.
    """
    library.load()
    edges = {name: node for name, node in done.graph.nodes.items() if node.op in EXCHANGES}
    kept = set(done.graph.nodes) if wanted is None else done.graph.ancestors(wanted)
    result = tf.GraphDef()
    for shard in range(done.shards):
        for name, node in for_shard(done, shard).nodes.items():
            if name in kept and name not in edges and not (shard and name in once):
                result.node.append(_renamed(node, shard, once))
    for name, node in edges.items():
        if name in kept:
            result.node.extend(_joined(node, done.shards, once))
    result.library.CopyFrom(done.graph.library)
    result.versions.CopyFrom(done.graph.versions)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(result, name="")
    return graph


def same_everywhere(done):
    """The nodes that give all shards the same, because they compute the same of the same."""
    graph, consumers = done.graph, {}
    for name, node in graph.nodes.items():
        for text in node.input:
            consumers.setdefault(parse_input(text).node, []).append(name)
    apart = [
        name
        for name, node in graph.nodes.items()
        if node.op in EXCHANGES or name in done.per_shard or getattr(tf_compat.op_def(node.op), "is_stateful", 1)
    ]
    found = set(apart)
    while apart:
        for name in consumers.get(apart.pop(), ()):
            if name not in found:
                found.add(name)
                apart.append(name)
    return frozenset(set(graph.nodes) - found)


def _in_shard(text, shard, once=frozenset()):
    if text[0] == "^":
        return "^" + _in_shard(text[1:], shard, once)
    return "shard_%d/%s" % (0 if once and parse_input(text).node in once else shard, text)


def _renamed(node, shard, once):
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = _in_shard(node.name, shard)
    copy.input[:] = [_in_shard(text, shard, once) for text in node.input]
    for key in [key for key in copy.attr if key in ("_class", "_output_shapes") or key.startswith("_epl_")]:
        del copy.attr[key]
    if node.op == "VarHandleOp":
        copy.attr["shared_name"].s = copy.name.encode()
    return copy


def _joined(node, shards, once=frozenset()):
    """What stands for a collective: the nodes that give each shard its result under the collective's name."""
    dtype, name = node.attr["T"].type, node.name
    given = [_in_shard(node.input[0], i, once) for i in range(shards)]
    made, count = [], iter(range(1000))

    def add(op, inputs, **attrs):
        made.append(make_node(op, "joined/%s/%d" % (name, next(count)), inputs, T=Type(dtype), **attrs))
        return made[-1].name

    def combined():
        combine = node.attr["combine"].s.decode()
        if combine == "sum":
            return add("AddN", given, N=shards)
        whole = given[0]
        for other in given[1:]:
            whole = add(_JOINS[combine], [whole, other])
        return whole

    def whole_numbers(values):
        made.append(constant("joined/%s/%d" % (name, next(count)), values, 3))
        return made[-1].name

    def concatenated():
        return add("ConcatV2", given + [whole_numbers(node.attr["dim"].i)], N=shards, Tidx=Type(3))

    def divided(text, dim, size):
        if size < 0:
            shape = add("Shape", [text], out_type=Type(3))
            made.append(
                make_node(
                    "GatherV2",
                    "joined/%s/%d" % (name, next(count)),
                    [shape, whole_numbers(dim), whole_numbers(0)],
                    Tparams=Type(3),
                    Tindices=Type(3),
                    Taxis=Type(3),
                )
            )
            sizes = made[-1].name
            for op, value in (("Add", list(range(shards - 1, -1, -1))), ("FloorDiv", shards)):
                other, own = whole_numbers(value), "joined/%s/%d" % (name, next(count))
                made.append(make_node(op, own, [sizes, other], T=Type(3)))
                sizes = own
        else:
            sizes = whole_numbers(shard_sizes(size, shards))
        add("SplitV", [text, sizes, whole_numbers(dim)], num_split=shards, Tlen=Type(3))
        return [format_input(made[-1].name, i) for i in range(shards)]

    if node.op == SEND_ROWS:
        numbers = [_in_shard(node.input[1], i, once) for i in range(shards)]
        pieces = []
        for rows, number in zip(given, numbers):
            add("SplitV", [rows, number, whole_numbers(0)], num_split=shards, Tlen=Type(9))
            pieces.append([format_input(made[-1].name, i) for i in range(shards)])
        made.append(make_node("Pack", "joined/%s/table" % name, numbers, T=Type(9), N=shards, axis=1))
        made.append(make_node("Unpack", "joined/%s/told" % name, [made[-1].name], T=Type(9), num=shards, axis=0))
        told = made[-1].name
        for i in range(shards):
            come = [pieces[j][i] for j in range(shards)]
            come = add("ConcatV2", come + [whole_numbers(0)], N=shards, Tidx=Type(3))
            types = type_list([dtype, 9])
            made.append(make_node("IdentityN", _in_shard(name, i), [come, format_input(told, i)], T=types))
        return made
    if node.op == ALL_REDUCE:
        results = [combined()] * shards
    elif node.op == ALL_GATHER:
        results = [concatenated()] * shards
    elif node.op == REDUCE_SCATTER:
        results = divided(combined(), node.attr["dim"].i, node.attr["size"].i)
    else:
        results = divided(concatenated(), node.attr["to_dim"].i, node.attr["to_size"].i)
    for shard, result in enumerate(results):
        made.append(make_node("Identity", _in_shard(name, shard), [result], T=Type(dtype)))
    return made


def joined(values, placement, tolerance=0.0):
    """The whole of a tensor, of what each shard has of it."""
    if placement is None or placement.kind == "whole":
        for other in values[1:]:  # all shards have the same
            np.testing.assert_allclose(other, values[0], rtol=tolerance, atol=tolerance)
        return values[0]
    if placement.kind == "sharded":
        return np.concatenate(values, axis=placement.dim)
    return {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[placement.combine](values, axis=0)


class Shards(object):
    """A session over all shards of a Partitioned program, next to one over the graph itself.

    Args:
      graph: the tf.Graph.
      done: its Partitioned program.
      tolerance: by how much shards may differ in what each of them has whole: TensorFlow's optimizer may write what
        two of them compute in two ways.
      wanted: names of what will be run; by default all is there.
    """

    def __init__(self, graph, done, tolerance=0.0, wanted=None):
        self.done = done
        self._tolerance = tolerance
        self._once = same_everywhere(done)
        names = None if wanted is None else [parse_input(name).node for name in wanted]
        self._whole = tf.Session(graph=graph, config=_AS_IT_IS)
        self._parts = tf.Session(graph=simulation(done, self._once, names), config=_AS_IT_IS)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._whole.close()
        self._parts.close()

    def run_whole(self, tensors, feeds=None):
        return self._whole.run(tensors, feeds)

    def run(self, tensors, feeds=None):
        """The whole of each tensor, by its name; feeds go to all shards as they are."""
        fed = {name: value for key, value in (feeds or {}).items() for name in self._names(key)}
        names = [self._names(tensor) for tensor in tensors]
        found = self._parts.run(names, fed)
        return [joined(values, self._place(t), self._tolerance) for t, values in zip(tensors, found)]

    def run_operations(self, names, feeds=None):
        """Runs operations in all shards at once."""
        fed = {name: value for key, value in (feeds or {}).items() for name in self._names(key)}
        self._parts.run([each for name in names for each in self._names(name)], fed)

    def _names(self, text):
        """A tensor or an operation in each shard."""
        return [_in_shard(text, i, self._once) for i in range(self.done.shards)]

    def _place(self, tensor):
        return self.done.placements.get(format_input(*parse_input(tensor)))


def exchanged(done, run):
    """The Collectives that a run of an operation needs."""
    needed = done.graph.ancestors([run])
    return [each for each in done.collectives if each.node in needed]


def counts(done, run, phase=None):
    """Kind of a collective to their number in a run of an operation, of one phase of a step or of all."""
    found = {}
    for each in exchanged(done, run):
        if phase in (None, each.phase):
            found[each.kind] = found.get(each.kind, 0) + 1
    return found
