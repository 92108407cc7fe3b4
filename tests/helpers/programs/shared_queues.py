"""Programs with queues on /job:ps that all workers have in common, as programs for parameter servers have them."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def _queue(capacity, dtypes, shapes, name):
    with tf.device("/job:ps/task:0/cpu:0"):
        return tf.FIFOQueue(capacity, dtypes, shapes=shapes, shared_name=name)


def barrier(epl, folder):
    """Trains three steps; all meet at the end. Returns how many had come, and the newest checkpoint."""
    common.init(epl)
    epl.set_default_strategy(epl.replicate(1))
    number = common.workers(epl)[1]
    queue = _queue(number, [tf.float32], [()], "exits")
    put, size = queue.enqueue(1.0), queue.size()
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder) as session:
        for _ in range(3):
            session.run(train_op, {x: np.ones([4, 3])})
        session.run(put)
        while session.run(size) < number:
            pass
        came = session.run(size)
    return int(came), tf.train.latest_checkpoint(folder)


def work(epl, count):
    """Worker 0 fills a queue with names and numbers, of which each worker takes as many.

    Returns:
      What this worker has taken: a list of (name, [numbers]).
    """
    common.init(epl)
    index, number = common.workers(epl)
    queue = _queue(count, [tf.string, tf.int64], [(), (2,)], "work")
    name, pair = tf.placeholder(tf.string, []), tf.placeholder(tf.int64, [2])
    put, take = queue.enqueue([name, pair]), queue.dequeue()
    with tf.Session() as session:
        for each in range(count) if index == 0 else ():
            session.run(put, {name: "file-%d" % each, pair: [each, each + 1]})
        taken = [session.run(take) for _ in range(count // number)]
    return [(found.decode(), numbers.tolist()) for found, numbers in taken]
