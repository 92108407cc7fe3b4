"""A training from a data set whose steps are timed."""

import logging

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def train(epl, config, steps):
    """(losses, lines that were logged about the input). All batches are the same, as copies take them in no order."""
    common.init(epl, config)
    rows = tf.data.Dataset.from_tensor_slices(common.batch(0)).map(
        lambda x, label: (x * 2.0, label), num_parallel_calls=2
    )
    x, labels = tf.data.make_one_shot_iterator(rows.batch(common.BATCH).repeat().prefetch(2)).get_next()
    loss = common.classifier(x, labels)
    update = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    losses, lines = [], []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("epl").addHandler(handler)
    try:
        with common.session() as sess:
            common.initialize(sess)
            for _ in range(steps):
                losses.append(sess.run([loss, update])[0])
    finally:
        logging.getLogger("epl").removeHandler(handler)
    return losses, [each for each in lines if each.startswith("io.stats")]
