r"""Batch normalisation over the batches of all instances, forward and backward.

    x   -> FusedBatchNorm                         x   -> mean, variance \               / normalise
    x/1 -> FusedBatchNorm/1      becomes                                 EplAllGather ->
                                                  x/1 -> mean, variance /               \ normalise/1

The gradient is that of normalisation by the statistics of the whole batch (Ioffe and Szegedy, 2015, section 3): it
needs two sums over the batch, which are all-reduced. The nodes keep their names, types and outputs. Moments that are
built of plain operations stay as they are: the mean over all instances takes the place of each of them, and of the
gradient with respect to each.

Where copies have different parts of a batch (cluster.device_weights), a mean over copies is one over all rows: a copy
counts for as many times the mean part of a copy as it has.
"""

from epl.graph.index import format_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import FLOAT32, INT32
from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of, rewire
from epl.plan.facts.names import clone_name
from epl.plan.layout.rows import mean_factors
from epl.plan.sync.batch_norm import SyncedMean


def sync_batch_norm(program, plan):
    """Synchronises what plan.batch_norms names."""
    graph = program.graph
    if not plan.batch_norms:
        return program
    edit = graph.editor()
    for norm in plan.batch_norms:
        if isinstance(norm, SyncedMean):
            dtype = dtype_of(graph, norm.tensor)
            scale = 1.0 / plan.num_copies(norm.tensor)
            edit.add(all_reduce_node(plan, norm.name, [norm.tensor], dtype, scale))
            rewire(edit, plan, norm.consumers, norm.name)
        else:
            for shard_rank in norm.shard_ranks(plan.mesh, norm.node):
                _forward(edit, plan, norm, shard_rank)
            for gradient in norm.gradients:
                for shard_rank in norm.shard_ranks(plan.mesh, gradient):
                    _backward(edit, plan, norm, gradient, shard_rank)
    return program.with_graph(edit.finish())


class _Builder(object):
    """Adds float32 nodes for one instance's copy of a normalisation, each named after what it is.

    Attributes:
      part: how many times the mean part of a batch the instance has; None where all have as much.
    """

    def __init__(self, edit, node, prefix, part=None):
        self.part = part
        self._edit = edit
        self._prefix = prefix
        self._device = node.device
        data_format = node.attr["data_format"].s.decode() if "data_format" in node.attr else "NHWC"
        self._axes = [i for i, letter in enumerate(data_format) if letter != "C"]
        self._behind = len(data_format) - 1 - data_format.index("C")
        self.dtype = node.attr["T"].type

    def add(self, name, op, inputs, **attrs):
        return self._edit.add(make_node(op, "%s/%s" % (self._prefix, name), inputs, self._device, **attrs)).name

    def math(self, name, op, *inputs):
        return self.add(name, op, inputs, T=Type(FLOAT32))

    def constant(self, name, value, dtype=FLOAT32):
        return self._edit.add(constant("%s/%s" % (self._prefix, name), value, dtype, self._device)).name

    def column(self, name, values):
        """Numbers as a matrix of one column."""
        shape = self.constant(name + "/shape", [-1, 1], INT32)
        inputs = [self.constant(name, values), shape]
        return self.add(name + "/column", "Reshape", inputs, T=Type(FLOAT32), Tshape=Type(INT32))

    def cast(self, name, tensor, source, target):
        if source == target:
            return tensor
        return self.add(name, "Cast", [tensor], SrcT=Type(source), DstT=Type(target))

    def in_turn(self, name, node, tensor):
        """The tensor, but not before the gate of a pipeline's schedule that `node` waits for."""
        gates = [text for text in node.input if text[0] == "^" and self._edit.peek(text[1:]).op == "EplGate"]
        return self.add(name, "Identity", [tensor] + gates, T=Type(self.dtype)) if gates else tensor

    def reduce(self, name, op, tensor):
        """Over all dimensions but the channels: [..., C] to [C]."""
        axes = self.constant(name + "/axes", self._axes, INT32)
        return self.add(name, op, [tensor, axes], T=Type(FLOAT32), Tidx=Type(INT32), keep_dims=False)

    def over(self, name, op, tensor, axis):
        axes = self.constant(name + "/axes", [axis], INT32)
        return self.add(name, op, [tensor, axes], T=Type(FLOAT32), Tidx=Type(INT32), keep_dims=False)

    def broadcast(self, name, tensor):
        """[C] in a shape that is broadcast over the tensor."""
        if not self._behind:
            return tensor
        shape = self.constant(name + "/shape", [-1] + [1] * self._behind, INT32)
        return self.add(name, "Reshape", [tensor, shape], T=Type(FLOAT32), Tshape=Type(INT32))

    def count(self, name, tensor, channels):
        """The numbers of a tensor for each channel, as float32."""
        sizes = [
            self.cast(
                "%s/%s_float" % (name, what),
                self.add("%s/%s" % (name, what), "Size", [each], T=Type(FLOAT32), out_type=Type(INT32)),
                INT32,
                FLOAT32,
            )
            for what, each in (("size", tensor), ("channels", channels))
        ]
        return self.math(name, "RealDiv", *sizes)

    def own_mean(self, name, total, count):
        """What an instance gives of a sum over its part of the rows, so that the mean over all instances is that over
        all rows, but for the number of rows where it differs from instance to instance."""
        if self.part is not None:
            return self.math(name, "Mul", total, self.constant(name + "_part", self.part))
        return self.math(name, "RealDiv", total, count)

    def mean_of_all(self, name, mean, count):
        """The mean over all rows, of the mean over all instances of what each gives."""
        return mean if self.part is None else self.math(name, "RealDiv", mean, count)


