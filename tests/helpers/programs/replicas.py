"""Programs about what each replica does by itself: statistics, random numbers, start values, merged fetches."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 5


def batch_norm(epl, momentum=0.8):
    """Batch normalisation straight on the input; its moving statistics of every replica after each step."""
    common.init(epl)
    feeds = common.Feeds(epl)
    x = tf.layers.batch_normalization(feeds.x, momentum=momentum, training=True, fused=False, name="norm")
    loss = common.classifier(x, feeds.labels)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    moving = {
        name: [variable for variable in tf.global_variables() if variable.op.name == "norm/moving_" + name][0]
        for name in ("mean", "variance")
    }
    everywhere = {name: common.rows_everywhere(epl, tf.expand_dims(variable, 0)) for name, variable in moving.items()}
    history = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            sess.run(train_op, feeds.of(step))
            history.append(sess.run(everywhere))
    return history


def random_start(epl):
    """Unseeded initial values, fetched from every replica of every worker."""
    common.init(epl)
    variables = [
        tf.get_variable("normal", [3, 4], initializer=tf.random_normal_initializer()),
        tf.get_variable("resource", [5], initializer=tf.random_uniform_initializer(), use_resource=True),
        tf.get_variable("local", [4], initializer=tf.random_normal_initializer(), trainable=False),
    ]
    everywhere = [common.rows_everywhere(epl, tf.expand_dims(variable, 0)) for variable in variables]
    loss = tf.reduce_sum(tf.square(variables[0])) + tf.reduce_sum(variables[1])
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        start = sess.run(everywhere)
        sess.run(train_op)
        return start, sess.run(everywhere)


def dropout(epl, seed=None):
    """Masks of two steps, of all replicas."""
    common.init(epl)
    if seed is not None:
        tf.set_random_seed(seed)
    x = tf.placeholder(tf.float32, [None, 64])
    weight = tf.get_variable("weight", [64], initializer=tf.ones_initializer())
    mask = tf.nn.dropout(x * weight, rate=0.5)
    loss = tf.reduce_mean(mask)
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss)
    everywhere = common.rows_everywhere(epl, mask)
    rows = common.share(epl, np.ones([common.BATCH, 64], np.float32))
    with common.session() as sess:
        common.initialize(sess)
        return [sess.run([everywhere, train_op], {x: rows})[0] > 0 for _ in range(2)]


def collections(epl):
    """Merged fetches of every kind over a tensor that differs by row."""
    common.init(epl)
    x = tf.placeholder(tf.float32, [None, 2])
    weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer())
    rows = x * weight
    loss = tf.reduce_mean(rows)
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss)
    fetches = {"unmerged": loss}
    for key in (
        "GLOBAL_CONCAT_OBJECTS",
        "LOCAL_CONCAT_OBJECTS",
        "GLOBAL_MEAN_OBJECTS",
        "LOCAL_MEAN_OBJECTS",
        "GLOBAL_SUM_OBJECTS",
        "LOCAL_SUM_OBJECTS",
    ):
        fetches[key] = tf.identity(rows if "CONCAT" in key else loss)
        epl.add_to_collection(fetches[key], getattr(epl.GraphKeys, key))
    numbers = np.arange(2 * common.BATCH, dtype=np.float32).reshape([common.BATCH, 2])
    with common.session() as sess:
        common.initialize(sess)
        return sess.run([fetches, train_op], {x: common.share(epl, numbers)})[0]
