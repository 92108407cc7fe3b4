"""Models in 16 bits of which parts are divided over devices."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import CLASSES, OPTIMIZERS, dividing_scope, history_of, share_of_copy


def mixed(epl, device_count, optimizer, dtype, bad=(), resource=False, fixed=False, steps=4, **config):
    """A classifier in 16 bits of which one part of the bias has an infinite gradient in `bad` steps, which the plain
    process leaves out; `fixed`: it is replicated, and devices divide a batch of fixed size. `config`: with "__" for
    the dot.

    Returns:
      (the history, what the loss scale is after each step; None without one).
    """
    scale = {"amp.init_loss_scale": 1024.0, "amp.incr_every_n_steps": 2} if dtype == "float16" else {}
    scale.update({key.replace("__", "."): value for key, value in config.items()})
    common.init(epl, dict({"amp.level": "O1", "amp.dtype": dtype}, **scale))
    tf.set_random_seed(13)
    x = tf.placeholder(tf.float32, [common.BATCH if fixed else None, common.FEATURES])
    labels, weights = tf.placeholder(tf.int64, [common.BATCH if fixed else None]), tf.placeholder(tf.float32, [CLASSES])
    with tf.variable_scope("model", use_resource=resource), dividing_scope(
        epl, device_count, "replicate" if fixed else "split"
    ):
        hidden = tf.layers.dense(x, 8, activation=tf.nn.tanh, name="hidden")
        bias = tf.get_variable("bias", [CLASSES], initializer=tf.ones_initializer())
        logits = tf.matmul(hidden, tf.get_variable("kernel", [8, CLASSES])) + bias
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) + tf.reduce_sum(weights * bias)
    step = OPTIMIZERS[optimizer]().minimize(loss, tf.train.get_or_create_global_step())
    feeds, scales = [], []
    for number in range(steps):
        drawn = np.random.RandomState(number).randint(0, CLASSES, common.BATCH)
        infinite = [0.0] * (CLASSES - 1) + [np.inf if number in bad else 0.0]
        rows = [share_of_copy(epl, device_count, each) for each in (common.batch(number)[0], drawn)]
        feeds.append(dict(zip((x, labels, weights), rows + [infinite])))
    feeds = [fed for number, fed in enumerate(feeds) if epl or number not in bad]

    def note_scale(session):
        from tests.helpers.programs import scale_of  # loads EPL, which must not come into the plain process

        scales.append(scale_of.read(session))

    return history_of([], step, feeds, after=note_scale if epl else None), scales