def _copies(edit, plan, name, shard_rank):
    """(this editor's own NodeDef of an instance's copy, Builder, the place of what the instance gives; None where
    another device of its copy of the model gives the same) of each."""
    mesh = plan.mesh
    parts = mean_factors(mesh, mesh.instances) if mesh.weights else [None] * len(mesh.instances)
    givers = mesh.givers(shard_rank, plan.stage(name))
    for instance in mesh.active if shard_rank is None else givers:
        node = edit.node(clone_name(name, instance.index))
        prefix = clone_name("epl_batch_norm/%s/local" % name, instance.index)
        yield (
            node,
            _Builder(edit, node, prefix, parts[instance.index]),
            givers.index(instance) if instance in givers else None,
        )


def _data_inputs(node):
    return [text for text in node.input if text[0] != "^"]


def _epsilon(node):
    return node.attr["epsilon"].f if "epsilon" in node.attr else 1e-4


def _forward(edit, plan, norm, shard_rank):
    name = norm.collective(norm.node, shard_rank)
    copies = list(_copies(edit, plan, norm.node, shard_rank))
    gather = all_gather_node(plan, name, norm.node, FLOAT32)
    inputs = []
    for node, b, place in copies:
        x = b.cast("x", b.in_turn("x_in_turn", node, _data_inputs(node)[0]), b.dtype, FLOAT32)
        inputs.append(x)
        if place is None:
            continue
        mean = b.reduce("mean", "Mean", x)
        squares = b.math("squares", "SquaredDifference", x, b.broadcast("mean_spread", mean))
        both = b.add("both", "Pack", [mean, b.reduce("variance", "Mean", squares)], N=2, T=Type(FLOAT32), axis=0)
        gather.input[place] = b.add("row", "Pack", [both], N=1, T=Type(FLOAT32), axis=0)
    edit.add(gather)
    for (node, b, _), x in zip(copies, inputs):
        _normalise(b, node, x, name, _parts_of_all(plan, norm.node))


def _parts_of_all(plan, name):
    """Of each instance with a copy of a node, over all workers, how many times the mean part of a batch it has."""
    copies, weights = plan.num_copies(name), plan.mesh.weights or (1,)
    return [weights[rank % len(weights)] * len(weights) / sum(weights) for rank in range(copies)]


