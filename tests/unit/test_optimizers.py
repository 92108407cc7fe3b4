"""LAMB and LARS step by step against NumPy, and LARS against TensorFlow's own where there is one."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.optimizers import LambOptimizer, LarsOptimizer
from tests.helpers.references import Lamb, Lars

STEPS = 20
SHAPES = {"net/kernel": (4, 3), "net/bias": (3,), "table": (6, 2), "zeros": (2,)}


def initial(name):
    return np.zeros(SHAPES[name]) if name == "zeros" else np.random.RandomState(len(name)).normal(size=SHAPES[name])


def gradient(name, step):
    return np.random.RandomState(100 * len(name) + step).normal(size=SHAPES[name]) * (step != 3)


def trained(make, resource, sparse=False):
    """The variables after each step of plain TensorFlow, in float64."""
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource):
        variables = {n: tf.get_variable(n, initializer=tf.constant(initial(n))) for n in SHAPES}
        gradients = {n: tf.placeholder(tf.float64, SHAPES[n]) for n in SHAPES}
        given = dict(gradients)
        if sparse:
            whole = gradients["table"]
            # Row 1 twice: its gradients add up.
            parts = tf.concat([whole[:1], 0.25 * whole[1:2], whole[2:], 0.75 * whole[1:2]], 0)
            given["table"] = tf.IndexedSlices(parts, [0, 1, 2, 3, 4, 5, 1], SHAPES["table"])
        train = make().apply_gradients([(given[n], variables[n]) for n in SHAPES])
        history = []
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for step in range(STEPS):
                session.run(train, {gradients[n]: gradient(n, step) for n in SHAPES})
                history.append(session.run(variables))
        return history


def simulated(make, excluded, **numbers):
    """The same by NumPy."""
    optimizers = {n: make(initial(n), excluded=n in excluded, **numbers) for n in SHAPES}
    return [{n: each.step(gradient(n, step)) for n, each in optimizers.items()} for step in range(STEPS)]


def assert_same(got, want):
    assert len(got) == len(want) == STEPS
    for one, other in zip(got, want):
        for name in SHAPES:
            # Hyperparameters are float32 numbers.
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_lamb(resource, sparse):
    got = trained(
        lambda: LambOptimizer(0.05, 0.8, 0.95, 1e-4, 0.1, exclude_from_weight_decay=["bias$"]), resource, sparse
    )
    assert_same(got, simulated(Lamb, ["net/bias"], rate=0.05, beta1=0.8, beta2=0.95, epsilon=1e-4, decay=0.1))


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_lars(resource, sparse):
    got = trained(lambda: LarsOptimizer(0.5, 0.8, 0.1, 0.01, exclude_from_weight_decay=["bias$"]), resource, sparse)
    assert_same(got, simulated(Lars, ["net/bias"], rate=0.5, momentum=0.8, coeff=0.1, decay=0.01))


@pytest.mark.skipif(tf_compat.line() != "tf1", reason="TensorFlow 2 has no tf.contrib")
def test_lars_is_that_of_contrib():
    from tensorflow.contrib.opt import LARSOptimizer

    got = trained(lambda: LarsOptimizer(0.5, 0.8, 0.1, 0.01), True)
    assert_same(got, trained(lambda: LARSOptimizer(0.5, 0.8, 0.01, 0.1), True))


def test_learning_rates_may_be_tensors_or_functions():
    want = trained(lambda: LambOptimizer(0.05), True)
    assert_same(trained(lambda: LambOptimizer(tf.constant(0.05)), True), want)
    assert_same(trained(lambda: LambOptimizer(lambda: 0.05), True), want)


def test_patterns_are_a_list():
    with pytest.raises(ValueError, match=r"a list of regular expressions, such as \['bias\$'\]"):
        LambOptimizer(exclude_from_weight_decay=[3])
