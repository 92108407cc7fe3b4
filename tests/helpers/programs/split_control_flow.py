"""Loops and branches that take what epl.split divides."""

import tensorflow.compat.v1 as tf

from tests.helpers.control_flow import control_flow
from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope, history_of


def branches_and_loops(epl, device_count, optimizer, version="v1", resource=False, rows=8, **config):
    """What every step gives, and all variables after it, of a model in which a branch takes what is divided by columns,
    a loop what the devices have partial sums of, and another loop, with a branch in it, what is divided by rows."""
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(11)
    x = tf.placeholder(tf.float32, [rows, common.FEATURES])
    with control_flow(version), tf.variable_scope("model", use_resource=resource):
        with dividing_scope(epl, device_count):
            hidden = tf.tanh(tf.layers.dense(x, 6, name="first"))
            hidden = tf.cond(tf.reduce_sum(x) > 0.0, lambda: 2.0 * hidden, lambda: tf.sin(hidden) - 0.1)
            hidden = tf.ensure_shape(hidden, [rows, 6])
            wide = tf.tanh(tf.layers.dense(hidden, 9, name="wide"))
            summed = tf.matmul(wide, tf.get_variable("narrow", [9, 4]))
            again = tf.get_variable("again", [4, 4])
            _, state = tf.while_loop(
                lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(0.3 * tf.matmul(s, again) + 0.5 * s)), [0, summed]
            )
            logits = tf.layers.dense(tf.ensure_shape(state, [rows, 4]), 7, name="logits")
            _, folded = tf.while_loop(
                lambda i, s: tf.logical_and(i < 2, tf.reduce_sum(s) < 1e6),
                lambda i, s: (i + 1, tf.cond(i < 1, lambda: s + 0.1 * tf.square(logits), lambda: tf.tanh(s))),
                [0, logits],
            )
            loss = tf.reduce_mean(tf.square(tf.ensure_shape(folded, [rows, 7]) - 1.0))
        step = OPTIMIZERS[optimizer]().minimize(loss)
    feeds = [{x: common.batch(number, rows)[0] + (0.5 if number % 2 else -0.5)} for number in range(3)]
    return history_of([loss, hidden, state, folded], step, feeds)
