"""Programs that EPL must refuse."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def nested_scopes(epl):
    common.init(epl)
    with epl.replicate(device_count=1, name="outer"):
        with epl.replicate(device_count=1, name="inner"):
            tf.constant(1.0)


def replicate_over(epl, device_count):
    """A model replica that needs `device_count` devices."""
    common.init(epl)
    feeds = common.Feeds(epl)
    with epl.replicate(device_count=device_count):
        loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, feeds.of(0))


def feed_rows(epl, rows, config):
    """Feeds this worker `rows` rows, which two copies of the model are to share."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    with epl.replicate(device_count=1):
        loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, {feeds.x: np.ones([rows, common.FEATURES]), feeds.labels: np.zeros([rows])})


def drifting(epl, every):
    """One copy of a trained variable is changed behind EPL's back after 4 steps: (steps done, the message)."""
    from epl.session.hooks import driver_of

    epl.init(epl.Config({"communication.check_replicas_every": every}))
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    changed = tf.trainable_variables()[0]
    index, count = common.workers(epl)
    done = 0
    with common.session() as sess:
        common.initialize(sess)
        try:
            for step in range(8):
                if step == 4 and index == count - 1:
                    driver_of(sess)._versions.run_targets((changed.initializer.name,))
                sess.run(train, feeds.of(step))
                done += 1
        except epl.errors.WorkerError as error:
            return done, str(error)
    return done, ""
