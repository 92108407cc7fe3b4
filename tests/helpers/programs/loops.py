"""Models with loops of control flow v1 between what devices exchange."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.control_flow import control_flow
from tests.helpers.programs import common
from tests.helpers.programs.split import dividing_scope
from tests.helpers.zoo import model as m

_STEPS, _WORDS, _WIDTH = 5, 37, 8


def _recurrent(x):
    with control_flow("v1"), tf.variable_scope("cell", initializer=m.initial(3)):
        return tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(_WIDTH), x, dtype=x.dtype)[1].h


def _trained(feeds, loss, minimize):
    step = tf.train.get_or_create_global_step()
    with control_flow("v1"), tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        update = minimize(loss, global_step=step)
    losses, states = [], []
    with common.session() as session:
        common.initialize(session)
        for number in range(3):
            losses.append(session.run([loss, update], feeds(np.random.RandomState(number)))[0])
            # Moving averages change with each micro-batch.
            states.append(session.run({variable.op.name: variable for variable in tf.trainable_variables()}))
    return {"losses": losses, "states": states}


def text_classifier(epl, device_count):
    """Words, an LSTM and classes, all of which devices divide."""
    common.init(epl)
    with dividing_scope(epl, device_count), tf.variable_scope("model", initializer=m.initial(1)):
        words, labels = tf.placeholder(tf.int64, [None, _STEPS]), tf.placeholder(tf.int64, [None])
        table = tf.get_variable("words", [_WORDS, _WIDTH])
        logits = m.dense(_recurrent(tf.nn.embedding_lookup(table, words)), 11, "classes", seed=5)
        loss = m.classification(logits, labels)

    def feeds(drawn):
        return {words: drawn.randint(0, _WORDS, [8, _STEPS]), labels: drawn.randint(0, 11, [8])}

    return _trained(feeds, loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize)


def normalised(epl, micro_batches=1, **config):
    """Batches are normalised before an LSTM and behind it; the optimizer waits for both, its part of the loop too.

    Args:
      micro_batches: that are normalised one by one, each of the rows of two workers.
      config: with "__" for the dot.
    """
    config["pipeline__num_micro_batch"] = micro_batches
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})

    def loss_of(x):
        with tf.variable_scope("model", initializer=m.initial(1), reuse=tf.AUTO_REUSE):
            h = tf.layers.dense(tf.reshape(x, [-1, _WIDTH]), _WIDTH, tf.nn.relu, name="first")
            h = tf.reshape(tf.layers.batch_normalization(h, training=True, name="one"), [-1, _STEPS, _WIDTH])
            h = tf.layers.dense(_recurrent(h), 6, use_bias=False, name="last")
            h = tf.layers.batch_normalization(h, training=True, name="other")
            return tf.reduce_mean(tf.square(h - tf.range(6, dtype=tf.float64) * h - 1.0))

    # In float64, as gradients behind a normalisation are small differences.
    xs = [tf.placeholder(tf.float64, [None, _STEPS, _WIDTH]) for _ in range(1 if epl else micro_batches)]
    loss = common.mean_everywhere(epl, tf.add_n([loss_of(x) for x in xs]) / len(xs))

    def feeds(drawn):
        rows = drawn.rand(2, micro_batches, 8 // micro_batches, _STEPS, _WIDTH)
        if epl:
            return {xs[0]: common.share(epl, rows.reshape((16, _STEPS, _WIDTH)))}
        return {x: rows[:, number].reshape((-1, _STEPS, _WIDTH)) for number, x in enumerate(xs)}

    return _trained(feeds, loss, tf.train.GradientDescentOptimizer(0.05).minimize)
