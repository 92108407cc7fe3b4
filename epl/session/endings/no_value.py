"""What is fetched from a branch that was not taken has no value, and is an error as it is in plain TensorFlow."""

import numpy as np
import tensorflow.compat.v1 as tf


def check_values(graph, fetches, values):
    """Checks that what a call has fetched was computed: what was not comes as an empty float32 vector.

    Args:
      graph: the user's tf.Graph.
      fetches: names of its tensors.
      values: of these, in order.

    Raises:
      tf.errors.InvalidArgumentError: a tensor that cannot be such a vector has come as one.
    """
    for name, value in zip(fetches, values):
        if isinstance(value, np.ndarray) and value.shape == (0,) and value.dtype == np.float32:
            tensor = graph.get_tensor_by_name(name)
            if tensor.dtype.base_dtype != tf.float32 or not tensor.shape.is_compatible_with([0]):
                raise tf.errors.InvalidArgumentError(
                    tensor.op.node_def,
                    tensor.op,
                    "'%s' has no value in this run: it stands in a branch or a loop that was not taken, or takes "
                    "something of one. Fetch what the branch gives to the outside, the result of tf.cond, say." % name,
                )
