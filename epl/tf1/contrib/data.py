"""`tf.contrib.data`: what became `tf.data.experimental`, and the functions that were dropped."""

import tensorflow.compat.v1 as tf

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tensorflow:data.experimental",),
    names={
        "AUTOTUNE": "tensorflow:data.experimental.AUTOTUNE",
        "reduce_dataset": "tensorflow:data.experimental.Reducer",
    },
)


def batch_and_drop_remainder(batch_size):
    """A function for Dataset.apply: batches of `batch_size`, without what is left at the end."""
    return lambda data: data.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size, padded_shapes, padding_values=None):
    """A function for Dataset.apply: padded batches of `batch_size`, without what is left at the end."""
    return lambda data: data.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def sloppy_interleave(map_func, cycle_length, block_length=1):
    """A function for Dataset.apply: `parallel_interleave` whose order is not always the same."""
    return tf.data.experimental.parallel_interleave(map_func, cycle_length, block_length, sloppy=True)


def sliding_window_batch(window_size, stride=None, window_shift=None, window_stride=1):
    """A function for Dataset.apply: windows of `window_size` elements, each `window_shift` (or `stride`) later."""
    if stride is not None and window_shift is not None:
        raise ValueError("Cannot specify both `stride` and `window_shift`")
    shift = stride or window_shift or 1

    def apply(data):
        windows = data.window(window_size, shift, window_stride, drop_remainder=True)
        return windows.flat_map(lambda *parts: _batched(parts, window_size))

    return apply


def _batched(parts, size):
    batched = tuple(part.batch(size) for part in parts)
    return tf.data.Dataset.zip(batched if len(batched) > 1 else batched[0])


def assert_element_shape(expected_shapes):
    """A function for Dataset.apply that fails for elements of other shapes, and notes these.

    Args:
      expected_shapes: a nested structure of tf.TensorShape, as that of the elements.
    """

    def check(shape, tensor):
        with tf.control_dependencies(
            [tf.debugging.assert_rank(tensor, shape.ndims)] if shape.ndims is not None else []
        ):
            return tf.ensure_shape(tensor, shape)

    def check_all(*element):
        shapes = expected_shapes if len(element) > 1 else (expected_shapes,)
        checked = tuple(tf.nest.map_structure(check, shape, part) for shape, part in zip(shapes, element))
        return checked if len(element) > 1 else checked[0]

    return lambda data: data.map(check_all)
