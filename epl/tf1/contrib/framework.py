"""`tf.contrib.framework`: variables and argument scopes of tf_slim, and names that `tf` has."""

import tensorflow.compat.v1 as tf

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tf_slim.ops.variables", "tf_slim.ops.arg_scope", "tf_slim.ops.framework_ops"),
    names={
        "BoundedTensorSpec": "tensorflow.python.framework.tensor_spec:BoundedTensorSpec",
        "TensorSpec": "tensorflow:TensorSpec",
        "argsort": "tensorflow:argsort",
        "assert_same_float_dtype": "tensorflow:debugging.assert_same_float_dtype",
        "assert_scalar": "tensorflow:debugging.assert_scalar",
        "convert_to_tensor_or_sparse_tensor": "tensorflow:convert_to_tensor_or_sparse_tensor",
        "deprecated": "tensorflow.python.util.deprecation:deprecated",
        "deprecated_arg_values": "tensorflow.python.util.deprecation:deprecated_arg_values",
        "deprecated_args": "tensorflow.python.util.deprecation:deprecated_args",
        "init_from_checkpoint": "tensorflow:train.init_from_checkpoint",
        "is_tensor": "tensorflow:is_tensor",
        "list_variables": "tensorflow:train.list_variables",
        "load_and_remap_matrix_initializer": "tensorflow.python.training.checkpoint_ops:"
        "_load_and_remap_matrix_initializer",
        "load_checkpoint": "tensorflow:train.load_checkpoint",
        "load_variable": "tensorflow:train.load_variable",
        "nest": "tensorflow.python.util.nest",
        "ops": "tf_slim.ops",
        "py_func": "tensorflow:py_func",
        "python": __name__,
        "remove_squeezable_dimensions": "tensorflow.python.ops.confusion_matrix:remove_squeezable_dimensions",
        "smart_case": "tensorflow.python.framework.smart_cond:smart_case",
        "smart_cond": "tensorflow.python.framework.smart_cond:smart_cond",
        "smart_constant_value": "tensorflow.python.framework.smart_cond:smart_constant_value",
        "sort": "tensorflow:sort",
        "variables": "tf_slim.ops.variables",
    },
)


def assert_scalar_int(tensor, name=None):
    """Returns `tensor`, which is a scalar of an integer type.

    Raises:
      ValueError: it is not.
    """
    with tf.name_scope(name, "assert_scalar_int", [tensor]):
        tensor = tf.convert_to_tensor(tensor)
        if not tensor.dtype.is_integer:
            raise ValueError("Expected integer type, received type: %s for tensor: %s." % (tensor.dtype, tensor.name))
        return tf.debugging.assert_scalar(tensor)


def with_shape(expected_shape, tensor):
    """Returns `tensor`, known, or checked while it runs, to be of a shape."""
    return tf.ensure_shape(tensor, tf.TensorShape(tf.get_static_value(expected_shape)))


def with_same_shape(expected_tensor, tensor):
    """Returns `tensor` with the shape of another one, checked while it runs where it is not known."""
    tensor = tf.ensure_shape(tensor, expected_tensor.get_shape())
    same = tf.debugging.assert_equal(tf.shape(expected_tensor), tf.shape(tensor))
    with tf.control_dependencies([same]):
        return tf.identity(tensor)


def reduce_sum_n(tensors, name=None):
    """The sum of all elements of all tensors, a scalar."""
    if not tensors:
        raise ValueError("No tensors provided.")
    with tf.name_scope(name, "reduce_sum_n", tensors) as scope:
        return tf.add_n([tf.reduce_sum(each) if each.get_shape().ndims else each for each in tensors], name=scope)


def get_placeholders(graph=None):
    """All placeholders of a graph, the default one where none is given."""
    graph = graph or tf.get_default_graph()
    return [op.outputs[0] for op in graph.get_operations() if op.type in ("Placeholder", "PlaceholderWithDefault")]


def strip_name_scope(name, export_scope):
    """A name without a name scope in front."""
    prefix = (export_scope or "").rstrip("/") + "/"
    return name[len(prefix) :] if export_scope and name.startswith(prefix) else name


def prepend_name_scope(name, import_scope):
    """A name with a name scope in front."""
    return "%s/%s" % (import_scope.rstrip("/"), name) if import_scope else name


def zero_initializer(ref, use_locking=True, name="zero_initializer"):
    """An operation that sets a variable to zeros."""
    return tf.assign(ref, tf.zeros_like(ref), use_locking=use_locking, name=name)
