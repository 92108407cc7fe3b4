"""Clipping that owners of gradients make themselves (zero.level), and what lets them have whole gradients for it."""

import pytest
import tensorflow.compat.v1 as tf

from epl.plan.zero.zero_sums import owned_sums
from tests.helpers.planning import batch, capture, compiled, of_op, variable

CONFIG = {"zero__level": "v1", "communication__clip_after_allreduce": True}


def trained(clip, optimizer=None, take=None):
    with capture() as graph:
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(tf.matmul(batch(), variable("w"))), variable("v"))))
        optimizer = optimizer or tf.train.AdamOptimizer(0.1)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        clipped = clip(gradients)
        optimizer.apply_gradients(zip(clipped, variables))
        if take is not None:
            take(clipped, loss)
    return graph


def by_global_norm(gradients):
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def by_hand(gradients):
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    return [g / tf.maximum(norm, 1.0) for g in gradients]


@pytest.mark.parametrize(
    "clip, sums",
    [
        (by_global_norm, 1),
        (by_hand, 1),
        (lambda gradients: by_hand(by_global_norm(gradients)), 2),
        (lambda gradients: [tf.clip_by_norm(g, 0.1) for g in gradients], 0),
        (lambda gradients: [gradients[0], tf.clip_by_value(gradients[1], -0.1, 0.1)], 0),
    ],
)
def test_gradients_come_to_their_owners_alone(clip, sums):
    """One number of each worker travels for each sum of all gradients."""
    for index in range(2):
        worker = compiled(trained(clip), 2, 1, index, **CONFIG)
        assert [sorted(owner for _, owner in each.parts) for each in owned_sums(worker.plan)] == [[0, 1]] * sums
        assert len(of_op(worker.graph, "EplReduceScatter")) == 1 and len(of_op(worker.graph, "EplAllReduce")) == sums


@pytest.mark.parametrize(
    "clip, take",
    [
        (lambda g: [g[0] * tf.reduce_max([tf.reduce_max(g[0]), tf.reduce_max(g[1])]), g[1]], None),
        (lambda g: [tf.tanh(g[1]), tf.tanh(g[0])], None),
        (lambda g: [g[0] + g[1], g[1]], None),
        (by_global_norm, lambda clipped, loss: tf.summary.histogram("clipped", clipped[0])),
    ],
)
def test_gradients_are_whole_where_they_come_together_otherwise(clip, take):
    worker = compiled(trained(clip, take=take), 2, 1, 0, **CONFIG)
    assert not owned_sums(worker.plan) and len(of_op(worker.graph, "EplReduceScatter")) == 0
    assert len(of_op(worker.graph, "EplAllReduce")) >= 1


def test_the_sum_of_what_nobody_owns_is_that_of_the_first_copy():
    """An optimizer without slots: gradients are whole, and the norm is not taken once for each copy."""
    worker = compiled(trained(by_global_norm, tf.train.GradientDescentOptimizer(0.1)), 2, 1, 1, **CONFIG)
    (norm,) = owned_sums(worker.plan)
    assert [owner for _, owner in norm.parts] == [0, 0] and not norm.parts_of(1)
    assert not of_op(worker.graph, "EplReduceScatter")
