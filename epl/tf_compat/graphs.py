"""Operations and graphs: what is caught while they are built, what can be asked of them, how nodes are added."""

import os
import re

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, op_def_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.framework import c_api_util, importer, kernels, op_def_registry, ops
from tensorflow.python.ops import control_flow_ops, gradients_util, resource_variable_ops, script_ops

from epl.rules import effects, tensors
from epl.tf_compat.wrapping import ORIGINAL, line, wrap

if line() == "tf1":
    from tensorflow.python import pywrap_tensorflow as _port
else:
    from tensorflow.python.util import _pywrap_util_port as _port

AttrValue = attr_value_pb2.AttrValue
GraphDef = graph_pb2.GraphDef
NodeDef = node_def_pb2.NodeDef
Graph = ops.Graph
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_c_api = importer.c_api
_c_api_session = session_module.tf_session


def wrap_create_op(wrapper):
    """`wrapper(original, graph, op, compute_device)` is called for each operation made by Python code."""
    wrap(ops.Graph, "_create_op_helper", wrapper)


def program_lines(operation):
    """Where a program makes an operation: "file:line, in function" of its own lines, the innermost first.

    Lines of TensorFlow and of this package are left out, and those of other installed packages where any is left then.
    """
    root = os.path.abspath(ops.__file__)
    inside = root[: root.rindex("python")], os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    frames = [tuple(frame)[:3] for frame in reversed(list(operation.traceback or ()))]
    frames = [frame for frame in frames if not frame[0].startswith(inside)]
    own = [frame for frame in frames if not _INSTALLED.search(frame[0])]
    return ["%s:%d, in %s" % frame for frame in own or frames]


def catches_operations():
    """Whether `wrap_create_op` has been called in this process."""
    return hasattr(ops.Graph.__dict__["_create_op_helper"], ORIGINAL)


def wrap_gradients(wrapper):
    """`wrapper(original, ys, xs, ...)` around tf.gradients (and what is built on it)."""
    wrap(gradients_util, "_GradientsHelper", wrapper)


def wrap_gradient_seeds(wrapper):
    """`wrapper(original, grad_ys, ys, ...)` around what makes the tensors with which tf.gradients starts at `ys`."""
    wrap(gradients_util, "_DefaultGradYs", wrapper)


def wrap_tape_gradient(wrapper):
    """`wrapper(original, tape, target, sources, ...)` around tf.GradientTape.gradient."""
    wrap(tf.GradientTape, "gradient", wrapper)


def wrap_graph_def(wrapper):
    """`wrapper(original, graph, ...)` around what makes the (GraphDef, version) of a graph."""
    wrap(ops.Graph, "_as_graph_def", wrapper)


def wrap_set_shape(wrapper):
    """`wrapper(original, tensor, shape)` around what tells a tensor a shape that TensorFlow has not found by itself."""
    wrap(tf.Tensor, "set_shape", wrapper)


def wrap_external_controls(wrapper):
    """`wrapper(original, context, operation)` around what finds what an operation of a loop or a branch waits for: two
    lists of operations, those inside and those outside."""
    wrap(control_flow_ops.ControlFlowContext, "_RemoveExternalControlEdges", wrapper)


def wrap_sparse_tensor(wrapper):
    """`wrapper(original, sparse_tensor, ...)` around what puts the three tensors of a sparse one together."""
    wrap(tf.SparseTensor, "__init__", wrapper)


def sparse_rows(sparse):
    """The number of rows of a SparseTensor, where the graph says it, if only as the default of what is fed; else
    None."""
    shape = sparse.dense_shape
    if shape.op.type == "PlaceholderWithDefault":
        shape = shape.op.inputs[0]
    if shape.op.type != "Const":
        return None
    known = tf.make_ndarray(shape.op.get_attr("value"))  # tf.get_static_value would forbid to feed it
    return int(known[0]) if known.size and known[0] >= 0 else None


def output_shapes(op):
    """A tuple with the shape of each output: a tuple with -1 where a size is not known, None for an unknown rank."""
    if line() == "tf2":
        found = [output._shape for output in op.outputs]
    else:
        c_graph = op.graph._c_graph
        found = [_c_api.TF_GraphGetTensorShapeHelper(c_graph, output._as_tf_output()) for output in op.outputs]
    return tuple([None if unknown else tuple([-1 if n is None else n for n in sizes]) for sizes, unknown in found])


def executing_eagerly():
    return tf.executing_eagerly()


def is_root_graph():
    """True where the default graph is the process's own: outside of all `with graph.as_default()`."""
    return ops._default_graph_stack.is_cleared()


def is_function_graph(graph):
    """True for the graphs of function bodies (Defun, tf.function, branches and loop bodies of control flow v2)."""
    return graph.building_function


def set_tag(op, key, value):
    """Stores an integer or a string as an attribute of the operation; it is in `tagged_graph_def`."""
    op._set_attr(key, AttrValue(i=value) if isinstance(value, int) else AttrValue(s=value.encode()))


def original_op_type(op):
    """The type of that operation, or None."""
    original = getattr(op, "_original_op", None)
    return original.type if original is not None else None


def original_op_name(op):
    """The forward operation for whose gradient `op` was made, or None."""
    original = getattr(op, "_original_op", None)
    return original.name if original is not None else None


