"""The pass that lets readers of a counter come before its next value."""

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import planning
from tests.helpers.planning import capture, rewritten, variable


def counted(resource, build):
    """A training graph whose rate depends on a count that `build` changes; the rewritten graph and the two nodes."""
    with capture() as graph:
        step = tf.get_variable("step", [], initializer=tf.zeros_initializer(), use_resource=resource, trainable=False)
        rate = tf.multiply(step, 2.0, name="rate")
        loss = tf.reduce_mean(tf.matmul(planning.batch(), variable("w")))
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss)
        count = build(step, train_op)
        tf.multiply(step, 3.0, name="not_for_training")
    return rewritten(graph, 1, 2)[2], count.op.name if hasattr(count, "op") else count.name


def waits(after, node):
    return [text[1:] for text in after.nodes[node].input if text[0] == "^"]


@pytest.mark.parametrize("resource", [False, True])
def test_the_change_waits_for_what_training_reads(resource):
    after, count = counted(resource, lambda step, train_op: tf.group(step.assign(step + 1.0)).control_inputs[0])
    assert "rate" in waits(after, count) and "not_for_training" not in waits(after, count)


def test_only_what_changes_numbers_waits_for_readers():
    """Who reads all of a vector may read it later; see docs/concepts.md."""
    with capture() as graph:
        seen = tf.get_variable("seen", [3], initializer=tf.zeros_initializer(), trainable=False)
        rate = 1.0 / (1.0 + tf.reduce_sum(seen, name="read"))
        loss = tf.reduce_mean(tf.matmul(planning.batch(), variable("w")))
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss)
        change = seen.assign(seen + 1.0)
        tf.group(train_op, change)
    assert waits(rewritten(graph, 1, 2)[2], change.op.name) == []


def test_a_change_after_the_optimizer_stays_as_it_is():
    def build(step, train_op):
        with tf.control_dependencies([train_op]):
            return step.assign_add(1.0)

    after, count = counted(False, build)
    assert "rate" not in waits(after, count)
