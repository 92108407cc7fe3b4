"""What each operation of the one copy of a model costs on a device, forward, backward and update alike."""

import collections

from epl.graph import tags, types
from epl.graph.index import node_of
from epl.partition.partitioned import EXCHANGES
from epl.plan.cost.cost import ARITHMETIC, FREE, READS_SLICE
from epl.plan.cost.own_bytes import whole_of
from epl.plan.memory.offload import TO_DEVICE
from epl.program.placement import WHOLE
from epl.program.specs import TensorSpec
from epl.rules import effects

_NOTHING = TensorSpec((), 0)
_IN_FULL = frozenset(["whole", "partial"])  # a partial tensor is as large as what it adds up to
_DTYPES = {types.FLOAT16: "float16", types.BFLOAT16: "bfloat16"}
# Where these reduce no dimension, or such of size one, TensorFlow's graph optimizer leaves them out.
_REDUCTIONS = frozenset("Sum Mean Prod Max Min".split())
# They change rows of a variable, and read and write no more than these.
_ROW_WRITES = ("Sparse", "Scatter")

# What an operation costs. `start_s`: seconds for starting it; `work_s`: for what it then does; `sizes`: bytes of each
# output that another operation takes; `sent`: bytes that come from the host by themselves; `is_same`: it gives what it
# takes.
Price = collections.namedtuple("Price", "start_s work_s sizes sent is_same")
Price.__new__.__defaults__ = (False,)


_FOLDED = Price(0.0, 0.0, (0,), 0)

# What is looked up once for each operation type.
_Facts = collections.namedtuple("_Facts", "is_variable differs writes is_exchange is_free")


