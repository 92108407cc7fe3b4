"""Which first values all workers make alike."""

import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.plan.facts.constant_values import constant_digests


def values_of(build, fed=()):
    """{name of a variable: digest} of the variables that `build()` makes."""
    with tf.Graph().as_default() as graph:
        build()
        initial = {v.initializer.name: v.op.name for v in tf.global_variables()}
    found = constant_digests(make_program(graph).graph, initial, frozenset(fed))
    return {initial[write]: digest for write, digest in found.items()}


def variable(name, value):
    return tf.Variable(value, name=name, use_resource=False)


def test_constants_are_alike_and_random_numbers_are_not():
    def build():
        weights = variable("weights", tf.random_normal([3]))
        variable("nothing", tf.zeros([2000, 3]))
        variable("unit", tf.ones([4]))
        variable("three", 3.0)
        variable("copy", weights.initialized_value())
        variable("given", tf.placeholder(tf.float32, [2]))
        variable("large", list(range(100000)))

    assert sorted(values_of(build)) == ["nothing", "three", "unit"]


def test_resource_variables():
    assert list(values_of(lambda: tf.Variable(tf.zeros([3]), name="v", use_resource=True))) == ["v"]


def test_slots_of_adam():
    def build():
        weights = variable("weights", tf.random_normal([3]))
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(weights * weights))

    assert sorted(values_of(build)) == ["beta1_power", "beta2_power", "weights/Adam", "weights/Adam_1"]


def test_digest_tells_values_apart():
    def build(value, shape):
        return lambda: variable("v", tf.fill(shape, value))

    first = values_of(build(1.0, [2]))
    assert values_of(build(1.0, [2])) == first
    assert values_of(build(2.0, [2])) != first and values_of(build(1.0, [3])) != first


def test_what_is_fed_is_not_alike():
    assert values_of(lambda: variable("v", tf.constant(1.0, name="c")), fed=["c"]) == {}
