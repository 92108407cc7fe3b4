"""Models whose variables are divided over shards, in plain TensorFlow."""

import tensorflow.compat.v1 as tf


def dense(x, units, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[-1], units])
        return tf.tensordot(x, kernel, 1) + tf.get_variable("bias", [units], initializer=tf.random_normal_initializer())


def trains_a_layer_on(x, optimizer, clip=None):
    """Trains a dense layer on [rows, width], with gradients clipped by the norm of all where `clip` says so."""
    loss = tf.reduce_mean(tf.square(dense(x, 2, "dense") - 1.0), name="loss")
    pairs = optimizer.compute_gradients(loss)
    if clip:
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], clip)
        pairs = [(g, v) for g, (_, v) in zip(clipped, pairs)]
    optimizer.apply_gradients(pairs, name="train")
    tf.global_variables_initializer()


def kernel(name):
    """The kernel of a dense layer that was made."""
    with tf.variable_scope(name, reuse=True):
        return tf.get_variable("kernel")


def layer_norm(x, name):
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gain = tf.get_variable("gain", [x.shape[-1]], initializer=tf.ones_initializer())
        shift = tf.get_variable("shift", [x.shape[-1]], initializer=tf.zeros_initializer())
        return (x - mean) * tf.rsqrt(variance + 1e-6) * gain + shift


def attention(x, heads):
    length, width = int(x.shape[1]), int(x.shape[2])

    def in_heads(name):
        return tf.transpose(tf.reshape(dense(x, width, name), [-1, length, heads, width // heads]), [0, 2, 1, 3])

    weights = tf.nn.softmax(tf.matmul(in_heads("query"), in_heads("key"), transpose_b=True) / (width // heads) ** 0.5)
    mixed = tf.transpose(tf.matmul(weights, in_heads("value")), [0, 2, 1, 3])
    return dense(tf.reshape(mixed, [-1, length, width]), width, "attended")


def transformer_block(x, heads, name):
    """[batch, length, width] -> the same shape."""
    with tf.variable_scope(name):
        x = layer_norm(x + attention(x, heads), "first")
        return layer_norm(x + dense(tf.nn.relu(dense(x, 4 * int(x.shape[-1]), "hidden")), x.shape[-1], "out"), "second")


def experts(tokens, count, hidden, scope, capacity=4):
    """A mixture of experts in which the largest gate of a token chooses one, as far as an expert has room for it.

    [groups, tokens, width] -> the same shape; the variables of the experts are built inside of `scope()`.
    """
    width = int(tokens.shape[-1])
    gates = tf.nn.softmax(tf.einsum("gsm,me->gse", tokens, tf.get_variable("gate", [width, count])))
    chosen = tf.one_hot(tf.argmax(gates, -1), count)
    place = (tf.cumsum(chosen, 1) - 1.0) * chosen
    chosen *= tf.cast(place < capacity, tf.float32)
    place = tf.one_hot(tf.cast(tf.reduce_sum(place, -1), tf.int32), capacity)
    weights = tf.expand_dims(gates * chosen, -1) * tf.expand_dims(place, 2)
    routes = tf.expand_dims(chosen, -1) * tf.expand_dims(place, 2)
    with scope():
        up = tf.get_variable("experts/up", [count, width, hidden])
        down = tf.get_variable("experts/down", [count, hidden, width])
    inputs = tf.einsum("gsec,gsm->egcm", routes, tokens)
    outputs = tf.einsum("egch,ehm->egcm", tf.nn.relu(tf.einsum("egcm,emh->egch", inputs, up)), down)
    return tf.einsum("gsec,egcm->gsm", weights, outputs)


def variables_under(graph, prefix):
    """Operations of the trainable variables whose names begin so."""
    return [v.op.name for v in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES) if v.op.name.startswith(prefix)]
