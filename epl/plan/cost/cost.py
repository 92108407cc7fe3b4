"""What operations cost, estimated from shapes: time of the forward and backward pass, bytes kept between them.

An operation takes the longer of its arithmetic and its memory traffic (the roofline model: Williams et al., "Roofline:
An Insightful Visual Performance Model", CACM 2009), plus the overhead of starting it. Matrix products and convolutions
count arithmetic, everything else only bytes. The figures serve to compare parts of a model with one another, not to
estimate seconds. Not seen: what function bodies and loops do more than once, which counts as if done once.
"""

import collections
from dataclasses import dataclass
from typing import Any, FrozenSet

from epl.cluster.machine import NOMINAL, Machine
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.program.specs import TensorSpec
from epl.rules import effects, tensors

# What a dimension that the graph does not know (the batch, usually) counts as.
UNKNOWN_SIZE = 32


@dataclass(frozen=True)
class OpCost:
    """Estimates for one operation of the forward pass, once, and for what the backward pass does because of it.

    Attributes:
      flops, num_bytes: of the forward pass.
      forward_s: seconds of the forward pass.
      backward_s: seconds of the gradients with respect to inputs that come from data.
      weight_s: seconds of the gradients with respect to inputs that come from variables.
      output_bytes: of all outputs.
      from_data: the operation depends on what the model is fed, or on chance.
      from_variables: it depends on variables.
      held: an output cannot be sent to another device: a handle of a resource, a list of tensors, strings.
    """

    flops: float
    num_bytes: float
    forward_s: float
    backward_s: float
    weight_s: float
    output_bytes: int
    from_data: bool
    from_variables: bool
    held: bool

    @property
    def total_s(self):
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True)
class Costs:
    """Estimates for a forward pass.

    Attributes:
      operations: dict of their names to OpCost, in creation order.
      bytes_of: function of a canonical tensor name to its bytes.
      kept: canonical names of the tensors that the backward pass uses.
      machine: what was assumed of the device.
      unknown_size: what dimensions count as that the graph does not know.
    """

    operations: Any
    bytes_of: Any
    kept: FrozenSet[str]
    machine: Machine
    unknown_size: int


@dataclass(frozen=True)
class StageCost:
    """Estimates for a stage and one micro-batch. Attributes as in OpCost; activation_bytes: kept for the backward
    pass."""

    forward_s: float
    backward_s: float
    weight_s: float
    activation_bytes: int


def forward_costs(graph, names, spec_of, machine=NOMINAL, unknown_size=UNKNOWN_SIZE):
    """Estimates for the forward pass of a model.

    Args:
      graph: an epl.graph.index.Graph.
      names: operations that a training step runs; those of other phases than the forward pass are left out.
      spec_of: function of a canonical tensor name ("a", "a:1") to its TensorSpec, or None for none.
      machine: an epl.cluster.machine.Machine.
      unknown_size: what a dimension that the graph does not know counts as.

    Returns:
      Costs.
    """
    device, sizes = machine.device, _Sizes(spec_of, unknown_size)
    forward = [n for n in graph.in_order(names) if tags.phase(graph.nodes[n]) == tags.FORWARD]
    data = [n for n in forward if graph.nodes[n].op in _DATA] or _constant_data(graph, forward, sizes)
    variables = [n for n in forward if graph.nodes[n].op in effects.VARIABLES]
    from_data, from_variables = graph.descendants(data, data_only=True), graph.descendants(variables, data_only=True)
    backward = [n for n, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD]
    trained = graph.ancestors(backward) if backward else graph.nodes
    outputs = _outputs(graph)
    found = collections.OrderedDict()
    for name in forward:
        node, used = graph.nodes[name], outputs.get(name, [name])
        inputs = [canonical_tensor(text) for text in node.input if text[0] != "^"]
        flops = ARITHMETIC[node.op](node, inputs, used[0], sizes) if node.op in ARITHMETIC else 0
        num_bytes = _traffic(node.op, inputs, used, sizes)
        seconds = gradient_s = weight_s = 0.0
        if node.op not in FREE:
            arithmetic = flops / device.flops_per_s(flops) if flops else 0.0
            seconds = device.start_s + max(arithmetic, num_bytes / device.memory_bytes_per_s)
            if name in trained and name in from_variables and sizes.spec(used[0]).dtype in types.FLOAT_TYPES:
                wanted = [t for t in inputs if node_of(t) in from_variables and sizes.spec(t).dtype in _DIFFERENTIABLE]
                of_data = sum(node_of(t) in from_data for t in wanted)
                gradient_s, weight_s = _backward(seconds, flops > 0, of_data, len(wanted) - of_data)
        found[name] = OpCost(
            flops=flops,
            num_bytes=num_bytes,
            forward_s=seconds,
            backward_s=gradient_s,
            weight_s=weight_s,
            output_bytes=sum(sizes.num_bytes(tensor) for tensor in used),
            from_data=name in from_data,
            from_variables=name in from_variables,
            held=any(sizes.spec(tensor).dtype in _HELD_TYPES for tensor in used),
        )
    return Costs(found, sizes.num_bytes, _kept(graph, found), machine, unknown_size)


