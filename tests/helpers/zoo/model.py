"""What a model of the zoo is, and the pieces that the models share.

A model is written as a single-device TensorFlow 1.x script would write it and knows nothing about EPL. Its initial
values are computed by NumPy from the variable's shape and a seed, so every process starts from the same weights;
nothing in it is random and no statistic spans the batch, so the loss of a batch is the mean of the losses of its
equal parts.
"""

import zlib

import numpy as np
import tensorflow.compat.v1 as tf

# Adam divides by sqrt(v) + epsilon: with the usual 1e-8 a gradient that is pure rounding noise would move a weight by
# a whole learning rate. The larger epsilon keeps noise as small as it is, and changes nothing about what is tested.
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01, epsilon=1e-3),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
}
ALL_OPTIMIZERS = tuple(OPTIMIZERS)


class Model(object):
    """One entry of the zoo.

    build(inputs) -> loss, or (losses by name, function from an optimizer factory to the train op).
    data(rng, size) -> dict of arrays whose first dimension is `size`.

    Attributes:
      rtol, atol: how far a parallel run may be off: of a number itself, and of the largest number of its tensor.
      wider: what some cases of the model need instead of atol: (the case without the model's name, layout) to it.
    """

    def __init__(
        self,
        name,
        build,
        data,
        optimizers=("sgd",),
        config=None,
        rtol=1e-5,
        atol=1e-6,
        wider=None,
        v2_control_flow=False,
    ):
        self.name = name
        self.build = build
        self.data = data
        self.optimizers = optimizers
        self.config = dict(config or {})
        self.rtol = rtol
        self.atol = atol
        self.wider = dict(wider or {})
        self.v2_control_flow = v2_control_flow

    def batch(self, step, size):
        """The global batch of a step: the same in every process, another one for each step."""
        seed = zlib.crc32(("%s/%d" % (self.name, step)).encode("ascii"))
        return self.data(np.random.RandomState(seed), size)


def initial(seed, scale=0.5):
    """An initializer that gives the same numbers in every process and graph."""

    def values(shape, dtype=tf.float32, partition_info=None):
        del partition_info
        shape = [int(dim) for dim in shape]
        numbers = np.random.RandomState(seed).uniform(-scale, scale, shape)
        return tf.constant(numbers.astype(tf.as_dtype(dtype).as_numpy_dtype))

    return values


def constant(seed, shape, scale=0.5, dtype=np.float32):
    """The numbers of `initial` as an array."""
    return np.random.RandomState(seed).uniform(-scale, scale, shape).astype(dtype)


def variable(name, shape, seed, dtype=tf.float32, scale=0.5, **kwargs):
    """A variable with the values of `initial`."""
    return tf.get_variable(name, shape, dtype=dtype, initializer=initial(seed, scale), **kwargs)


def dense(x, units, name, seed, activation=None, dtype=tf.float32, **kwargs):
    """A dense layer from two variables."""
    with tf.variable_scope(name):
        kernel = variable("kernel", [int(x.shape[-1]), units], seed, dtype, **kwargs)
        bias = variable("bias", [units], seed + 1, dtype, scale=0.1, **kwargs)
    outputs = tf.matmul(x, kernel) + bias
    return activation(outputs) if activation else outputs


def classification(logits, labels):
    """Mean cross entropy over the batch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=tf.cast(logits, tf.float32), labels=labels)
    )


def train_step():
    """The global step of the graph that is being built."""
    return tf.train.get_or_create_global_step()


def vectors(features, classes, dtype=np.float32):
    """Data: `x` [size, features] and `labels` [size]."""

    def data(rng, size):
        return {
            "x": rng.normal(size=(size, features)).astype(dtype),
            "labels": rng.randint(0, classes, size).astype(np.int64),
        }

    return data


def sequences(length, features, classes):
    """Data: `x` [size, length, features], `length` [size] of 1..length, `labels` [size]."""

    def data(rng, size):
        return {
            "x": rng.normal(size=(size, length, features)).astype(np.float32),
            "length": rng.randint(1, length + 1, size).astype(np.int32),
            "labels": rng.randint(0, classes, size).astype(np.int64),
        }

    return data


def tokens(length, vocabulary, classes):
    """Data: `ids` [size, length] (with repeated ids), `labels` [size]."""

    def data(rng, size):
        return {
            "ids": rng.randint(0, vocabulary, (size, length)).astype(np.int32),
            "labels": rng.randint(0, classes, size).astype(np.int64),
        }

    return data
