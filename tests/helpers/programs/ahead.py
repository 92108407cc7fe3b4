"""A training whose data sets are read to their end, begun again in the middle and at their end."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

ROWS = 30  # seven batches of four, and one of two


def train(epl, config, batch, kind="initializable", looks=False):
    """(losses of each epoch, the weights at the end): of three epochs, the first of which is cut off after two steps.

    Args:
      config: of EPL; batch: rows of one copy of the model.
      kind: of the iterator; a one-shot one has one epoch.
      looks: whether a batch is fetched by itself in each epoch, so that no step trains with it.
    """
    common.init(epl, config)
    index, count = common.workers(epl)
    rows = np.random.RandomState(5).normal(size=[ROWS, 3]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(rows).shard(count, index).batch(batch, drop_remainder=True)
    again = kind == "initializable"
    iterator = (tf.data.make_initializable_iterator if again else tf.data.make_one_shot_iterator)(data)
    x = iterator.get_next()
    weights = tf.get_variable("weights", [3, 2], initializer=tf.random_normal_initializer(seed=2))
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, weights)) - 0.5))
    if "local_sgd.k_steps" not in (config or {}):
        common.mean_everywhere(epl, loss)
    update = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    epochs = []
    with common.session() as sess:
        common.initialize(sess)
        for most in (2, ROWS, ROWS) if again else (ROWS,):
            if again:
                sess.run(iterator.initializer)
            epochs.append([])
            try:
                while len(epochs[-1]) < most:
                    epochs[-1].append(float(sess.run([loss, update])[0]))
                    if looks and len(epochs[-1]) == 1:
                        sess.run(x)
            except tf.errors.OutOfRangeError:
                pass
        return epochs, sess.run(weights)


def refused(epl, config):
    """What is said of a fetch of one copy's batch."""
    common.init(epl, config)
    x = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(tf.ones([4, 3])).repeat()).get_next()
    loss = tf.reduce_mean(tf.square(tf.matmul(x, tf.get_variable("weights", [3, 2]))))
    update = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(update)
        try:
            sess.run(x)
        except Exception as error:
            return type(error).__name__, str(error)
        return None
