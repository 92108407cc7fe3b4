"""The memory that a program will need, and what it will exchange: shapes by TensorFlow, the step by epl.plan."""

import os

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.caught import INNER
from epl.communicators import library
from epl.graph import tags, types
from epl.graph.index import node_of
from epl.plan.cost.device_memory import SLOTS, STATE, VARIABLES
from epl.plan.cost.memory import ORDERS, estimate_memory
from epl.plan.exchange.exchanges import exchanges_of, training_writes
from epl.plan.facts.names import cloned_name
from epl.plan.memory.offload import ON_HOST
from epl.rules import effects, tensors
from epl.session.parts import needed_messages

DEFAULT_BATCH = 32  # as for the choice of what is computed again
_HOST = "CPU:0"
_CONVOLUTION_GRADIENTS = frozenset(["Conv2DBackpropFilter", "Conv2DBackpropInput"])
_WORKING_SET_BYTES = 30 << 20
_BUSY_BYTES = 256 << 10  # of each thread
# Where their first output has the shape of their first input, or of as many as they have outputs.
_LIKE_INPUTS = frozenset(["EplAllReduce", "EplBroadcast", "EplGate", "EplRows"])


def estimate_program(program, batch=None, orders=ORDERS):
    """The memory of this worker's devices over a training step.

    Args:
      program: a compiled epl.program.program.Program.
      batch: what an unknown first dimension of data counts as, in rows of a micro-batch; None: DEFAULT_BATCH.
      orders: as of epl.plan.cost.memory.estimate_memory; 1 is quick, but lower where the order of operations is by
        chance.

    Returns:
      (dict of device, such as "CPU:0", to an epl.plan.cost.memory.DeviceMemory, names of tensors of unknown size).
    """
    graph, roots = program.graph, roots_of(program)
    reached = graph.ancestors(roots)
    sizes = _TensorSizes(graph, batch or DEFAULT_BATCH, reached)
    fed = [n for n in graph.find(effects.PLACEHOLDERS.__contains__) if graph.nodes[n].op != "PlaceholderWithDefault"]
    variables, device_of = _variables(program), lambda n: _device(graph.nodes[n])
    found = estimate_memory(
        graph,
        roots,
        sizes.of,
        variables,
        device_of,
        fed,
        sizes.work_space,
        sizes.same,
        sizes.told,
        tf_compat.reverses_duplicates(),
        orders,
    )
    return found, [name for name in graph.in_order(sizes.unknown) if name in reached]


def estimate_exchanges(program, batch=None):
    """What this worker's first device exchanges with others in a training step.

    Args:
      program: a compiled epl.program.program.Program.
      batch: as of estimate_program.

    Returns:
      A tuple of epl.plan.exchange.exchanges.Exchange.
    """
    sizes = _TensorSizes(program.graph, batch or DEFAULT_BATCH)
    return exchanges_of(program, lambda name, index: None if name in sizes.unknown else sizes.of(name)[index])


def lasting_bytes(program):
    """dict of this worker's devices to the bytes of their variables, by kind."""
    found = {}
    for name, (kind, size) in _variables(program).items():
        kinds = found.setdefault(_device(program.graph.nodes[name]), {})
        kinds[kind] = kinds.get(kind, 0) + size
    return found


def roots_of(program):
    """All changes of variables in training but for metrics', in all copies, and what is sent to other stages."""
    writes = training_writes(program)
    own = [name for name in writes if program.has(name)]
    if program.part is None:
        return own
    needed = needed_messages(program.part, program.whole.ancestors(writes), ())
    return own + [message.send for message in needed if message.source == program.part.index]


def _variables(program):
    """Node to (kind, bytes)."""
    graph = program.graph
    known = program.plan.analysis.writes
    applied = {
        producer
        for w in graph.find(effects.is_write)
        if w in known or tags.get_str(graph.nodes[w], tags.ROLE) == ON_HOST
        if tags.phase(graph.nodes[w]) == tags.APPLY
        for producer, index in graph.inputs[w]
        if index >= 0 and graph.nodes[producer].op in effects.VARIABLES
    }
    found = {}
    for name in graph.find(effects.VARIABLES.__contains__):
        node = graph.nodes[name]
        if tags.get_str(node, tags.ROLE) == ON_HOST:
            continue  # it is there for the length of an update
        user = cloned_name(name, tags.get_int(node, tags.INSTANCE)) if tags.INSTANCE in node.attr else name
        known = program.variables.get(user)
        kind = STATE
        if known is not None and known.is_trainable:
            kind = VARIABLES
        elif user in applied:
            kind = SLOTS
        found[name] = kind, _count([d.size for d in node.attr["shape"].shape.dim]) * _width(node.attr["dtype"].type)
    return found


def _device(node):
    return node.device.partition("/device:")[2] or _HOST


def _count(dims):
    count = 1
    for dim in dims:
        count *= max(1, dim)
    return count


def _width(dtype):
    return types.DTYPE_BYTES.get(types.base(dtype), 0)


