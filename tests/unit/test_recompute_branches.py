"""Branches of control flow v1 in what is computed again: the same numbers to the last bit, whichever way they go."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.plan.facts.names import PREFIX, recomputed_name
from tests.helpers.planning import ROWS, variable
from tests.unit.test_recompute import AUTO, check, data, dense

BLOCKS = 4


def blocks(inside):
    """Dense layers, each followed by branches that `inside` makes of the layer, its number and a predicate."""
    x = data()
    for i in range(BLOCKS):
        with epl.recompute():
            h = dense(x, 8, i)
            x = inside(h, i, tf.reduce_sum(h) > 0)
    return tf.reduce_mean(tf.square(dense(x, 4, BLOCKS)))


def a_constant(h, i, positive):
    """One way depends on nothing."""
    return h + tf.cond(positive, lambda: tf.sin(h) * h, lambda: tf.fill([ROWS, 8], 0.5))


def dropout(h, i, positive):
    return tf.tanh(tf.cond(positive, lambda: tf.nn.dropout(tf.sin(h), rate=0.3, seed=i), lambda: tf.cos(h) * h))


def one_in_the_other(h, i, positive):
    def first():
        return tf.cond(tf.reduce_max(h) > 0.9, lambda: tf.exp(h) * h, lambda: tf.sin(h) * h)

    return tf.tanh(tf.cond(positive, first, lambda: tf.cos(h) * h))


def several_ways(h, i, positive):
    most = tf.reduce_max(h)
    ways = [(most > 0.95, lambda: tf.sin(h) * h), (most > 0.8, lambda: tf.exp(h) * h)]
    return tf.tanh(tf.case(ways, default=lambda: tf.cos(h) * h))


def averages(h, i, positive):
    """A moving average moves in one way alone."""
    average = tf.get_variable("average%d" % i, [8], tf.float32, tf.zeros_initializer(), trainable=False)

    def moved():
        with tf.control_dependencies([tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(h, 0))]):
            return tf.sin(h) * h

    return tf.tanh(tf.cond(positive, moved, lambda: tf.cos(h) * h))


def layers(h, i, positive, resource=False):
    """Each gradient needs what is made of the other one's variable; of the last block nothing is ever computed."""
    first, second = (variable("w%d_%d" % (i, j), [8, 8], use_resource=resource) for j in range(2))
    positive = tf.logical_and(positive, i != BLOCKS - 2)
    return tf.tanh(tf.cond(positive, lambda: tf.matmul(h, first) * tf.exp(-tf.matmul(h, second)), lambda: tf.sin(h)))


def layers_of_resources(h, i, positive):
    return layers(h, i, positive, resource=True)


WAYS = [a_constant, dropout, one_in_the_other, several_ways, averages, layers, layers_of_resources]


@pytest.mark.parametrize("inside", WAYS, ids=lambda inside: inside.__name__)
def test_the_same_to_the_last_bit_in_blocks(inside):
    model, plan, after = check(lambda: blocks(inside), {})
    again = {name for group in plan.groups for name in group.nodes}
    assert {"cond/Switch", "case/cond/Switch"} & again or any("/Sin" in name for name in again)
    for op in ("Assign", "RandomUniform"):
        assert len(model.graph.find(op.__eq__)) == len(after.find(op.__eq__))


def test_by_the_plan_of_epl():
    check(lambda: blocks(one_in_the_other), AUTO, "sgd")


def test_changes_wait_for_what_reads_in_a_branch_and_come_all_the_same():
    """The copies in a branch that is not taken do not run, and whatever waits for them would not, either."""
    _, plan, after = check(lambda: blocks(layers), {}, "sgd")
    waiting = [n for n in after.find("ControlTrigger".__eq__) if n.startswith("%s_recompute/before/" % PREFIX)]
    assert waiting and all(group.perhaps for group in plan.groups if any("MatMul" in n for n in group.inside))
    for name in waiting:
        readers = [text[1:] for text in after.nodes[name].input]
        assert readers and all(text.startswith(recomputed_name("cond")) for text in readers)
        writes = [c for c, _ in after.consumers[name]]
        assert writes and all(after.nodes[write].op == "ApplyGradientDescent" for write in writes)
