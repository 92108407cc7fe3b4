"""A model of loops of control flow v1, for what trains models of several stages (pipelines.py)."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.control_flow import control_flow
from tests.helpers.zoo import model as m

_STEPS, _WIDTH = 5, 4


def recurrent(scope, stages, layers=4):
    """Layers of `tf.nn.dynamic_rnn`, whose rows end at steps of their own, and a dense layer."""
    x = start = tf.placeholder(tf.float32, [None, _STEPS, _WIDTH], "x")
    labels = tf.placeholder(tf.int64, [None], "labels")
    for stage, part in enumerate(np.array_split(range(layers), stages)):
        with scope(stage), control_flow("v1"):
            for layer in part:
                with tf.variable_scope("layer_%d" % layer, initializer=m.initial(7 + layer)):
                    x, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(6), x, labels + 2, dtype=tf.float32)
            if stage == stages - 1:
                logits = m.dense(tf.reduce_mean(x, 1), 3, "logits", seed=5)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"x": start, "labels": labels}
