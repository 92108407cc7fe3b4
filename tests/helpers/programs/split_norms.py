"""Layers whose weights' norms are reduced over devices, and known before any gradient."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope, history_of


def layers(epl, device_count, optimizer):
    """What every step gives, and all variables after it."""
    common.init(epl)
    tf.set_random_seed(3)
    x = tf.placeholder(tf.float32, [None, common.FEATURES])
    with dividing_scope(epl, device_count):
        hidden = tf.tanh(tf.matmul(x, tf.get_variable("first", [common.FEATURES, 6], use_resource=True)))
        out = tf.matmul(hidden, tf.get_variable("second", [6, 3], use_resource=False))
        loss = tf.reduce_mean(tf.square(out - 1.0))
    step = OPTIMIZERS[optimizer]().minimize(loss)
    feeds = [{x: np.random.RandomState(number).rand(4, common.FEATURES)} for number in range(3)]
    return history_of([loss], step, feeds)