def stage_costs(graph, costs, stage_of, num_stages):
    """Estimates per stage.

    Args:
      graph: the graph of `costs`.
      costs: what `forward_costs` returned.
      stage_of: dict of operation to stage; operations that it lacks count for stage 0.
      num_stages: how many stages there are.

    Returns:
      A list with one StageCost per stage.
    """
    times = [[0.0, 0.0, 0.0] for _ in range(num_stages)]
    for name, cost in costs.operations.items():
        sums = times[stage_of.get(name, 0)]
        for i, seconds in enumerate((cost.forward_s, cost.backward_s, cost.weight_s)):
            sums[i] += seconds
    activations = [0] * num_stages
    for tensor in sorted(costs.kept):
        activations[stage_of.get(node_of(tensor), 0)] += costs.bytes_of(tensor)
    return [StageCost(f, b, w, size) for (f, b, w), size in zip(times, activations)]


def cut_bytes(graph, costs, stage_of, num_stages):
    """Bytes of the tensors that cross from each stage to the next: [num_stages - 1].

    A tensor that skips stages counts at each border that it passes. What depends on variables alone does not count.
    """
    crossing = [0] * max(0, num_stages - 1)
    last_use = {}
    for name in costs.operations:
        for text in graph.nodes[name].input:
            producer = node_of(text)
            if text[0] != "^" and producer in costs.operations and costs.operations[producer].from_data:
                tensor = canonical_tensor(text)
                last_use[tensor] = max(last_use.get(tensor, 0), stage_of.get(name, 0))
    for tensor, last in last_use.items():
        for border in range(stage_of.get(node_of(tensor), 0), last):
            crossing[border] += costs.bytes_of(tensor)
    return crossing


def tensor_sizes(spec_of, unknown_size=UNKNOWN_SIZE):
    """A function of a canonical tensor name to its estimated bytes; 0 where nothing is known of the tensor."""
    return _Sizes(spec_of, unknown_size).num_bytes


class _Sizes(object):
    """Shapes and bytes of tensors, with a guess where the graph does not know them."""

    def __init__(self, spec_of, unknown_size):
        self._spec_of = spec_of
        self._unknown_size = unknown_size
        self._known = {}

    def spec(self, tensor):
        if tensor not in self._known:
            spec = self._spec_of(tensor) or TensorSpec((), 0)
            shape = tuple(self._unknown_size if d < 0 else d for d in spec.shape or ())
            self._known[tensor] = TensorSpec(shape, types.base(spec.dtype))  # above 100: a reference to the same type
        return self._known[tensor]

    def shape(self, tensor):
        return self.spec(tensor).shape

    def num_bytes(self, tensor):
        spec = self.spec(tensor)
        return _count(spec.shape) * types.DTYPE_BYTES.get(spec.dtype, 0)


