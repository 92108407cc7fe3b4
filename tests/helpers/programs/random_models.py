"""Models drawn at random, with loops, branches, batch normalisation and recurrent cells between what is exchanged."""

import functools

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.control_flow import control_flow
from tests.helpers.zoo import model as m

WIDTH, CLASSES = 6, 3
PREFIX = "random_model_"


def named(name):
    """The function (scope, stages, layers) that builds the model of a name such as "random_model_7"."""
    return functools.partial(_build, int(name[len(PREFIX) :]))


def blocks(seed):
    """The kinds of its blocks: two of them keep the order of collectives busy, the others are drawn."""
    draw = np.random.RandomState(seed)
    kinds = [draw.choice(["norm", "fused norm"]), draw.choice(["lstm", "loop"])]
    kinds += list(draw.choice(sorted(BLOCKS), 3))
    return [kinds[place] for place in draw.permutation(len(kinds))]


def _build(seed, scope, stages, layers=4):
    x = start = tf.placeholder(tf.float32, [None, WIDTH], "x")
    labels = tf.placeholder(tf.int64, [None], "labels")
    kinds = blocks(seed)
    for stage, part in enumerate(np.array_split(range(len(kinds)), stages)):
        with scope(stage), control_flow("v1"):
            for number in part:
                with tf.variable_scope("block_%d" % number):
                    # What is only normalised has gradients that are next to nothing.
                    x = m.dense(x + 0.5 * BLOCKS[kinds[number]](x, 10 * int(number) + seed), WIDTH, "out", seed=number)
            if stage == stages - 1:
                logits = m.dense(x, CLASSES, "logits", seed=5)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"x": start, "labels": labels}


def _dense(x, seed):
    return m.dense(x, WIDTH, "dense", seed=seed, activation=tf.nn.tanh)


def _norm(x, seed, fused=False):
    options = dict(momentum=0.8, training=True, name="norm")
    if fused:
        rows = tf.layers.batch_normalization(x[:, None, None, :], fused=True, **options)
        return tf.nn.tanh(rows[:, 0, 0])
    return tf.nn.tanh(tf.layers.batch_normalization(x, fused=False, **options))


def _lstm(x, seed):
    """Over the columns, two at a time; rows end at steps of their own."""
    steps = tf.reshape(x, [-1, WIDTH // 2, 2])
    lengths = 1 + tf.cast(x[:, 0] > 0, tf.int32) + tf.cast(x[:, 1] > 0, tf.int32)
    cell = tf.nn.rnn_cell.LSTMCell(WIDTH, initializer=m.initial(seed))
    outputs, _ = tf.nn.dynamic_rnn(cell, steps, lengths, dtype=tf.float32)
    return tf.reduce_mean(outputs, 1)


def _loop(x, seed):
    """A loop whose body takes a weight that does not change, and collects what it computes."""
    weight = tf.get_variable("weight", [WIDTH, WIDTH], initializer=m.initial(seed))
    array = tf.TensorArray(tf.float32, 3)
    _, _, array = tf.while_loop(
        lambda i, y, kept: i < 3,
        lambda i, y, kept: (i + 1, tf.tanh(tf.matmul(y, weight)), kept.write(i, y)),
        [0, x, array],
    )
    return tf.reduce_mean(array.stack(), 0)


def _branch(x, seed):
    """Which side is taken depends on the step alone: on all copies it is the same one."""
    product = m.dense(x, WIDTH, "product", seed=seed)
    odd = tf.equal(tf.train.get_or_create_global_step() % 2, 1)
    return tf.cond(odd, lambda: tf.tanh(product), lambda: tf.sin(x) * 0.3)


BLOCKS = {
    "dense": _dense,
    "norm": _norm,
    "fused norm": functools.partial(_norm, fused=True),
    "lstm": _lstm,
    "loop": _loop,
    "branch": _branch,
}
