"""Loops of control flow v1 are run again, whole: the same numbers to the last bit, nothing kept by the first run."""

import logging
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.graph.control_flow import frames_of
from epl.passes.model.compute_again import with_copies
from epl.plan.facts.names import recomputed_name
from tests.helpers.planning import ROWS, capture, control_flow, variable
from tests.unit.test_recompute import AUTO, check, data, dense, minimize, planned

COLLECTION = {"gradient_checkpoint.type": "collection"}
STEPS = 5


def rnn(x, layer, units=8, length=None):
    cell = tf.nn.rnn_cell.BasicLSTMCell(units)
    return tf.nn.dynamic_rnn(cell, x, length, dtype=tf.float32, scope="layer_%d" % layer)[0]


def sequences(width=4):
    return tf.reshape(data(STEPS * width), [ROWS, STEPS, width])


def lstm(around=lambda layer, x: rnn(x, layer), layers=3):
    x = sequences()
    for layer in range(layers):
        x = around(layer, x)
    return tf.reduce_mean(tf.square(x))


def lstm_of_resources():
    def around(layer, x):
        with tf.variable_scope("net", use_resource=True):
            return rnn(x, layer)

    return lstm(around)


def lengths():
    """Rows end at steps of their own, so there are branches in the loops."""
    length = tf.constant([1 + row % STEPS for row in range(ROWS)])
    return lstm(lambda layer, x: rnn(x, layer, length=length))


def both_directions():
    x = sequences()
    for layer in range(2):
        cells = tf.nn.rnn_cell.BasicLSTMCell(4), tf.nn.rnn_cell.GRUCell(4)
        x = tf.concat(tf.nn.bidirectional_dynamic_rnn(*cells, x, dtype=tf.float32, scope="both_%d" % layer)[0], 2)
    return tf.reduce_mean(tf.square(rnn(x, 2)))


def one_after_the_other():
    """Nothing stands between the loops, and each takes something that does not change."""
    x, w = dense(data(), 8, 0), variable("w", [8, 8])
    for i in range(4):
        scale = tf.sin(x)
        _, x = tf.while_loop(
            lambda n, _: n < 3, lambda n, y, scale=scale: (n + 1, tf.tanh(tf.matmul(y, w)) * scale + y), [0, x]
        )
    return tf.reduce_mean(tf.square(x))


def nested():
    x = data()
    for i in range(3):
        h, w = dense(x, 8, i), variable("nested%d" % i, [8, 8])

        def inner(n, y, w=w):
            return n + 1, tf.sin(tf.matmul(y, w)) + y

        def outer(n, y, inner=inner):
            return n + 1, tf.tanh(tf.while_loop(lambda m, _: m < 2 + n, inner, [0, y])[1])

        _, x = tf.while_loop(lambda n, _: n < 3, outer, [0, h])
    return tf.reduce_mean(tf.square(x))


def branches_inside():
    x = data()
    for i in range(4):
        h, w = dense(x, 8, i), variable("inside%d" % i, [8, 8])

        def step(n, y, w=w):
            product = tf.matmul(y, w)
            return n + 1, tf.cond(tf.equal(n % 2, 0), lambda: tf.sin(product) * y, lambda: tf.cos(product) + y)

        _, x = tf.while_loop(lambda n, _: n < 4, step, [0, h])
    return tf.reduce_mean(tf.square(x))


def until_it_is_small():
    """How often the loop goes round depends on the data."""
    x = data()
    for i in range(4):
        h = dense(x, 8, i)
        x = tf.while_loop(lambda y: tf.reduce_max(y) > 0.1, lambda y: tf.sin(y) * 0.9 * tf.cos(y), [h])
    return tf.reduce_mean(tf.square(x + h))


REPEATED = [lstm, lstm_of_resources, lengths, both_directions]
REPEATED += [one_after_the_other, nested, branches_inside, until_it_is_small]


def pushes(graph):
    """dict of frame, the outermost, to the names of what pushes on stacks in it."""
    frames, found = frames_of(graph), {}
    for name in graph.find("StackPushV2".__eq__):
        found.setdefault(frames[name][0], []).append(name)
    return found


@pytest.mark.parametrize("build", REPEATED, ids=lambda build: build.__name__)
def test_the_same_to_the_last_bit(build):
    model, _, after = check(build, AUTO)
    before, now = pushes(model.graph), pushes(after)
    again = {frame for frame in before if recomputed_name(frame) in now}
    assert 2 <= len(again) < len(before)  # the last one's turn comes at once
    for frame in again:
        assert frame not in now and now[recomputed_name(frame)] == before[frame]


def kept_between(layer, x):
    x = rnn(x, layer)
    tf.add_to_collection("checkpoints", x)
    return x


def in_a_block(layer, x):
    with epl.recompute():
        return rnn(x, layer)