def _count(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def _constant_data(graph, forward, sizes):
    """Constants that stand for data, in models that are fed nothing: tests and benchmarks."""
    specs = [(n, sizes.spec(n)) for n in forward if graph.nodes[n].op in tensors.CONSTANTS]
    return [n for n, spec in specs if spec.dtype in types.FLOAT_TYPES and spec.shape]


def _outputs(graph):
    """Node to the canonical names of those of its outputs that other nodes use."""
    found = {}
    for node in graph.nodes.values():
        for text in node.input:
            if text[0] != "^":
                found.setdefault(node_of(text), set()).add(canonical_tensor(text))
    return {name: sorted(tensors) for name, tensors in found.items()}


def _backward(forward_s, heavy, of_data, of_variables):
    """(seconds of the gradients of inputs from data, of those from variables).

    A matrix product's gradient takes, for each input that needs one, a product as long as the forward pass. Other
    operations take about the forward pass's time once.

    Args:
      heavy: the operation is a matrix product or a convolution.
      of_data, of_variables: number of inputs that need a gradient.
    """
    if heavy:
        return forward_s * of_data, forward_s * of_variables
    if of_data:
        return forward_s, 0.0
    return 0.0, forward_s if of_variables else 0.0


def _traffic(op, inputs, outputs, sizes):
    """Bytes that an operation reads and writes."""
    if op in FREE:
        return 0
    written = sum(sizes.num_bytes(tensor) for tensor in outputs)
    if op in READS_SLICE:  # reads of its first input only what it gives on
        return 2 * written
    return written + sum(sizes.num_bytes(tensor) for tensor in inputs)


def _kept(graph, found):
    """The forward tensors that the backward pass uses, for views of a tensor the tensor itself.

    Where the graph has no backward pass, all outputs that depend on data.
    """
    backward = {name for name, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD}
    kept = set()
    for name, cost in found.items():
        if not cost.from_data or cost.held:
            continue
        for consumer, position in graph.consumers.get(name, ()):
            text = graph.nodes[consumer].input[position]
            if text[0] == "^" or graph.nodes[consumer].op in _SHAPE_ONLY:
                continue
            if consumer in backward or (not backward and consumer in found):
                kept.add(_root(graph, canonical_tensor(text)))
    return frozenset(t for t in kept if node_of(t) in found)


def _root(graph, tensor):
    """The tensor whose memory a view of it uses."""
    node = graph.nodes[node_of(tensor)]
    while node.op in tensors.VIEWS and node.input and node.input[0][0] != "^":
        tensor = canonical_tensor(node.input[0])
        node = graph.nodes[node_of(tensor)]
    return tensor


def _matmul(transposed):
    def flops(node, inputs, output, sizes):
        shape = sizes.shape(inputs[0])
        if len(shape) < 2:
            return 0
        inner = shape[-2] if transposed in node.attr and node.attr[transposed].b else shape[-1]
        return 2 * _count(sizes.shape(output)) * inner

    return flops


def _convolution(filter_of, spread_over):
    """Two operations per element of `spread_over` and element of the filter of one channel out.

    Args:
      filter_of, spread_over: position among the inputs, or None for the output.
    """

    def flops(node, inputs, output, sizes):
        kernel = sizes.shape(output if filter_of is None else inputs[filter_of])
        spread = sizes.shape(output if spread_over is None else inputs[spread_over])
        return 2 * _count(spread) * _count(kernel[:-1]) if kernel else 0

    return flops


def _depthwise(node, inputs, output, sizes):
    return 2 * _count(sizes.shape(output)) * _count(sizes.shape(inputs[1])[:2])


def _einsum(node, inputs, output, sizes):
    """Two operations per combination of all labels."""
    terms = node.attr["equation"].s.decode().replace(" ", "").split("->")[0].split(",")
    dims = {}
    for term, tensor in zip(terms, inputs):
        shape = sizes.shape(tensor)
        before, dots, after = term.partition("...")
        labels = list(before)
        if dots:
            labels += ["...%d" % i for i in range(len(shape) - len(before) - len(after))]
        dims.update(zip(labels + list(after), shape))
    return 2 * _count(dims.values()) if len(inputs) > 1 else 0


# Operation type to a function of (node, tensors that it takes, tensor that it makes, what knows their shapes).
ARITHMETIC = {
    "MatMul": _matmul("transpose_a"),
    "SparseMatMul": _matmul("transpose_a"),
    "BatchMatMul": _matmul("adj_x"),
    "BatchMatMulV2": _matmul("adj_x"),
    "BatchMatMulV3": _matmul("adj_x"),
    "Einsum": _einsum,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2D": _convolution(1, None),
    "Conv3D": _convolution(1, None),
    "Conv2DBackpropInput": _convolution(1, 2),
    "Conv3DBackpropInputV2": _convolution(1, 2),
    "Conv2DBackpropFilter": _convolution(None, 2),
    "Conv3DBackpropFilterV2": _convolution(None, 2),
}

HEAVY = frozenset(ARITHMETIC)

_DATA = effects.DIFFERING | effects.PLACEHOLDERS

# They do nothing to data: names for the same memory, constants, questions about shapes.
_SHAPE_ONLY = tensors.SHAPE_ONLY | {"BroadcastGradientArgs"}
FREE = (
    tensors.VIEWS
    | _SHAPE_ONLY
    | effects.VARIABLES
    | effects.PLACEHOLDERS
    | effects.SHARED_RESOURCES
    | effects.CONTROL_FLOW_OPENS
    | effects.CONTROL_FLOW_CLOSES
    | frozenset(["NextIteration", "RefNextIteration", "LoopCond"])
    | frozenset(["Const", "NoOp", "ReadVariableOp", "Assert", "IsVariableInitialized", "VarIsInitializedOp"])
)
READS_SLICE = frozenset(
    [
        "Gather",
        "GatherV2",
        "GatherNd",
        "ResourceGather",
        "ResourceGatherNd",
        "Slice",
        "StridedSlice",
        "DynamicPartition",
    ]
)
_HELD_TYPES = types.HANDLES | {types.STRING}
_DIFFERENTIABLE = types.FLOAT_TYPES | {types.RESOURCE}  # a resource handle stands for its variable