def _normalise(b, node, x, gathered, parts):
    """The node becomes an IdentityN of what it computed, now from the statistics [instances, 2, C] of all."""

    def over_all(name, each):
        if b.part is not None:
            each = b.math(name + "_parts", "Mul", each, b.column(name + "_factors", parts))
        return b.over(name, "Mean", each, 0)

    _, scale, offset = _data_inputs(node)[:3]
    unpacked = b.add("all", "Unpack", [gathered], num=2, T=Type(FLOAT32), axis=1)
    mean = over_all("global_mean", unpacked)
    # The variance of the whole is the mean of the variances plus the variance of the means; no large squares cancel.
    between = b.math("between", "SquaredDifference", unpacked, mean)
    variance = over_all("global_variance", b.math("spreads", "AddV2", unpacked + ":1", between))
    factor = b.math("factor", "Mul", _inverse(b, node, variance), scale)
    centred = b.math("centred", "Sub", x, b.broadcast("mean_all", mean))
    scaled = b.math("scaled", "Mul", centred, b.broadcast("factor_all", factor))
    y = b.math("y", "AddV2", scaled, b.broadcast("offset_all", offset))
    one = b.constant("one", 1.0)
    copies = b.constant("instances", len(parts) / (b.part or 1.0))
    count = b.math("count_all", "Mul", b.count("count", x, mean), copies)
    less = b.math("count_at_least_one", "Maximum", b.math("count_less", "Sub", count, one), one)
    unbiased = b.math("unbiased", "Mul", variance, b.math("correction", "RealDiv", count, less))
    results = [b.cast("y_cast", y, FLOAT32, b.dtype), mean, unbiased, mean, variance]
    if node.op == "FusedBatchNormV3":
        results.append(mean)  # the reserve that only its own gradient kernel takes
    _become(node, results, b.dtype)


def _inverse(b, node, variance):
    epsilon = b.constant("epsilon", _epsilon(node))
    return b.math("inverse", "Rsqrt", b.math("variance_epsilon", "AddV2", variance, epsilon))


def _backward(edit, plan, norm, gradient, shard_rank):
    name = norm.collective(gradient, shard_rank)
    copies = list(_copies(edit, plan, gradient, shard_rank))
    scale = 1.0 / plan.num_copies(gradient)
    reduce = all_reduce_node(plan, name, [gradient, gradient], FLOAT32, scale)
    parts = []
    for node, b, place in copies:
        g, x, _, mean, _ = _data_inputs(node)[:5]
        g, x = b.in_turn("g_in_turn", node, g), b.in_turn("x_in_turn", node, x)
        g, x = b.cast("g", g, b.dtype, FLOAT32), b.cast("x", x, b.dtype, FLOAT32)
        centred = b.math("centred", "Sub", x, b.broadcast("mean_all", mean))
        sums = [
            b.reduce("sum", "Sum", g),
            b.reduce("product_sum", "Sum", b.math("product", "Mul", g, centred)),
        ]
        count = b.count("count", x, mean)
        if place is not None:
            given = [b.own_mean("mean_%d" % which, each, count) for which, each in enumerate(sums)]
            reduce.input[2 * place : 2 * place + 2] = given
        parts.append((g, centred, sums, count))
    edit.add(reduce)
    for (node, b, _), (g, centred, sums, count) in zip(copies, parts):
        means = [b.mean_of_all("all_%d" % which, format_input(name, which), count) for which in (0, 1)]
        _differentiate(b, node, g, centred, sums, means)


def _differentiate(b, node, g, centred, sums, means):
    """x' = scale * inverse * (g - mean(g) - centred * inverse^2 * mean(g * centred)), means over the whole batch: those
    of what adds up over its rows, by the number of the instance's own, of whose loss the gradient is."""
    _, _, scale, mean, variance = _data_inputs(node)[:5]
    inverse = _inverse(b, node, variance)
    slope = b.math("slope", "Mul", b.math("inverse_square", "Square", inverse), means[1])
    part = b.math("part", "Mul", centred, b.broadcast("slope_all", slope))
    rest = b.math("rest", "Sub", b.math("g_centred", "Sub", g, b.broadcast("g_mean", means[0])), part)
    factor = b.broadcast("factor_all", b.math("factor", "Mul", inverse, scale))
    x = b.cast("x_cast", b.math("x_gradient", "Mul", rest, factor), FLOAT32, b.dtype)
    _become(node, [x, b.math("scale_gradient", "Mul", inverse, sums[1]), sums[0], mean, mean], b.dtype)


def _become(node, results, first_dtype):
    """Makes a node an IdentityN of `results`, the first of another type than the rest; it keeps its name and tags."""
    controls = [text for text in node.input if text[0] == "^"]
    node.op = "IdentityN"
    del node.input[:]
    node.input.extend(results + controls)
    for key in list(node.attr):
        if not key.startswith("_"):
            del node.attr[key]
    node.attr["T"].list.type.extend([first_dtype] + [FLOAT32] * (len(results) - 1))
