"""Losses and feeds that do not divide as a mean over the rows of a batch does."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def fixed_beside_open(epl, rows, config=None):
    """The weights after training on `rows` rows, of which the observations have a placeholder of a fixed shape."""
    common.init(epl, config)
    own = rows // common.workers(epl)[1]
    x = tf.placeholder(tf.float32, [own, common.FEATURES], name="observations")
    y = tf.placeholder(tf.float32, [None, 1], name="labels")
    scale = tf.placeholder(tf.float32, [common.FEATURES], name="scale")  # one row for each feature, not a batch
    w = tf.get_variable("w", [common.FEATURES, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x * scale, w) - y))
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    random = np.random.RandomState(5)
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(4):
            given = random.normal(size=[rows, common.FEATURES]), random.normal(size=[rows, 1])
            given = [common.share(epl, each) for each in given]
            feeds = {x: given[0], y: given[1], scale: np.linspace(0.5, 1.5, common.FEATURES)}
            sess.run(train, feeds)
        return sess.run(w)
