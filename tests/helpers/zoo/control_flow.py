"""Models with loops, conditions, functions and Python calls."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.zoo import model as m


def lstm(inputs):
    """dynamic_rnn over sequences of different length."""
    cell = tf.nn.rnn_cell.LSTMCell(5, initializer=m.initial(1))
    _, state = tf.nn.dynamic_rnn(cell, inputs["x"], sequence_length=inputs["length"], dtype=tf.float32)
    return m.classification(m.dense(state.h, 3, "logits", seed=2), inputs["labels"])


def while_array(inputs):
    """A while loop that reads and writes TensorArrays, with a trainable matrix inside, and a scan after it."""
    x = tf.transpose(inputs["x"], [1, 0, 2])
    matrix = m.variable("matrix", [4, 4], seed=1)
    length = tf.shape(x)[0]
    rows = tf.TensorArray(tf.float32, size=length).unstack(x)
    outputs = tf.TensorArray(tf.float32, size=length)

    def body(step, state, written):
        state = tf.tanh(tf.matmul(state, matrix) + rows.read(step))
        return step + 1, state, written.write(step, state)

    _, _, outputs = tf.while_loop(lambda step, *_: step < length, body, (0, tf.zeros_like(x[0]), outputs))
    stacked = outputs.stack()
    stacked.set_shape([None, None, 4])
    sums = tf.scan(lambda total, row: 0.5 * total + row, stacked)
    return m.classification(m.dense(sums[-1], 3, "logits", seed=2), inputs["labels"])


def condition(inputs):
    """A tf.cond that changes sides from step to step, with a variable on each side."""
    x = inputs["x"]
    even = tf.equal(m.train_step() % 2, 0)
    left = m.variable("left", [6, 4], seed=1)
    right = m.variable("right", [6, 4], seed=2)
    hidden = tf.cond(even, lambda: tf.tanh(tf.matmul(x, left)), lambda: tf.sigmoid(tf.matmul(x, right)))
    hidden.set_shape([None, 4])
    return m.classification(m.dense(hidden, 3, "logits", seed=3), inputs["labels"])


def functional_control_flow(inputs):
    """While and If as functional ops: control flow v2 over resource variables."""
    x = inputs["x"]
    even = tf.equal(m.train_step() % 2, 0)
    with tf.variable_scope("v2", use_resource=True):
        matrix = m.variable("matrix", [6, 6], seed=1)
        other = m.variable("other", [6, 6], seed=2)

        def body(step, state):
            return step + 1, tf.tanh(tf.matmul(state, matrix))

        _, hidden = tf.while_loop(lambda step, _: step < 3, body, (0, x), maximum_iterations=3)
        hidden = tf.cond(even, lambda: tf.matmul(hidden, other), lambda: hidden * 2.0)
        hidden.set_shape([None, 6])
        return m.classification(m.dense(hidden, 3, "logits", seed=3), inputs["labels"])


def functions(inputs):
    """tf.function and a custom gradient, over resource variables."""
    with tf.variable_scope("functions", use_resource=True):
        weights = m.variable("weights", [6, 6], seed=1)

        @tf.function
        def block(x):
            return tf.tanh(tf.matmul(x, weights)) + x

        @tf.custom_gradient
        def halve_gradient(x):
            return tf.identity(x), lambda dy: 0.5 * dy

        hidden = halve_gradient(block(block(inputs["x"])))
        hidden.set_shape([None, 6])
        return m.classification(m.dense(hidden, 3, "logits", seed=2), inputs["labels"])


def defun(inputs):
    """A Defun called from several places."""
    from tensorflow.python.framework import function  # the only spelling of Defun; a user's choice, not ours

    @function.Defun(tf.float32, tf.float32)
    def swish_matmul(x, weights):
        product = tf.matmul(x, weights)
        return product * tf.sigmoid(product)

    hidden = swish_matmul(inputs["x"], m.variable("first", [6, 6], seed=1))
    hidden.set_shape([None, 6])
    hidden = swish_matmul(hidden, m.variable("second", [6, 6], seed=2))
    hidden.set_shape([None, 6])
    return m.classification(m.dense(hidden, 3, "logits", seed=3), inputs["labels"])


def py_func(inputs):
    """Python code in the graph, on the inputs."""
    x = tf.py_func(lambda rows: np.sin(rows).astype(np.float32), [inputs["x"]], tf.float32)
    x.set_shape([None, 6])
    hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    return m.classification(m.dense(hidden, 3, "logits", seed=3), inputs["labels"])


MODELS = [
    m.Model("lstm", lstm, m.sequences(5, 4, 3), m.ALL_OPTIMIZERS),
    m.Model("while_array", while_array, m.sequences(4, 4, 3), m.ALL_OPTIMIZERS),
    m.Model("condition", condition, m.vectors(6, 3), ("momentum",)),
    m.Model("functional_control_flow", functional_control_flow, m.vectors(6, 3), ("momentum",), v2_control_flow=True),
    m.Model("functions", functions, m.vectors(6, 3), ("adam",)),
    m.Model("defun", defun, m.vectors(6, 3), ("sgd",)),
    m.Model("py_func", py_func, m.vectors(6, 3), ("momentum",)),
]