def _patches(node, op):
    """Bytes of the patches that TensorFlow's CPU kernels of a convolution's gradients lay out for some images at once.

    For as many as fit, with what is multiplied, into 30 MiB, even if the batch has fewer; but for one where the product
    of one image is large enough to keep all threads busy (Conv2DCustomBackpropFilterOp and ...InputOp). oneDNN has its
    own kernels, which lay out none.
    """
    if "CPU" not in _device(node) or tf_compat.uses_onednn():
        return 0
    outer = op.inputs[2].shape
    kernel = op.inputs[1].shape if node.op == "Conv2DBackpropInput" else op.outputs[0].shape
    if not outer.is_fully_defined() or not kernel.is_fully_defined():
        return 0
    images, height, width, depth = outer.as_list()
    patch, places = _count(kernel.as_list()[:3]), height * width
    width_bytes = _width(op.inputs[2].dtype.as_datatype_enum)
    unit = width_bytes * (places * patch + patch * depth + places * depth)
    if node.op == "Conv2DBackpropInput" and (images == 1 or unit // _threads() >= _BUSY_BYTES):
        return width_bytes * places * patch
    return width_bytes * -(-_WORKING_SET_BYTES // unit) * places * patch


def _keeps_order(op):
    """The transposition leaves all dimensions where they are, as `tf.tensordot` has it do in TensorFlow 1.

    TensorFlow's graph optimizer drops such ones.
    """
    order = tf.get_static_value(op.inputs[1])
    return order is not None and list(order) == list(range(len(order)))


def _reduces_nothing(op):
    """The reduction is over no dimension, or over such of size one: its kernels give what they were given.

    Gradients of products and of sums reduce what was broadcast; mostly that is nothing.
    """
    given, made = op.inputs[0].shape.num_elements(), op.outputs[0].shape.num_elements()
    return given is not None and given == made


# Operation types that may change nothing of what they are given, and how to tell of a tf.Operation.
_CHANGES_NOTHING = dict.fromkeys("Sum Mean Prod Max Min All Any".split(), _reduces_nothing)
_CHANGES_NOTHING["Transpose"] = _keeps_order


def _shapes(op):
    """The shapes of what an operation takes; None where one is not known."""
    shapes = [tensor.shape for tensor in op.inputs]
    return tuple(tuple(each.as_list()) for each in shapes) if all(s.is_fully_defined() for s in shapes) else None


def _threads():
    """Those that TensorFlow computes an operation with, unless it is told otherwise."""
    return len(os.sched_getaffinity(0))


def _imported(graph, names, fill):
    """dict of some nodes' names to tf.Operations, for their shapes; `fill` changes each NodeDef before.

    Most of the time would go into devices and colocations, which shapes do not depend on, and into the capture of what
    nobody trains.
    """
    graph_def = graph.to_graph_def(tf.GraphDef)
    kept = [node for node in graph_def.node if node.name in names]
    for node in kept:
        fill(node)
        node.device = ""
        node.attr.pop("_class", None)
    needed = tf.GraphDef(node=kept, library=graph_def.library, versions=graph_def.versions)
    with tf.Graph().as_default() as imported:
        setattr(imported, INNER, True)
        tf.import_graph_def(needed, name="")
    return {op.name: op for op in imported.get_operations()}


class _TensorSizes(object):
    """Bytes of what nodes give, as TensorFlow infers shapes once the batch is known.

    Args:
      graph: an epl.graph.index.Graph.
      batch: rows of data whose first dimension is open.
      names: the nodes of interest, with all that they take; None: all.

    Attributes:
      unknown: names of nodes of whose outputs a shape could not be told.
      same: names of nodes that change nothing of what they are given.
    """

    def __init__(self, graph, batch, names=None):
        if graph.find(lambda op: op.startswith("Epl")):
            library.load()  # for the shapes of EPL's own operations
        self._batch, self.unknown, self._known = batch, set(), {}
        names = graph.nodes.keys() if names is None else names
        operations = _imported(graph, names, self._fill)
        for name in graph.nodes:
            if name in names:
                self._known[name] = self._outputs(graph, name, operations[name])
        self._work = {
            name: _patches(graph.nodes[name], operations[name])
            for name in graph.find(_CONVOLUTION_GRADIENTS.__contains__)
            if name in names
        }
        self._told = {
            name: _shapes(operations[name]) for name in graph.find(tensors.SHAPE_ONLY.__contains__) if name in names
        }
        candidates = (name for name in graph.find(_CHANGES_NOTHING.__contains__) if name in names)
        self.same = frozenset(n for n in candidates if _CHANGES_NOTHING[graph.nodes[n].op](operations[n]))

    def of(self, name):
        """A list with the bytes of each output of a node."""
        return self._known[name]

    def work_space(self, name):
        """Bytes that a node needs while it runs, as far as it is known: of the gradients of convolutions on CPUs."""
        return self._work.get(name, 0)

    def told(self, name):
        """The shapes of what a node takes that tells of them alone; None where they are not known, and for others."""
        return self._told.get(name)

    def _fill(self, node):
        """Gives data a batch of known size."""
        shapes = []
        if node.op in effects.PLACEHOLDERS and "shape" in node.attr:
            shapes = [node.attr["shape"].shape]
        elif node.op in effects.SOURCES:
            shapes = [shape for key in ("output_shapes", "shapes") for shape in node.attr[key].list.shape]
            for key in ("output_shapes", "shapes"):
                if not node.attr[key].list.shape:
                    del node.attr[key]
        for shape in shapes:
            if shape.dim and shape.dim[0].size < 0:
                shape.dim[0].size = self._batch

    def _outputs(self, graph, name, op):
        found = []
        for index, tensor in enumerate(op.outputs):
            width = _width(tensor.dtype.as_datatype_enum)
            dims = tensor.shape.as_list() if tensor.shape.rank is not None else None
            if not width:
                found.append(0)
            elif dims is not None and None not in dims:
                found.append(width * _count(dims) if 0 not in dims else 0)
            else:
                found.append(self._guess(graph, name, op, index, dims, width))
        return found

    def _guess(self, graph, name, op, index, dims, width):
        if dims is not None and dims.count(None) == 1 and dims[0] is None and 0 not in dims:
            return width * self._batch * _count(dims[1:])
        if op.type in _LIKE_INPUTS and len(op.inputs) > index:
            producer, output = node_of(graph.nodes[name].input[index]), graph.inputs[name][index].index
            if producer in self._known:
                return self._known[producer][output]
        self.unknown.add(name)
        return 0
