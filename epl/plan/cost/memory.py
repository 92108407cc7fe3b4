"""Estimates the memory of each device over a training step, by going through a worker's graph with reference counts.

Operations run one after the other, in the order of TensorFlow's executor with one thread; of several orders that may
come about, the one with the highest peak counts. A tensor lives from the operation that makes it to the last one that
uses it; views share the memory of what they show, and element by element operations take over what nobody else needs
any more. What the host sends to a device lives there in a copy. Not seen: what functions and loops make inside.
"""

import collections
import functools

from epl.graph import tags
from epl.graph.index import NodeInput
from epl.plan.cost.device_memory import COMMUNICATION, KINDS, LASTING, DeviceMemory, kind_of
from epl.plan.cost.graph_optimizer import optimized
from epl.plan.cost.layer_wise import kernel_nodes
from epl.plan.cost.run_order import RunOrders, topological
from epl.rules import effects, tensors

# The operation whose outputs are parts of its input's memory.
PARTS = "EplParts"
_LARGEST = 8

VIEWS = tensors.IN_MEMORY_OF_INPUT | {PARTS}
# TensorFlow's kernels of these give their result in the memory of an input that nobody else uses.
IN_PLACE = frozenset(
    """
    Add AddV2 AddN Sub Mul Div RealDiv DivNoNan Maximum Minimum SquaredDifference Pow BiasAdd Neg Square Sqrt Rsqrt Exp
    Log Tanh Sigmoid Relu Relu6 Elu Selu Softplus Abs Sign Sin Cos Erf Reciprocal Inv Softmax LogSoftmax Cast
    TanhGrad SigmoidGrad ReluGrad Relu6Grad EluGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad SoftplusGrad
    LeakyRelu LeakyReluGrad ClipByValue SparseSoftmaxCrossEntropyWithLogits
    """.split()
)
_OF_SHAPES = frozenset("Shape ShapeN Size Rank BroadcastArgs BroadcastGradientArgs ConcatOffset".split())
# TensorFlow's graph optimizer takes these out, and an Identity but after some.
_PASSED_OVER = frozenset(["StopGradient", "PreventGradient", "Snapshot", "NoOp"])
_NEEDS_IDENTITY = effects.VARIABLES | frozenset(["Switch", "Merge"])
_NO_MEMORY = effects.VARIABLES | frozenset(["Const", "NoOp"])
# TensorFlow runs these at once. It takes all others for long until it has run them some ninety times, however short.
_AT_ONCE = VIEWS | _OF_SHAPES | frozenset(["Const", "NoOp", "VarHandleOp", "ControlTrigger", "LoopCond"])
# TensorFlow's order is partly by chance: so many are gone through.
ORDERS = 16


def estimate_memory(
    graph,
    roots,
    num_bytes,
    variables,
    device_of,
    fed=(),
    work_bytes=lambda name: 0,
    views=(),
    shapes_of=lambda name: None,
    is_reversed=False,
    orders=ORDERS,
):
    """The memory of each device over one run.

    Args:
      graph: the epl.graph.index.Graph of one worker.
      roots: names of the nodes that are run.
      num_bytes: function of a node's name to the bytes of its outputs, a list.
      variables: dict of a variable's node to (kind, bytes).
      device_of: function of a node's name to its device.
      fed: names of nodes that are fed and do not run; what they give belongs to the caller.
      work_bytes: function of a node's name to the bytes that the operation needs while it runs, besides its outputs.
      views: names of nodes that change nothing of what they are given, besides those whose types tell.
      shapes_of, is_reversed: as of epl.plan.cost.graph_optimizer.optimized.
      orders: how many orders of operations to go through; the highest peak of each device counts.

    Returns:
      dict of device to DeviceMemory.
    """
    optimize = functools.partial(
        optimized, device_of=device_of, num_bytes=num_bytes, shapes_of=shapes_of, is_reversed=is_reversed
    )
    run = _Run(graph, roots, num_bytes, variables, device_of, frozenset(fed), work_bytes, frozenset(views), optimize)
    possible, highest = run.orders(), {}
    for draw in range(orders):
        for device, memory in run.peaks(possible.order(draw)).items():
            if device not in highest or memory.peak_bytes > highest[device].peak_bytes:
                highest[device] = memory
    return highest


class _Buffer(object):
    """Memory of one tensor and of those that share it."""

    __slots__ = ("name", "kind", "size", "uses", "device", "made")

    def __init__(self, name, kind, size, device):
        self.name, self.kind, self.size, self.device, self.uses, self.made = name, kind, size, device, 0, -1


