"""A network and a classifier of very many classes. Knows nothing about EPL."""

import tensorflow.compat.v1 as tf


def features(points, width):
    """What the network makes of points [rows, numbers]: [rows, width]."""
    with tf.variable_scope("network"):
        hidden = tf.layers.dense(points, width, activation=tf.nn.relu, name="hidden")
        return tf.layers.dense(hidden, width, name="features")


def classifier(found, labels, classes):
    """(loss, share of rows whose largest logit is their class's, both scalars) of features [rows, width]."""
    logits = tf.layers.dense(found, classes, name="classes")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    right = tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32)
    return tf.reduce_mean(losses, name="loss"), tf.reduce_mean(right, name="right")
