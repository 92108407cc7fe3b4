"""Variables that training keeps beside what it trains: averages, extremes, counts, of all data that it has seen."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 4


def train(epl, config=None):
    """The values of the variables after each step."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)

    def held(name, value=0.0, local=False):
        key = tf.GraphKeys.LOCAL_VARIABLES if local else tf.GraphKeys.GLOBAL_VARIABLES
        return tf.get_variable(name, [], initializer=tf.constant_initializer(value), trainable=False, collections=[key])

    average, combined = held("average", local=True), held("combined", local=True)
    largest, smallest, best = held("largest", -100.0), held("smallest", 100.0), held("best", 100.0)
    seen, total, rooted = held("seen"), held("total"), held("rooted")
    gradients = tf.tuple(tf.gradients(loss, tf.trainable_variables()))
    with tf.control_dependencies(gradients):
        changes = [
            tf.assign_sub(average, (average - loss) * 0.1),
            tf.assign(combined, 0.9 * combined + 0.1 * loss),
            tf.assign(largest, tf.maximum(largest, tf.reduce_max(feeds.x))),
            tf.assign(smallest, tf.minimum(smallest, tf.reduce_min(feeds.x))),
            tf.assign(best, tf.minimum(best, loss)),
            tf.assign_add(seen, tf.cast(tf.shape(feeds.x)[0], tf.float32)),
            tf.assign(total, total + tf.reduce_sum(feeds.x)),
            tf.assign(rooted, tf.sqrt(tf.reduce_mean(tf.square(feeds.x)))),
        ]
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, tf.trainable_variables()))
    variables = {v.op.name: v for v in (average, combined, largest, smallest, best, seen, total, rooted)}
    states = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            sess.run([train_op] + changes, feeds.of(step))
            states.append(sess.run(variables))
    return states