def tagged_graph_def(graph):
    """The GraphDef of a graph with everything that is on its operations."""
    function = ops.Graph.__dict__["_as_graph_def"]
    return getattr(function, ORIGINAL, function)(graph)[0]


def is_variable(value):
    """Whether something is a variable, of references or of resources; a partitioned one is several."""
    return resource_variable_ops.is_resource_variable(value) or isinstance(value, tf.Variable)


def variable_op_name(variable):
    """The name of the operation that holds a variable (VariableV2 or VarHandleOp), from any spelling of it."""
    if resource_variable_ops.is_resource_variable(variable):
        return variable.handle.op.name
    if isinstance(variable, str):
        return variable.split(":")[0]
    op = variable.op
    # A trainable tensor that was read from a variable: the variable is what it was read from.
    while op.type in tensors.READS | effects.ENTERS and op.inputs:
        op = op.inputs[0].op
    return op.name


def graph_version(graph):
    """A number that grows whenever an operation is added to the graph."""
    return graph.version


def op_def(name):
    """The OpDef of an operation type, or None when TensorFlow does not know it."""
    if line() == "tf2":
        return op_def_registry.get(name)
    return op_def_registry.get_registered_ops().get(name)


def op_defs():
    """dict of every operation type that TensorFlow's kernel side knows by now to its OpDef."""
    listed = op_def_pb2.OpList()
    listed.ParseFromString(_c_api_session.TF_GetBuffer(_c_api_session.TF_GetAllOpList()))
    return {op.name: op for op in listed.op}


def known_op_def(name):
    """As `op_def`, but also for types that only TensorFlow's kernel side knows."""
    return op_def(name) or op_defs().get(name)


def has_kernel(op, device_type):
    """Whether an operation has a kernel for a type of device, such as "GPU"."""
    return any(kernel.device_type == device_type for kernel in kernels.get_registered_kernels_for_op(op).kernel)


def has_kernel_of_type(op, device_type, attr, dtype):
    """Whether an operation has a kernel for a type of device where one of its attributes is a DataType number."""
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        allowed = [c.allowed_values.list.type for c in kernel.constraint if c.name == attr]
        if kernel.device_type == device_type and all(dtype in each for each in allowed):
            return True
    return False


def uses_onednn():
    """Whether this TensorFlow computes on CPUs by oneDNN, as 2.15 does of itself where they have AVX512_VNNI, say."""
    return _port.IsMklEnabled()


def reverses_duplicates():
    """Whether, where operations turn out to be alike once constants are known, consumers of the later ones go first.

    TensorFlow 1.15's graph optimizer has them so, 2.15's in the order of the program.
    """
    return tf.__version__.startswith("1.")


def load_op_library(path):
    """Loads a library of custom operations; returns the module of their Python wrappers."""
    return tf.load_op_library(path)


def stateful_types(types):
    """Those of some operation types of which TensorFlow says that they keep state (OpDef.is_stateful)."""
    found = {op: op_def(op) for op in types}
    if None in found.values():  # 1.15's Python side does not know all types of its other side
        every = op_defs()
        found = {op: known or every.get(op) for op, known in found.items()}
    return frozenset(op for op, known in found.items() if known is not None and known.is_stateful)


def _make_operations(graph):
    """Makes the Python objects that are missing for operations of a graph.

    TensorFlow's own function also gives each its control inputs, though none, and 2.15 says of operations that have
    run already that they were changed.
    """
    for c_op in list(graph.new_operations() if line() == "tf2" else c_api_util.new_tf_operations(graph)):
        graph._create_op_from_tf_operation(c_op, compute_device=False)


def import_nodes(graph, graph_def, existing):
    """Adds nodes to a graph without making Python objects for them, which takes most of the time of an import.

    Args:
      graph: the tf.Graph to grow.
      graph_def: new nodes only; may name nodes of `existing` as inputs.
      existing: iterable of (node_name, output_index or -1 for a control input) that new nodes use from `graph`.
    """
    existing = list(existing)
    if existing:
        _make_operations(graph)
    scoped = c_api_util.ScopedTFImportGraphDefOptions()
    options = scoped.options
    _c_api.TF_ImportGraphDefOptionsSetPrefix(options, "")
    _c_api.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
    _c_api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
    for name, index in existing:
        op = graph.get_operation_by_name(name)
        if index < 0:
            _c_api.TF_ImportGraphDefOptionsRemapControlDependency(options, name, op._c_op)
        else:
            _c_api.TF_ImportGraphDefOptionsAddInputMapping(options, name, index, op.outputs[index]._as_tf_output())
    with graph._mutation_lock():
        with c_api_util.tf_buffer(graph_def.SerializeToString()) as serialized:
            if line() == "tf2":
                with graph._c_graph.get() as c_graph:
                    results = _c_api.TF_GraphImportGraphDefWithResults(c_graph, serialized, options)
            else:
                results = _c_api.TF_GraphImportGraphDefWithResults(graph._c_graph, serialized, options)
            c_api_util.ScopedTFImportGraphDefResults(results)


def host_function(token, function):
    """Has nodes of the type PyFunc with this token call a function of arrays, for as long as somebody else keeps it."""
    script_ops._py_funcs._funcs[token] = function
