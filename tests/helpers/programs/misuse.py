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


def feed_rows(epl, rows):
    """Feeds this worker `rows` rows, which two devices are to share, then a batch that fits."""
    common.init(epl)
    feeds = common.Feeds(epl)
    with epl.replicate(device_count=2):
        loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, {feeds.x: np.ones([rows, common.FEATURES]), feeds.labels: np.zeros([rows])})
