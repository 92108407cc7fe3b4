"""Feed-forward models."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.zoo import model as m


def logistic(inputs):
    """Logistic regression from two bare variables."""
    weights = m.variable("weights", [6, 1], seed=1)
    bias = m.variable("bias", [1], seed=2)
    logits = tf.squeeze(tf.matmul(inputs["x"], weights) + bias, axis=1)
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=tf.cast(inputs["labels"], tf.float32))
    )


def mlp(inputs):
    """Three layers through tf.layers, with a loss through tf.losses."""
    x = inputs["x"]
    for index, units in enumerate((8, 8, 3)):
        last = units == 3
        x = tf.layers.dense(
            x,
            units,
            activation=None if last else tf.nn.tanh,
            kernel_initializer=m.initial(10 + index),
            bias_initializer=m.initial(20 + index),
        )
    return tf.losses.sparse_softmax_cross_entropy(labels=inputs["labels"], logits=x)


def cnn(inputs):
    """Two convolutions with pooling, NHWC."""
    x = tf.layers.conv2d(
        inputs["x"],
        4,
        3,
        padding="same",
        activation=tf.nn.relu,
        kernel_initializer=m.initial(1),
        bias_initializer=m.initial(2),
    )
    x = tf.layers.max_pooling2d(x, 2, 2)
    x = tf.layers.conv2d(
        x, 6, 3, padding="valid", activation=tf.nn.relu, kernel_initializer=m.initial(3), bias_initializer=m.initial(4)
    )
    x = tf.reshape(x, [-1, 2 * 2 * 6])
    return m.classification(m.dense(x, 3, "logits", seed=5), inputs["labels"])


def images(rng, size):
    """Data of `cnn`: `x` [size, 8, 8, 2], `labels` [size]."""
    return {
        "x": rng.normal(size=(size, 8, 8, 2)).astype(np.float32),
        "labels": rng.randint(0, 3, size).astype(np.int64),
    }


def resource_mlp(inputs):
    """An MLP of resource variables."""
    with tf.variable_scope("resource", use_resource=True):
        x = m.dense(inputs["x"], 8, "hidden", seed=1, activation=tf.nn.relu)
        return m.classification(m.dense(x, 3, "logits", seed=3), inputs["labels"])


def float64_mlp(inputs):
    """An MLP in double precision."""
    x = m.dense(inputs["x"], 8, "hidden", seed=1, activation=tf.nn.tanh, dtype=tf.float64)
    logits = m.dense(x, 3, "logits", seed=3, dtype=tf.float64)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=inputs["labels"]))


def float16_mlp(inputs):
    """Half precision variables beside single precision ones."""
    x = tf.cast(inputs["x"], tf.float16)
    x = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh, dtype=tf.float16)
    return m.classification(m.dense(tf.cast(x, tf.float32), 3, "logits", seed=3), inputs["labels"])


def learning_rate_decay(inputs):
    """A learning rate that follows the global step, and an apply that waits for the loss."""
    x = m.dense(inputs["x"], 8, "hidden", seed=1, activation=tf.nn.tanh)
    loss = m.classification(m.dense(x, 3, "logits", seed=3), inputs["labels"])

    def train(make_optimizer):
        del make_optimizer
        rate = tf.train.exponential_decay(0.2, m.train_step(), decay_steps=1, decay_rate=0.5, staircase=True)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
        pairs = optimizer.compute_gradients(loss)
        with tf.control_dependencies([loss]):
            return optimizer.apply_gradients(pairs, global_step=m.train_step())

    return {"loss": loss}, train


def attention(inputs):
    """A transformer block: embedding, two-headed attention with a mask, layer norm, GELU, residuals."""
    size, length, heads = 8, 5, 2
    ids = inputs["ids"]
    table = m.variable("table", [12, size], seed=1)
    x = tf.nn.embedding_lookup(table, ids) + m.variable("positions", [length, size], seed=2)

    def heads_of(name, seed):
        # No bias: the gradient of the key's would be zero, and rounding noise is all there would be to compare.
        flat = tf.matmul(tf.reshape(x, [-1, size]), m.variable(name, [size, size], seed))
        return tf.transpose(tf.reshape(flat, [-1, length, heads, size // heads]), [0, 2, 1, 3])

    query, key, value = heads_of("query", 3), heads_of("key", 5), heads_of("value", 7)
    mask = tf.cast(tf.equal(ids, 0), tf.float32)[:, None, None, :] * -1e4
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / np.sqrt(size // heads) + mask)
    mixed = tf.reshape(tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3]), [-1, size])
    x = layer_norm(tf.reshape(x, [-1, size]) + m.dense(mixed, size, "mix", seed=9), "norm_1")
    hidden = m.dense(x, 16, "up", seed=11)
    hidden = hidden * 0.5 * (1.0 + tf.math.erf(hidden / np.sqrt(2.0)))
    x = layer_norm(x + m.dense(hidden, size, "down", seed=13), "norm_2")
    pooled = tf.reduce_mean(tf.reshape(x, [-1, length, size]), axis=1)
    return m.classification(m.dense(pooled, 3, "logits", seed=15), inputs["labels"])


def layer_norm(x, name):
    """Normalises each row; its gain and bias are variables."""
    with tf.variable_scope(name):
        gain = tf.get_variable("gain", [int(x.shape[-1])], initializer=tf.ones_initializer())
        bias = tf.get_variable("bias", [int(x.shape[-1])], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-3) * gain + bias


# Adam divides by the root of a mean of squares, which is small where a weight's gradients are differences of nearly
# equal terms, as behind a softmax. Where a batch is summed in four parts, the rounding of these sums comes out larger
# by that division; how much depends on the processor.
_ADAM_ROUNDS = {("adam-feed", "1x2x2_micro_batches"): 5e-6, ("adam-feed", "2x2"): 5e-6}

MODELS = [
    m.Model("logistic", logistic, m.vectors(6, 2), m.ALL_OPTIMIZERS),
    m.Model("mlp", mlp, m.vectors(6, 3), m.ALL_OPTIMIZERS),
    m.Model("cnn", cnn, images, m.ALL_OPTIMIZERS),
    m.Model("resource_mlp", resource_mlp, m.vectors(6, 3), m.ALL_OPTIMIZERS),
    m.Model("attention", attention, m.tokens(5, 12, 3), m.ALL_OPTIMIZERS, wider=_ADAM_ROUNDS),
    m.Model("learning_rate_decay", learning_rate_decay, m.vectors(6, 3)),
    m.Model("float64_mlp", float64_mlp, m.vectors(6, 3, np.float64), ("adam",), rtol=1e-10, atol=1e-12),
    # Half precision keeps 11 bits: a gradient that is the mean of rounded halves differs from the rounded mean in the
    # last.
    m.Model("float16_mlp", float16_mlp, m.vectors(6, 3), ("sgd", "momentum"), rtol=1e-2, atol=1e-2),
]