def pairs_in_a_block(layer, x):
    """Two layers in one, the first of which makes what the second takes once more."""
    with epl.recompute():
        return rnn(rnn(x, 2 * layer), 2 * layer + 1)


@pytest.mark.parametrize(
    "around, values, again",
    [(kept_between, COLLECTION, 3), (in_a_block, {}, 2), (pairs_in_a_block, {}, 4)],
    ids=["collection", "block", "pairs"],
)
def test_what_the_program_asks_for(around, values, again):
    model, _, after = check(lambda: lstm(around), values)
    now = pushes(after)
    assert sum(frame.startswith(recomputed_name("")) for frame in now) == again
    assert len(now) == len(pushes(model.graph))


def test_arrays_are_written_again_only_for_those_who_read_them():
    """Of two layers in a block, the first one's outputs are there again; the second one's nobody needs."""
    _, _, after = check(lambda: lstm(pairs_in_a_block, 2), {})
    writes = [after.nodes[n] for n in after.find("TensorArrayWriteV3".__eq__) if n.startswith(recomputed_name(""))]
    assert [node.name.split("/")[1] for node in writes] == ["layer_0"]
    gradients = [after.nodes[n] for n in after.find("TensorArrayGradV3".__eq__)]
    assert gradients and not any(text.startswith(recomputed_name("")) for n in gradients for text in n.input[:1])


def of_drawn_numbers():
    def step(n, y):
        return n + 1, tf.tanh(y) + tf.random_normal([ROWS, 8], seed=3)

    return step


def of_python():
    def step(n, y):
        return n + 1, tf.tanh(y) + tf.reshape(tf.py_func(lambda z: np.cos(z), [y], tf.float32), [ROWS, 8])

    return step


def of_a_counter():
    counter = tf.get_variable("counter", [], tf.float32, tf.zeros_initializer(), trainable=False)

    def step(n, y):
        return n + 1, tf.tanh(y) + tf.assign_add(counter, 1.0)

    return step


@pytest.mark.parametrize(
    "make, why",
    [
        (of_drawn_numbers, "RandomStandardNormal.*draws random numbers"),
        (of_python, "PyFunc.*has state or effects"),
        (of_a_counter, "takes a variable itself|has state or effects"),
    ],
)
def test_what_cannot_be_run_again(make, why, caplog):
    def build():
        step, x = make(), data()
        for i in range(4):
            x = dense(x, 8, i)
            if i == 1:
                _, x = tf.while_loop(lambda n, _: n < 3, step, [0, x])
        return tf.reduce_mean(tf.square(x))

    with control_flow("v1"), capture(seed=5) as graph, caplog.at_level(logging.WARNING, "epl"):
        minimize(build())
        _, plan = planned(graph, AUTO)
    assert not any(group.inside for group in plan.groups)
    (told,) = [r.getMessage() for r in caplog.records if "cannot be run again" in r.getMessage()]
    assert re.search("the loop 'while' cannot be run again: .*(%s)" % why, told)


def test_a_loop_in_a_branch_keeps_what_it_needs():
    def build():
        x = data()
        for i in range(3):
            h = dense(x, 8, i)
            ways = [lambda h=h: tf.while_loop(lambda y: tf.reduce_max(y) > 0.5, lambda y: 0.9 * tf.sin(y), [h])]
            x = tf.cond(tf.reduce_sum(h) > 0, *ways, lambda h=h: tf.cos(h))
        return tf.reduce_mean(tf.square(x))

    model, plan, _ = check(build, AUTO)
    assert pushes(model.graph) and not any(group.inside for group in plan.groups)


def test_the_peak_falls():
    """Three of four layers are run again, one at a time: each when the gradients of the next are there.

    So only one layer's stacks are full at a time.
    """
    with control_flow("v1"), capture() as graph:
        x = tf.reshape(data(128), [ROWS, 16, 8])
        for layer in range(4):
            x = rnn(x, layer, units=32)
        minimize(tf.reduce_mean(tf.square(x)), "sgd")
        model, plan = planned(graph, AUTO)
    after = with_copies(model.graph, plan)
    frames, before, now = frames_of(after), pushes(model.graph), pushes(after)
    first_runs = ["layer_%d/while/while_context" % layer for layer in range(4)]
    assert sorted(before) == first_runs
    assert sorted(now) == sorted([recomputed_name(frame) for frame in first_runs[:3]] + first_runs[3:])
    for layer in range(3):
        earlier = {
            frames[name][0] for name in after.ancestors(now[recomputed_name(first_runs[layer])]) if name in frames
        }
        assert {"gradients/layer_%d/while/while_context" % later for later in range(layer + 1, 4)} <= earlier
        assert not any(recomputed_name(frame) in earlier for frame in first_runs[:layer])
