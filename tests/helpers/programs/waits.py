"""A training from a data set whose steps are timed."""

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
    losses = []
    with common.messages() as said, common.session() as sess:
        common.initialize(sess)
        for _ in range(steps):
            losses.append(sess.run([loss, update])[0])
    return losses, [each for each in said if each.startswith("io.stats")]
