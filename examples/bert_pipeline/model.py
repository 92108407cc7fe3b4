"""A small BERT over bytes: embeddings, transformer layers, and the logits of masked bytes. Knows nothing about EPL."""

import math

import tensorflow.compat.v1 as tf

MASK = 256  # besides the 256 bytes
VOCABULARY = 257


def _dense(x, width, name, activation=None):
    return tf.layers.dense(x, width, activation, kernel_initializer=tf.truncated_normal_initializer(0, 0.02), name=name)


def layer_norm(x, name):
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gain = tf.get_variable("gain", [x.shape[-1]], initializer=tf.ones_initializer())
        shift = tf.get_variable("shift", [x.shape[-1]], initializer=tf.zeros_initializer())
        return gain * (x - mean) * tf.rsqrt(variance + 1e-6) + shift


def embed(tokens, width):
    """[batch, length] bytes -> [batch, length, width]."""
    table = tf.get_variable("tokens", [VOCABULARY, width], initializer=tf.truncated_normal_initializer(0, 0.02))
    places = tf.get_variable(
        "positions", [tokens.shape[1], width], initializer=tf.truncated_normal_initializer(0, 0.02)
    )
    return layer_norm(tf.gather(table, tokens) + places, "embedded")


def _heads(x, count):
    length, width = int(x.shape[1]), int(x.shape[2])
    return tf.transpose(tf.reshape(x, [-1, length, count, width // count]), [0, 2, 1, 3])


def transformer_layer(x, heads, name):
    """[batch, length, width] -> the same shape."""
    length, width = int(x.shape[1]), int(x.shape[2])
    with tf.variable_scope(name):
        queries, keys, values = [_heads(_dense(x, width, n), heads) for n in ("query", "key", "value")]
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / math.sqrt(width // heads))
        attended = tf.reshape(tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3]), [-1, length, width])
        x = layer_norm(x + _dense(attended, width, "attention"), "attended")
        hidden = _dense(x, 4 * width, "hidden", tf.nn.relu)
        return layer_norm(x + _dense(hidden, width, "output"), "normalised")


def masked_loss(x, tokens, masked):
    """Mean cross-entropy of the bytes at the masked places, and the part of them that is predicted rightly."""
    logits = _dense(x, VOCABULARY, "logits")
    wrong = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens, logits=logits)
    count = tf.maximum(tf.reduce_sum(masked), 1.0)
    right = tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), tokens), tf.float32)
    return tf.reduce_sum(masked * wrong) / count, tf.reduce_sum(masked * right) / count
