"""A training step that needs more memory than any machine has."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

ROWS = 24


def run(epl):
    """The type and the message of the error that the step ends with; None where it ends well."""
    common.init(epl)
    x = tf.placeholder(tf.float32, [None, 4])
    hidden = m.dense(x, 4, "hidden", seed=1)
    wide = tf.fill([tf.shape(x)[0] * (1 << 20), 1 << 25], 1.0)
    loss = tf.reduce_mean(tf.square(hidden)) * tf.reduce_mean(wide)
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss)
    with tf.Session(config=common.threads()) as sess:
        sess.run(tf.global_variables_initializer())
        try:
            sess.run(train_op, {x: np.ones([ROWS, 4], np.float32)})
        except tf.errors.OpError as error:
            return {"type": type(error).__name__, "message": error.message}
    return None
