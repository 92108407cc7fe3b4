"""A transformer whose feed-forward layers are mixtures of experts (Shazeer and others, 2017; Fedus and others, 2021).

Each token goes to the expert that its gate likes best, as far as that has room; what finds none is left as it is. The
model is that of one device; `experts_scope` is where the variables of the experts are built.
"""

import math

import numpy as np
import tensorflow.compat.v1 as tf


def dense(x, units, name):
    """[rows, length, width] -> [rows, length, units]."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.einsum("rlw,wu->rlu", x, kernel) + bias


def normalised(x, name):
    """Layer normalisation over the last dimension."""
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gain = tf.get_variable("gain", [x.shape[-1]], initializer=tf.ones_initializer())
        shift = tf.get_variable("shift", [x.shape[-1]], initializer=tf.zeros_initializer())
        return (x - mean) * tf.rsqrt(variance + 1e-6) * gain + shift


def attention(x, heads):
    """Of each token to those before it and itself: [rows, length, width] -> the same shape."""
    length, width = int(x.shape[1]), int(x.shape[2])
    size = width // heads

    def in_heads(name):
        return tf.reshape(dense(x, width, name), [-1, length, heads, size])

    scores = tf.einsum("rqhs,rkhs->rhqk", in_heads("query"), in_heads("key")) / math.sqrt(size)
    later = np.triu(np.full([length, length], -1e9, np.float32), 1)
    mixed = tf.einsum("rhqk,rkhs->rqhs", tf.nn.softmax(scores + later), in_heads("value"))
    return dense(tf.reshape(mixed, [-1, length, width]), width, "mixed")


def mixture(x, experts, hidden, capacity, experts_scope):
    """A feed-forward layer of which each token sees one expert.

    Args:
      x: [rows, length, width].
      experts: how many there are.
      hidden: units of an expert's hidden layer.
      capacity: tokens of a row that an expert takes at most.
      experts_scope: function that returns a context for the experts' variables.

    Returns:
      ([rows, length, width], a scalar that is 1 where all experts are used alike, and larger where they are not).
    """
    width = int(x.shape[-1])
    gate = tf.get_variable("gate", [width, experts])
    gates = tf.nn.softmax(tf.einsum("rlw,we->rle", x, gate))
    chosen = tf.one_hot(tf.argmax(gates, -1), experts)
    used, liked = tf.reduce_mean(chosen, [0, 1]), tf.reduce_mean(gates, [0, 1])
    balance = experts * tf.reduce_sum(used * liked)
    place = (tf.cumsum(chosen, 1) - 1.0) * chosen
    chosen *= tf.cast(place < capacity, tf.float32)
    places = tf.one_hot(tf.cast(tf.reduce_sum(place, -1), tf.int32), capacity)
    routes = tf.expand_dims(chosen, -1) * tf.expand_dims(places, 2)
    weights = tf.expand_dims(gates, -1) * routes
    with experts_scope():
        up = tf.get_variable("experts/up", [experts, width, hidden])
        down = tf.get_variable("experts/down", [experts, hidden, width])
    inputs = tf.einsum("rlec,rlw->ercw", routes, x)
    outputs = tf.einsum("erch,ehw->ercw", tf.nn.relu(tf.einsum("ercw,ewh->erch", inputs, up)), down)
    return tf.einsum("rlec,ercw->rlw", weights, outputs), balance


def transformer(tokens, targets, vocabulary, width, heads, layers, experts, experts_scope):
    """(loss that is trained, mean cross-entropy, share of tokens that are predicted), scalars.

    Args:
      tokens, targets: int32 [rows, length]; `length` is known.
      vocabulary: different tokens.
      width, heads, layers: of the transformer.
      experts: of each mixture.
      experts_scope: see `mixture`.
    """
    length = int(tokens.shape[1])
    with tf.variable_scope("model", initializer=tf.variance_scaling_initializer(1.0, "fan_avg", "uniform")):
        table = tf.get_variable("tokens", [vocabulary, width], initializer=tf.random_normal_initializer(stddev=0.5))
        positions = tf.get_variable("positions", [length, width], initializer=tf.random_normal_initializer(stddev=0.5))
        x, balances = tf.nn.embedding_lookup(table, tokens) + positions, []
        for layer in range(layers):
            with tf.variable_scope("layer_%d" % layer):
                x += attention(normalised(x, "before_attention"), heads)
                mixed, balance = mixture(
                    normalised(x, "before_experts"), experts, 4 * width, 2 * length // experts + 1, experts_scope
                )
                x += mixed
                balances.append(balance)
        logits = dense(normalised(x, "last"), vocabulary, "logits")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    entropy = tf.reduce_mean(losses)
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, -1, output_type=tf.int32), targets), tf.float32))
    return entropy + 0.01 * tf.add_n(balances) / layers, entropy, right
