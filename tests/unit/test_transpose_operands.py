"""EPL's transposition, and the pass that has it done before products."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import epl
from epl import tf_compat
from epl.capture.record import make_program
from epl.communicators.library import load
from epl.passes.model.transpose_operands import transpose_operands
from epl.plan.layout.transpositions import plan_transpositions
from epl.program.target import Target
from tests.helpers.planning import capture, cluster

pytestmark = pytest.mark.either_line


@pytest.fixture(autouse=True)
def without_onednn(monkeypatch):
    monkeypatch.setattr(tf_compat, "uses_onednn", lambda: False)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.one_of(st.integers(0, 5), st.integers(15, 35)), max_size=4),
    dtype=st.sampled_from(["float32", "float32", "float64", "bool", "int16", "int32"]),
    data=st.data(),
)
def test_transposes_as_numpy_does(shape, dtype, data):
    perm = data.draw(st.permutations(range(len(shape))))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(dtype, shape)
        y = load().epl_transpose(fed, perm=perm)
        assert y.shape == np.transpose(x, perm).shape
        np.testing.assert_array_equal(session.run(y, {fed: x}), np.transpose(x, perm))


@pytest.mark.parametrize("shape, perm, text", [
    ([2, 3], [0, 0], "perm has to name each dimension once"),
    ([2, 3], [0, 2], "no dimension 2"),
    ([2, 3], [0], "must be rank 1"),
    (None, [0], "x has 2 dimensions, perm 1"),
])  # fmt: skip
def test_what_is_no_transposition(shape, perm, text):
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32, shape)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=text):
            session.run(load().epl_transpose(fed, perm=perm), {fed: np.zeros([2, 3])})


def passed(graph, device_type="CPU"):
    """The Graph that the pass makes of what was captured."""
    load()
    program = make_program(graph)
    decided = plan_transpositions(
        program, Target(None, cluster(device_type=device_type), uses_onednn=tf_compat.uses_onednn())
    )
    return (transpose_operands(program, decided) if decided is not None else program).graph


def values(graph_def, names, feeds):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return session.run([name + ":0" for name in names], feeds)


def product(rows, inner, columns, flags, known=True, scope=None):
    """A graph with a product "y" of "a" and "b" in what devices divide."""
    with capture() as graph, scope or epl.split(2):
        shapes = [[rows, inner][:: -1 if flags[0] else 1], [inner, columns][:: -1 if flags[1] else 1]]
        if not known:
            shapes[0][1 if flags[0] else 0] = None
        a, b = [tf.placeholder(tf.float32, shape, name) for shape, name in zip(shapes, "ab")]
        tf.matmul(a, b, *flags, name="y")
    return graph


@pytest.mark.parametrize("sizes, flags, transposed", [
    ((512, 64, 128), (False, True), ["b"]),
    ((64, 512, 512), (True, False), ["a"]),
    ((512, 512, 512), (True, True), ["y"]),
    ((4, 512, 640), (False, True), ["a", "y"]),  # not the large one
    ((640, 512, 4), (True, False), ["b", "y"]),
    ((700, 4, 700), (True, True), ["a", "b"]),
    ((64, 64, 64), (False, True), []),  # as much to move as to gain
    ((512, 64, 128), (False, False), []),
])  # fmt: skip
def test_products(sizes, flags, transposed):
    graph = product(*sizes, flags=flags)
    found = passed(graph)
    moved = found.find("EplTranspose".__eq__)
    assert sorted("y" if name == "y" else found.nodes[name].input[0] for name in moved) == transposed
    products = [found.nodes[name] for name in found.find("MatMul".__eq__)]
    left = [node.attr[flag].b for node in products for flag in ("transpose_a", "transpose_b")]
    assert left == (list(flags) if not transposed else [False, False])
    rng = np.random.RandomState(0)
    feeds = {name + ":0": rng.normal(size=graph.get_tensor_by_name(name + ":0").shape.as_list()) for name in "ab"}
    want, got = [values(each, ["y"], feeds)[0] for each in (graph.as_graph_def(), found.to_graph_def(tf.GraphDef))]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_batches_of_unknown_size():
    """They count as small ones: what is large, and known, stays where it is."""
    found = passed(product(8, 512, 640, (False, True), known=False))
    assert len(found.find("EplTranspose".__eq__)) == 2
    assert not passed(product(8, 64, 64, (False, True), known=False)).find("EplTranspose".__eq__)


@pytest.mark.parametrize("onednn, device_type, scope", [(True, "CPU", None), (False, "GPU", None), (False, "CPU", 1)])
def test_elsewhere_nothing_changes(monkeypatch, onednn, device_type, scope):
    monkeypatch.setattr(tf_compat, "uses_onednn", lambda: onednn)
    graph = product(512, 64, 128, (False, True), scope=scope and epl.replicate(1))
    assert not passed(graph, device_type).find("EplTranspose".__eq__)


def test_what_a_product_waits_for():
    """A variable is transposed no sooner than the product would have read it, and than that has its other operand."""
    with capture() as graph, epl.split(2):
        w = tf.get_variable("w", [128, 64], use_resource=False)
        x = tf.placeholder(tf.float32, [512, 64], "x")
        with tf.control_dependencies([w.assign_add(tf.ones_like(w))]):
            tf.matmul(x, w, transpose_b=True, name="y")
    found = passed(graph)
    (moved,) = found.find("EplTranspose".__eq__)
    waited_for = [text for text in found.nodes["y"].input if text[0] == "^"]
    assert waited_for and list(found.nodes[moved].input)[1:] == ["^x"] + waited_for


def test_transpositions():
    with capture() as graph, epl.split(2):
        x = tf.placeholder(tf.float32, [4, 6, 8, 10], "x")
        tf.transpose(x, [0, 2, 1, 3], name="heads")
        y = tf.transpose(x, [0, 1, 3, 2], name="matrices")
        tf.transpose(x, tf.invert_permutation([0, 3, 1, 2]), name="inverse")
        # TensorFlow's graph optimizer knows better ways for these.
        tf.transpose(x, [0, 1, 2, 3], name="nothing")
        tf.matmul(x, tf.transpose(x, [0, 1, 3, 2], name="multiplied"), name="product")
        tf.transpose(tf.transpose(x, [0, 2, 1, 3], name="there"), [0, 2, 1, 3], name="and_back")
        tf.transpose(x, tf.placeholder_with_default([0, 2, 1, 3], [4]), name="unknown")
        tf.identity(y)
    names = ["heads", "matrices", "inverse", "product", "and_back"]
    found = passed(graph)
    assert sorted(found.find("EplTranspose".__eq__)) == sorted(names[:3])
    feeds = {"x:0": np.random.RandomState(0).normal(size=[4, 6, 8, 10])}
    for got, want in zip(*(values(g, names, feeds) for g in (found.to_graph_def(tf.GraphDef), graph.as_graph_def()))):
        np.testing.assert_array_equal(got, want)