class Prices(object):
    """Prices of the operations of a Program, as one device computes them.

    Args:
      program: an epl.program.program.Program with its plan, and one copy of the model.
      names: nodes in an order in which they can run.
      device: an epl.cluster.machine.Device.
      batch: rows of a micro-batch of one device, where the program leaves them open.
    """

    def __init__(self, program, names, device, batch):
        self._program, self._graph, self._device, self._batch = program, program.graph, device, batch
        self._divided = program.partitioned is not None
        self._specs, self._sizes, self._inputs, self._ops = {}, {}, self._graph.inputs, self._graph.ops
        self._outputs = {}  # of those with several
        for name in names:
            for producer, index in self._inputs[name]:
                if index > 0 and index >= self._outputs.get(producer, 1):
                    self._outputs[producer] = index + 1
        self._variables, self._known = program.variables, {}
        self._on_host = self._graph.tagged(tags.HOST)
        self.of, lively = {}, set()
        for name in names:
            if self._ops[name] == "Const" and not self._divided and name in program.specs:
                self._specs[name, 0] = spec = program.specs[name][0]
                self._sizes[name, 0], self.of[name] = _bytes_of(spec), _FOLDED
            else:
                self.of[name] = self._price(name, lively)

    def shape(self, tensor):
        """The shape of a tensor, a NodeInput, of those that have been seen, of a device's part of it."""
        return self._specs.get(tensor, _NOTHING).shape

    def _price(self, name, lively):
        """The Price of a node; `lively`: those that depend on data, chance or variables. Others are folded."""
        op, inputs = self._ops[name], self._inputs[name]
        if inputs and inputs[-1].index < 0:
            inputs = [each for each in inputs if each.index >= 0]
        kind = self._known.get(op) or self._known.setdefault(op, _facts(op))
        outputs = [(name, index) for index in range(self._outputs[name])] if name in self._outputs else [(name, 0)]
        for tensor in outputs:
            self._specs[tensor] = spec = self._spec(op, tensor, inputs)
            self._sizes[tensor] = _bytes_of(spec)
        if kind.is_variable:
            lively.add(name)
            return _FOLDED
        if not kind.differs:
            for each in inputs:
                if each.node in lively:
                    break
            else:
                return _FOLDED if len(outputs) == 1 else Price(0.0, 0.0, (0,) * len(outputs), 0)
        lively.add(name)
        # What changes a variable gives its memory on, if anything.
        sizes = (0,) * len(outputs) if kind.writes else tuple([self._sizes[tensor] for tensor in outputs])
        if kind.is_exchange:
            return Price(0.0, 0.0, sizes, 0)
        if self._on_host and tags.get_str(self._graph.nodes[name], tags.ROLE) == TO_DEVICE:
            return Price(0.0, 0.0, sizes, sum(sizes))
        if name in self._on_host:
            return Price(0.0, 0.0, (0,) * len(outputs), 0)
        if kind.is_free:
            return Price(0.0, 0.0, sizes, 0)
        taken = [self._sizes.get(each, 0) for each in inputs]
        if op in _REDUCTIONS and taken and taken[0] == sizes[0]:
            return Price(0.0, 0.0, sizes, 0, is_same=True)
        device = self._device
        if op in ARITHMETIC:
            flops = ARITHMETIC[op](self._graph.nodes[name], inputs, outputs[0], self)
            dtype = _DTYPES.get(self._specs[outputs[0]].dtype)
            speed = device.flops_per_s(flops, dtype) if dtype else device.flops_per_s(flops)
            work_s = max(flops / speed, (sum(taken) + sum(sizes)) / device.memory_bytes_per_s)
        else:
            moved = 2 * sum(sizes) if op in READS_SLICE else sum(sizes) + sum(taken)
            speed = device.elementwise_bytes_per_s
            if kind.writes:
                moved += self._changed(op, inputs, taken)
                speed = device.memory_bytes_per_s  # variables and slots come from there, step by step
            work_s = moved / speed
        return Price(device.start_s, work_s, sizes, 0)

    def _changed(self, op, inputs, taken):
        """Bytes that a change of variables reads and writes of these."""
        if any(word in op for word in _ROW_WRITES):
            return 2 * max(taken or [0])
        return 2 * sum(self._sizes.get(each, 0) for each in inputs if each.node in self._variables)

    def _spec(self, op, tensor, inputs):
        """The TensorSpec of a device's part of a tensor, with guesses of sizes that are not known.

        Where the graph does not know what a pass has added, it is as what that takes.
        """
        name, index = tensor
        if op == "VarHandleOp":
            variable = self._variables.get(name)
            whole = _NOTHING if variable is None else TensorSpec(variable.shape, variable.dtype)
            return self._part(name, whole, inputs, op)
        text = name if not index else "%s:%d" % tensor
        if self._divided:
            found = self._program.spec_of(whole_of(self._program, text))
        else:
            known = self._program.specs.get(name, ())
            found = known[index] if index < len(known) else None
            if found is not None and found.shape is not None and -1 not in found.shape and found.dtype < types.REF:
                return found
        if found is None:
            return self._as_taken(self._graph.nodes[name], inputs)
        return self._part(text, found, inputs, op)

    def _as_taken(self, node, inputs):
        """The TensorSpec of what a pass has added, by what that takes."""
        given = [self._specs.get(each, _NOTHING) for each in inputs]
        if not given:
            return _NOTHING
        shape = given[0].shape
        if node.op == "EplTranspose":
            shape = shape[::-1]
        elif node.op == "MatMul" and len(given[1].shape) == len(shape) == 2:
            shape = _product(node, shape, given[1].shape)
        return TensorSpec(shape, given[0].dtype)

    def _part(self, text, spec, inputs, op):
        shape, dtype = spec.shape, types.base(spec.dtype)
        if shape is None or -1 in shape:
            shape = self._guessed(shape, inputs, op, text)
        if self._divided:
            done = self._program.partitioned
            placement = done.brought[text][1] if text in done.brought else done.placements.get(text, WHOLE)
            if placement.kind not in _IN_FULL and shape:
                dim = placement.dim if placement.kind == "sharded" else 0
                shape = shape[:dim] + (-(-shape[dim] // done.shards),) + shape[dim + 1 :]
        return TensorSpec(shape, dtype)

    def _guessed(self, shape, inputs, op, text):
        """A shape without unknown sizes: rows are as many as those of what the operation takes, else the batch."""
        given = [self._specs[each].shape for each in inputs if each in self._specs]
        if op == "EplTranspose" and given:
            return given[0][::-1]
        if op == "MatMul" and [len(each) for each in given] == [2, 2]:
            return _product(self._graph.nodes[node_of(text)], *given)
        if op == "Tile":
            given = []  # what it takes has fewer rows
        if op == "Reshape" and given:
            asked = self._inputs[inputs[1].node] if len(inputs) > 1 else ()
            if asked and self._ops[inputs[1].node] == "Shape" and asked[0] in self._specs:
                return self._specs[asked[0]].shape
            if shape is not None and len(shape) > 1 and shape.count(-1) > 1 and shape[-1] < 0:
                shape = shape[:-1] + given[0][-1:]  # as products of tensors with several dimensions of rows have it
            if shape is not None and shape.count(-1) == 1:
                known = _count(dim for dim in shape if dim > 0)
                return tuple(max(1, _count(given[0]) // known) if dim < 0 else dim for dim in shape)
        if op in _REDUCTIONS and len(inputs) > 1 and self._ops[inputs[1].node] == "BroadcastGradientArgs":
            of = self._inputs[inputs[1].node][inputs[1].index].node  # the shape of what was broadcast
            if self._ops[of] == "Shape" and self._inputs[of][0] in self._specs:
                return self._specs[self._inputs[of][0]].shape
        if shape is None:
            return given[0] if given else ()
        like = next((each for each in given if len(each) == len(shape)), None)
        if like is not None and shape.count(-1) > 1:
            return tuple(other if dim < 0 else dim for dim, other in zip(shape, like))
        first = (like[0] if like is not None else self._batch) if shape[0] < 0 else shape[0]
        return (first,) + tuple(self._batch if dim < 0 else dim for dim in shape[1:])


def _product(node, one, other):
    """The shape of what a MatMul gives."""
    return one[node.attr["transpose_a"].b], other[not node.attr["transpose_b"].b]


def _facts(op):
    return _Facts(
        op in effects.VARIABLES,
        op in effects.DIFFERING or op in effects.PLACEHOLDERS,
        effects.is_write(op),
        op in EXCHANGES,
        op in FREE,
    )


def _bytes_of(spec):
    count = types.DTYPE_BYTES.get(spec.dtype, 0)
    for dim in spec.shape:
        count *= dim
    return count


def _count(dims):
    count = 1
    for dim in dims:
        count *= dim
    return count
