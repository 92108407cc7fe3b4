"""`tf.contrib.memory_stats`: what the allocator of a GPU has given out, in bytes."""

import tensorflow.compat.v1 as tf


def _statistic(key):
    def read(device=None):
        device = device or "GPU:0"

        def value():
            return tf.int64.as_numpy_dtype(tf.config.experimental.get_memory_info(device)[key])

        return tf.numpy_function(value, [], tf.int64)

    read.__doc__ = "An int64 scalar: '%s' of tf.config.experimental.get_memory_info, of the first GPU." % key
    return read


BytesInUse = _statistic("current")
MaxBytesInUse = _statistic("peak")