class _Run(object):
    def __init__(self, graph, roots, num_bytes, variables, device_of, fed, work_bytes, views, optimize):
        self._work_bytes, self._views = work_bytes, views
        self._graph, self._num_bytes, self._device_of, self._fed = graph, num_bytes, device_of, fed
        self._by_kernels = kernel_nodes(graph, lambda name: "CPU" in device_of(name))
        reached = graph.ancestors(roots, stop=fed)
        back = frozenset(graph.find(effects.LOOP_EDGES.__contains__))
        waits = {
            name: () if name in fed else tuple(each for each in graph.inputs[name] if each.node not in back)
            for name in graph.in_order(reached)
        }
        stay = self._by_kernels.union(roots, fed)
        made = optimize(graph, topological(waits), waits, stay)
        self._waits = made.inputs
        self._inputs = {
            name: tuple(NodeInput(made.serves[each.node], each.index) for each in graph.inputs[name])
            for name in self._waits
            if name not in fed
        }
        self._reached = frozenset(self._waits)
        counts = {made.serves[name] for name in reached - _idle(graph, reached, roots)}
        self._idle = made.folded | (self._reached - counts)
        self._lasting = collections.defaultdict(lambda: dict.fromkeys(sorted(LASTING), 0))
        for name, (kind, size) in variables.items():
            self._lasting[device_of(name)][kind] += size
        self._uses = collections.Counter(
            each for name in self._inputs.keys() - self._idle for each in self._inputs[name] if each.index >= 0
        )
        self._copied = collections.Counter(
            filter(None, (self._copy(e, n) for n in self._inputs.keys() - self._idle for e in self._inputs[n]))
        )
        self._kept = {root for root in roots}

    def peaks(self, order):
        """dict of device to DeviceMemory, of operations that run in an order."""
        self._buffers = {}  # (node, output) -> _Buffer or None
        self._live = collections.defaultdict(lambda: [0] * len(KINDS))
        self._points = collections.defaultdict(list)
        self._peak = {}
        self._alive = collections.defaultdict(dict)
        self._ended = collections.defaultdict(list)
        for name in order:
            self._step(name)
        devices = sorted(set(self._lasting) | set(self._points))
        found = {}
        for device in devices:
            peak, largest = self._peak.get(device, (0, -1, ()))[1:]
            last = len(self._points[device]) - 1
            ended = self._ended[device] + [(b.name, b.kind, b.size, b.made, last) for b in self._alive[device].values()]
            ended.sort(key=lambda each: (-each[2], each[3], each[0]))
            found[device] = DeviceMemory(
                dict(self._lasting[device]), tuple(self._points[device]), peak, largest, tuple(ended[:400])
            )
        return found

    def orders(self):
        """The RunOrders of what is reached."""
        graph = self._graph
        removed = frozenset(name for name in self._reached if self._is_removed(name))
        folded = frozenset(n for n in removed if n in self._idle or graph.nodes[n].op in _OF_SHAPES)
        return RunOrders(self._waits, list(self._waits), removed, folded, self._is_cheap, self._fed)

    def _is_removed(self, name):
        """TensorFlow's graph optimizer takes it out."""
        if name in self._kept or name in self._fed:
            return False
        op = self._graph.nodes[name].op
        if name in self._idle or name in self._views or op in _PASSED_OVER or op in _OF_SHAPES:
            return True
        if op != "Identity":
            return False
        producer = self._inputs[name][0].node
        return self._graph.nodes[producer].op not in _NEEDS_IDENTITY and (
            self._device_of(producer) == self._device_of(name)
        )

    def _is_cheap(self, name):
        return (
            any(name in each for each in (self._views, self._idle, self._fed)) or self._graph.nodes[name].op in _AT_ONCE
        )

    def _is_view(self, name):
        node = self._graph.nodes[name]
        return name in self._views or node.op in VIEWS

    def _step(self, name):
        """Runs one operation: makes its outputs, gives back the inputs that nobody needs any more."""
        if name in self._fed:
            return
        node, device = self._graph.nodes[name], self._device_of(name)
        inputs = [each for each in self._inputs[name] if each.index >= 0 and name not in self._idle]
        taken = [self._buffers.get(self._received(each, name)) for each in inputs]
        given = [self._buffers.get(each) for each in inputs if self._copy(each, name)]
        gives = node.op not in _NO_MEMORY and not effects.is_write(node.op)  # writes give the variable itself
        if name in self._by_kernels or name in self._idle:
            gives = False  # the former work in place
        if gives:
            kind = kind_of(name, node.op, tags.phase(node))
            for index, size in enumerate(self._num_bytes(name)):
                uses = self._uses[(name, index)]
                if size and (uses or not self._is_view(name)):
                    self._make(name, index, size, uses, kind, device, node, taken)
        work = self._work_bytes(name) if name not in self._idle else 0
        if work:
            place = KINDS.index(kind_of(name, node.op, tags.phase(node)))
            self._live[device][place] += work
            self._note(name, device)
            self._live[device][place] -= work
        self._note(name, device)
        for buffer in taken + given:
            if buffer is not None:
                self._release(buffer)
        for index in range(len(self._num_bytes(name)) if gives else 0):
            buffer = self._buffers.get((name, index))
            if buffer is not None and buffer.uses == 0 and name not in self._kept:
                self._release(buffer, 0)

    def _copy(self, tensor, user):
        """The key of what a node on a device gets of a tensor that the host sends; None where it takes the tensor."""
        producer, index = tensor
        if index < 0 or tags.HOST not in self._graph.nodes[producer].attr or user in self._fed:
            return None
        device = self._device_of(user)
        return None if device == self._device_of(producer) else (producer, index, device)

    def _received(self, tensor, user):
        """The key of the Buffer that a node takes; the first one that takes a copy makes it."""
        key = self._copy(tensor, user)
        if key is None:
            return tensor
        if key not in self._buffers:
            sizes = self._num_bytes(tensor.node)
            size, device = sizes[tensor.index] if tensor.index < len(sizes) else 0, key[2]
            self._buffers[key] = buffer = _Buffer(tensor.node, COMMUNICATION, size, device)
            buffer.made, buffer.uses = len(self._points[device]), self._copied[key]
            self._live[device][KINDS.index(COMMUNICATION)] += size
            self._alive[device][id(buffer)] = buffer
        return key

    def _make(self, name, index, size, uses, kind, device, node, taken):
        shared = None
        if self._is_view(name) and taken:
            if index < len(taken) or node.op in ("Switch", PARTS):
                shared = taken[index if node.op == "IdentityN" else 0]
            if shared is None:
                return  # of a variable, a constant or what is fed
            if tags.HOST in node.attr and shared.device != device:
                shared = None  # it has come from there
        elif node.op in IN_PLACE and index == 0:
            # Twice among the inputs, it has two uses left.
            shared = next(
                (b for b in taken if b is not None and b.uses == 1 and b.size == size and b.device == device), None
            )
            if shared is not None and shared.kind != kind:
                self._live[device][KINDS.index(shared.kind)] -= size
                self._live[device][KINDS.index(kind)] += size
                shared.kind = kind
        if shared is None:
            shared = _Buffer(name if not index else "%s:%d" % (name, index), kind, size, device)
            shared.made = len(self._points[device])
            self._live[device][KINDS.index(kind)] += size
            self._alive[device][id(shared)] = shared
        shared.uses += uses + (name in self._kept)
        self._buffers[name, index] = shared

    def _release(self, buffer, count=1):
        buffer.uses -= count
        if buffer.uses <= 0 and self._alive[buffer.device].pop(id(buffer), None) is not None:
            self._live[buffer.device][KINDS.index(buffer.kind)] -= buffer.size
            self._ended[buffer.device].append(
                (buffer.name, buffer.kind, buffer.size, buffer.made, len(self._points[buffer.device]))
            )

    def _note(self, name, device):
        points, live = self._points[device], tuple(self._live[device])
        if points and points[-1][1] == live:
            return
        points.append((name, live))
        total = sum(live)
        if device not in self._peak or total > self._peak[device][0]:
            alive = sorted(self._alive[device].values(), key=lambda b: (-b.size, b.made, b.name))[:_LARGEST]
            self._peak[device] = total, len(points) - 1, tuple((b.name, b.kind, b.size) for b in alive)


def _idle(graph, reached, roots):
    """Those of some nodes whose results no other one takes that counts: TensorFlow's graph optimizer drops them.

    The gradients of constants are some: control inputs alone lead to them.
    """
    counts = [n for n in reached if n in roots or effects.kind_of(graph.nodes[n].op) not in (None, effects.PURE)]
    return reached - graph.ancestors(counts, data_only=True)
