"""Programs that save and restore."""

import os

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def train(epl, first, last, restore=None, save=None, saver_options=None):
    """Trains steps first..last-1 with Adam from initial values or a checkpoint; (losses, state), and saves."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss, global_step=step)
    loss = common.mean_everywhere(epl, loss)
    saver = tf.train.Saver(**(saver_options or {}))
    losses = []
    with common.session() as sess:
        if restore:
            saver.restore(sess, restore)
        else:
            common.initialize(sess)
        assert sess.run(step) == first
        for number in range(first, last):
            losses.append(sess.run([loss, train_op], feeds.of(number))[0])
        if save:
            index, _ = common.workers(epl)
            # A folder for each worker shows who writes.
            path = os.path.join(save, "worker_%d" % index)
            os.makedirs(path, exist_ok=True)
            saver.save(sess, os.path.join(path, "model"), global_step=last)
        return losses, common.state(sess)


def monitored(epl, folder, stop):
    """Trains up to step `stop` in a MonitoredTrainingSession that restores from and saves to `folder`."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    loss = common.mean_everywhere(epl, loss)
    losses = {}
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder,
        save_checkpoint_steps=100,
        save_summaries_steps=0,
        log_step_count_steps=0,
        hooks=[tf.train.StopAtStepHook(last_step=stop)],
        config=common.threads(),
    ) as sess:
        number = int(sess.run(step))
        while not sess.should_stop():
            losses[number] = sess.run([loss, train_op], feeds.of(number))[0]
            number += 1
    return losses


def assigned(epl, before, on):
    """Changes the learning rate and counts in runs of their own, on the workers `on` only; (rate, counter, state)."""
    common.init(epl)
    feeds = common.Feeds(epl)
    rate = tf.get_variable("rate", [], initializer=tf.constant_initializer(0.1), trainable=False)
    counter = tf.get_variable("counter", [], tf.int64, tf.zeros_initializer(), trainable=False)
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(common.classifier(feeds.x, feeds.labels))
    change, count = tf.assign(rate, 0.5), tf.assign_add(counter, 1)
    with common.session() as sess:
        common.initialize(sess)
        for number in range(before):
            sess.run(train_op, feeds.of(number))
        if common.workers(epl)[0] in on:
            sess.run([change, count])
        for number in range(before, before + 3):
            sess.run(train_op, feeds.of(number))
        sess.run(count)
        return sess.run([rate, counter]), common.state(sess)
