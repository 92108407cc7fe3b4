"""Programs of which a call of a session makes several training steps."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 10


def train_on_one_core(epl, *args):
    """`train` of a worker that has a core of its own, where there are so many."""
    cores = os.sched_getaffinity(0)
    worker, _ = common.workers(epl)
    os.sched_setaffinity(0, {sorted(cores)[worker % len(cores)]})
    try:
        return train(epl, *args)
    finally:
        os.sched_setaffinity(0, cores)


def train(epl, config=None, batch_size=common.BATCH):
    """Trains until the data of `STEPS` steps has ended, twice.

    Args:
      batch_size: of one copy of the model.

    Returns:
      A list of (global step, last loss over all copies, variables) after each call.
    """
    common.init(epl, config)
    worker, workers = common.workers(epl)
    parts = zip(*(common.batch(number) for number in range(STEPS)))
    data = tf.data.Dataset.from_tensor_slices(tuple(np.concatenate(part) for part in parts))
    data = data.batch(batch_size).shard(workers, worker)
    batches = tf.data.make_initializable_iterator(data)
    loss = common.classifier(*batches.get_next())
    shown = common.mean_everywhere(epl, tf.identity(loss))
    step, rate = tf.train.get_or_create_global_step(), tf.placeholder_with_default(0.1, [])
    update = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=step)
    found = []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(2):
            sess.run(batches.initializer)
            try:
                while True:
                    value, _ = sess.run([shown, update], {rate: 0.1})
                    found.append((int(sess.run(step)), value, common.state(sess)))
            except tf.errors.OutOfRangeError:
                continue
    return found


def fed(epl, config):
    """The message of the error for a fed batch."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    update = tf.train.GradientDescentOptimizer(0.1).minimize(common.classifier(feeds.x, feeds.labels))
    with common.session() as sess:
        common.initialize(sess)
        try:
            sess.run(update, feeds.of(0))
        except Exception as error:
            return type(error).__name__, str(error)
    return None


def monitored(epl, config, sizes, last_step):
    """Worker i has sizes[i] batches; a monitored session runs until data or steps end.

    Returns:
      The global step after each call.
    """
    common.init(epl, config)
    x, labels = common.batch(0, sizes[common.workers(epl)[0]])
    batches = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((x, labels)).batch(1))
    step = tf.train.get_or_create_global_step()
    loss = common.classifier(*batches.get_next())
    with tf.control_dependencies([tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)]):
        after, found = step.read_value() if hasattr(step, "read_value") else tf.identity(step), []
    hooks = [tf.train.StopAtStepHook(last_step=last_step)]
    with tf.train.MonitoredTrainingSession(hooks=hooks, config=common.threads()) as sess:
        while not sess.should_stop():
            found.append(int(sess.run(after)))
    return found
