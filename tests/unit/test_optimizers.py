"""LAMB and LARS step by step against NumPy, and LARS against TensorFlow's own where there is one.

Their updates are made by kernels of EPL, or by TensorFlow's operations; each test says by which.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.graph import tags
from epl.optimizers import LambOptimizer, LarsOptimizer, fused_updates
from tests.helpers.checks import pairs
from tests.helpers.references import Lamb, Lars

pytestmark = pytest.mark.either_line

STEPS = 20
SHAPES = {"net/kernel": (4, 3), "net/bias": (3,), "table": (6, 2), "zeros": (2,)}


def initial(name):
    return np.zeros(SHAPES[name]) if name == "zeros" else np.random.RandomState(len(name)).normal(size=SHAPES[name])


def gradient(name, step):
    return np.random.RandomState(100 * len(name) + step).normal(size=SHAPES[name]) * (step != 3)


@pytest.fixture
def composed(monkeypatch):
    """What is built is not told to the native part."""
    monkeypatch.setattr(fused_updates, "mark", lambda *what: None)


def kernels(session, fetches, feeds=None):
    """The types of EPL's operations that run."""
    options, found = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    session.run(fetches, feeds, options, found)
    labels = [n.timeline_label for device in found.step_stats.dev_stats for n in device.node_stats]
    return {label.split(" = ")[1].split("(")[0] for label in labels if " = Epl" in label}


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


def simulated(make, excluded, *given, **numbers):
    """The same by NumPy."""
    optimizers = {n: make(initial(n), *given, excluded=n in excluded, **numbers) for n in SHAPES}
    return [{n: each.step(gradient(n, step)) for n, each in optimizers.items()} for step in range(STEPS)]


def assert_same(got, want):
    assert len(got) == len(want) == STEPS
    for one, other in zip(got, want):
        for name in SHAPES:
            # Hyperparameters are float32 numbers.
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-7)


def test_kernels_and_operations_of_tensorflow_make_the_same_updates(composed):
    make = lambda: LambOptimizer(0.05, 0.8, 0.95, 1e-4, 0.1, exclude_from_weight_decay=["bias$"])  # noqa: E731
    assert_same(trained(make, True), simulated(Lamb, ["net/bias"], 0.05, 0.8, 0.95, 1e-4, 0.1))
    make = lambda: LarsOptimizer(0.5, 0.8, 0.1, 0.01, exclude_from_weight_decay=["bias$"])  # noqa: E731
    assert_same(trained(make, False), simulated(Lars, ["net/bias"], 0.5, 0.8, 0.1, 0.01))


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


KERNELS = {LambOptimizer: "Lamb", LarsOptimizer: "Lars"}


@pytest.mark.parametrize("optimizer", [LambOptimizer, LarsOptimizer])
@pytest.mark.parametrize("resource", [False, True])
def test_kernels_of_large_variables(resource, optimizer, monkeypatch):
    """Of many blocks, in several threads, with elements left over, and in float32."""
    size, finals = 3 * 4096 * 5 + 21, []
    for with_kernels in (True, False):
        if not with_kernels:
            monkeypatch.setattr(fused_updates, "mark", lambda *what: None)
        with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource):
            w = tf.get_variable("w", initializer=np.random.RandomState(1).normal(size=size).astype(np.float32))
            b = tf.get_variable("b", initializer=np.ones(3, np.float32))
            given = tf.placeholder(tf.float32, [size])
            gradients = [(given, w), (tf.constant([1.0, 2, 3]), b)]
            train = optimizer(0.1, exclude_from_weight_decay=["^b$"]).apply_gradients(gradients)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for step in range(STEPS - 1):
                    session.run(train, {given: np.random.RandomState(step).normal(size=size)})
                ran = kernels(session, train, {given: np.ones(size)})
                prefix = "EplResource" if resource else "Epl"
                assert ran == ({prefix + KERNELS[optimizer]} if with_kernels else set())
                finals.append(session.run(tf.global_variables()))
    for one, other in pairs(*finals):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6)  # sums of 20 float32 steps of about 0.1


def test_what_others_hold_of_a_variable_stays():
    """A tensor read before the update has the value of then, although it is the variable's own memory."""
    for mode in ("copy on write", "copy on read"):
        with tf.Graph().as_default():
            w = tf.get_variable("w", initializer=np.arange(3, dtype=np.float32), use_resource=True)
            optimizer = LambOptimizer(0.5)
            before = w.read_value()
            with tf.control_dependencies([before]):
                train = optimizer.apply_gradients([(tf.ones([3]), w)])
            slots = [optimizer.get_slot(w, name).read_value() for name in ("m", "v")]
            with tf.control_dependencies([train]):
                after = w.read_value()
            with tf.control_dependencies([after]):
                both = [tf.identity(before), tf.identity(after)]
            touch = tf.scatter_update(w, [0], [7.0])
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                if mode == "copy on read":
                    session.run(touch)
                want = session.run(w)
                held = session.run(w)
                one, other = session.run(both)
                np.testing.assert_array_equal(one, want)
                np.testing.assert_array_equal(held, want)
                assert (other != one).all()
                np.testing.assert_allclose(session.run(slots), [[0.1] * 3, [0.001] * 3], rtol=1e-4)


def test_an_update_of_which_somebody_takes_a_part_is_left_to_tensorflow():
    with tf.Graph().as_default() as graph:
        w = tf.get_variable("w", initializer=np.ones(3, np.float32))
        train = LambOptimizer(0.5).apply_gradients([(tf.ones([3]), w)])
        ops = [op for op in graph.get_operations() if tags.LAYER_WISE in op.node_def.attr]
        tagged = {op.get_attr(tags.LAYER_WISE).decode().split("|")[1]: op for op in ops}
        twice = 2 * tagged["step"].outputs[0]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert not kernels(session, [train, twice])
            assert (session.run(w) < 1).all()


def test_sixteen_bits_are_left_to_tensorflow():
    with tf.Graph().as_default():
        w = tf.get_variable("w", initializer=tf.constant([1.0, 2.0], tf.float16))
        train = LarsOptimizer(0.5).apply_gradients([(tf.ones([2], tf.float16), w)])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert not kernels(session, train)


def test_graphs_and_files_have_operations_of_tensorflow_alone(tmp_path):
    with tf.Graph().as_default() as graph:
        w = tf.get_variable("w", initializer=np.ones(3, np.float32))
        train = LambOptimizer(0.5).apply_gradients([(tf.ones([3]), w)])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert kernels(session, train)
            tf.train.Saver().save(session, str(tmp_path / "model"))
        ops = {node.op for node in tf.MetaGraphDef.FromString((tmp_path / "model.meta").read_bytes()).graph_def.node}
        assert ops & {"Assign", "AssignVariableOp"} and not any(op.startswith("Epl") for op in ops)
        assert ops == {op.type for op in graph.get_operations()}
