"""Mixed precision on one copy of a model: what is computed in 16 bits, what stays, and how near it is to float32."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.config import Config
from epl.errors import ConfigError, PlanError, UnsupportedError
from epl.graph import tags
from epl.passes.model.mixed_precision import computed_name
from tests.helpers.planning import capture, compiled
from tests.helpers.zoo import model as m

BFLOAT16, FLOAT16, FLOAT32 = 14, 19, 1
HAS_BFLOAT16 = tf_compat.has_kernel_of_type("Conv2D", "CPU", "T", BFLOAT16)
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="this TensorFlow has no bfloat16 kernels for the CPU")


def mlp(resource=True):
    x, labels = tf.placeholder(tf.float32, [None, 6], "x"), tf.placeholder(tf.int64, [None], "labels")
    with tf.variable_scope("net", use_resource=resource):
        hidden = m.dense(x, 16, "hidden", seed=1, activation=tf.nn.relu)
        hidden = m.dense(hidden, 16, "middle", seed=2, activation=tf.nn.relu)
        logits = m.dense(hidden, 3, "logits", seed=3)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, logits, tf.train.AdamOptimizer(0.01).minimize(loss)


def clipped(resource=True):
    """mlp with an optimizer that gets clipped gradients: (loss, (gradient, variable) pairs)."""
    with tf.variable_scope("net", use_resource=resource):
        hidden = m.dense(tf.placeholder(tf.float32, [None, 6], "x"), 16, "hidden", seed=1, activation=tf.nn.relu)
        loss = tf.reduce_mean(tf.square(m.dense(hidden, 3, "logits", seed=3)))
    optimizer = tf.train.AdamOptimizer(0.01)
    pairs = optimizer.compute_gradients(loss)
    optimizer.apply_gradients([(tf.clip_by_value(g, -0.1, 0.1), v) for g, v in pairs])
    return loss, pairs


def one(graph, **config):
    return compiled(graph, devices=1, **dict({"amp__level": "O1", "amp__dtype": "bfloat16"}, **config))


def types(graph, name):
    """(type attribute of the node that computes, operation type of the node that keeps the name)."""
    return graph.nodes[computed_name(name)].attr["T"].type, graph.nodes[name].op


@needs_bfloat16
def test_products_and_what_follows_them_are_computed_in_16_bits():
    with capture() as graph:
        loss, logits, _ = mlp()
    program = one(graph)
    nodes = program.graph.nodes
    for name in ("net/MatMul", "net/add", "net/Relu", logits.op.name):
        assert types(program.graph, name) == (BFLOAT16, "Cast")
    assert computed_name(loss.op.name) not in nodes
    softmax = next(n for n in nodes.values() if n.op == "SparseSoftmaxCrossEntropyWithLogits")
    assert softmax.attr["T"].type == FLOAT32
    updates = [n for n in nodes.values() if n.op == "ResourceApplyAdam"]
    assert len(updates) == 6 and all(n.attr["T"].type == FLOAT32 for n in updates)


@needs_bfloat16
def test_what_is_made_of_gradients_stays_in_float32():
    with capture() as graph:
        kernel = tf.get_variable("kernel", [6, 6])
        loss = tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 6]), kernel))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss)
        turned = tf.matmul(gradient, gradient)
        optimizer.apply_gradients([(turned, kernel)])
    nodes = one(graph).graph.nodes
    assert computed_name("MatMul") in nodes and nodes[turned.op.name].op == "MatMul"
    assert list(nodes[turned.op.name].input) == [gradient.op.name] * 2


@needs_bfloat16
def test_a_weight_is_cast_once_for_each_pass_and_late_for_the_backward_pass():
    with capture() as graph:
        mlp()
    nodes = one(graph).graph.nodes
    casts = [n for n in nodes.values() if n.name.startswith("epl_cast/net/MatMul_1/")]
    assert [tags.phase(n) for n in casts] == [tags.FORWARD, tags.BACKWARD]
    assert not [t for t in casts[0].input if t[0] == "^"]
    awaited = [t[1:] for t in casts[1].input if t[0] == "^"]
    assert awaited and all(tags.phase(nodes[name]) == tags.BACKWARD for name in awaited)
    x = [n for n in nodes.values() if n.op == "Cast" and list(n.input)[:1] == ["x"]]
    assert len(x) == 1  # for the forward pass and for the gradient of the weight


@needs_bfloat16
def test_waiting_does_not_ask_for_the_cast_back():
    with capture() as graph:
        mlp()
    graph = one(graph).graph
    waited = [text[1:] for node in graph.nodes.values() for text in node.input if text[0] == "^"]
    assert not [name for name in waited if computed_name(name) in graph.nodes]
    assert computed_name("gradients/net/MatMul_1_grad/MatMul") in waited


# --- level "O2" ---

UNSCALED = {"amp__dtype": "float16", "amp__loss_scale": 1}


def test_gradients_travel_in_16_bits_and_are_cast_for_the_optimizer():
    with capture() as graph:
        _, pairs = clipped()
    program = compiled(graph, workers=2, devices=1, amp__level="O2", amp__dtype="float16")
    nodes = program.graph.nodes
    (reduced,) = [n for n in nodes.values() if n.op == "EplAllReduce"]
    assert reduced.attr["T"].type == FLOAT16 and len(reduced.input) == len(pairs) == 4
    for gradient, _ in pairs:
        taken = next(n for n in nodes.values() if n.op.startswith("Minimum") and n.input[0] != gradient.op.name)
        unscaled = nodes[taken.input[0]]
        cast = nodes[unscaled.input[0]]
        assert (unscaled.op, cast.op, cast.attr["SrcT"].type, cast.attr["DstT"].type) == ("Mul", "Cast", FLOAT16, 1)
        assert cast.input[0].split(":")[0] == reduced.name
        # Who fetches a gradient gets that of this worker, without the scale, in float32.
        own = program.graph.ancestors([gradient.op.name])
        assert reduced.name not in own and nodes[gradient.op.name].attr["T"].type == FLOAT32


def test_a_weight_has_one_copy_in_16_bits():
    with capture() as graph:
        mlp()
    nodes = one(graph, amp__level="O2", amp__dtype="float16").graph.nodes
    (cast,) = [n for n in nodes.values() if n.name.startswith("epl_cast/net/MatMul_1/")]
    assert tags.phase(cast) == tags.FORWARD and not [t for t in cast.input if t[0] == "^"]
    takers = {n.name for n in nodes.values() if cast.name in n.input}
    assert takers == {computed_name("net/MatMul_1"), computed_name("gradients/net/MatMul_1_grad/MatMul")}


def test_gradients_that_the_program_assigns_itself_are_refused():
    with capture() as graph:
        kernel = tf.get_variable("kernel", [6, 6])
        loss = tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 6]), kernel))
        (gradient,) = tf.gradients(loss, [kernel])
        tf.assign_sub(kernel, 0.1 * gradient)
    with pytest.raises(UnsupportedError, match='amp.level="O2" keeps gradients in 16 bits until an optimizer') as error:
        one(graph, amp__level="O2", **UNSCALED)
    assert "'kernel'" in str(error.value)


def test_gradients_of_what_differs_are_refused():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 6])
        kernel = tf.get_variable("kernel", [6, 6])
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_mean(tf.matmul(x, kernel)))
        optimizer.apply_gradients([(gradient * tf.reduce_max(x), kernel)])
    with pytest.raises(PlanError, match='amp.level="O2" cannot hold for the gradient'):
        compiled(graph, devices=2, amp__level="O2", **UNSCALED)


@pytest.mark.parametrize(
    "key, value", [("communication.fp16", True), ("communication.wire_dtype", "int8"), ("dgc.sparsity", (0.9,))]
)
def test_other_short_forms_of_gradients_are_refused(key, value):
    with pytest.raises(ConfigError, match='cannot be used with amp.level="O2"') as error:
        Config({"amp.level": "O2", key: value}, {})
    assert "%s=%r" % (key, value) in str(error.value)


@needs_bfloat16
def test_lists_of_the_user():
    with capture() as graph:
        mlp()
    black = one(graph, amp__custom_black_list="AddV2, Add, Relu").graph
    assert computed_name("net/add") not in black.nodes
    assert computed_name("net/MatMul") in black.nodes
    with capture() as graph:
        x = tf.placeholder(tf.float32, [4, 4])
        soft = tf.nn.softmax(x)
    assert computed_name(soft.op.name) not in one(graph).graph.nodes
    assert types(one(graph, amp__custom_white_list="Softmax").graph, soft.op.name) == (BFLOAT16, "Cast")


@pytest.mark.parametrize(
    "words, message",
    [("Matmul", "no operation type that TensorFlow knows"), ("Shape", "cannot be computed in 16 bits")],
)
def test_lists_that_name_what_is_not_there(words, message):
    with capture() as graph:
        mlp()
    with pytest.raises(PlanError, match=message) as error:
        one(graph, amp__custom_white_list=words)
    assert "amp.custom_white_list names '%s'" % words in str(error.value)


@pytest.mark.skipif(HAS_BFLOAT16, reason="this TensorFlow has bfloat16 kernels for the CPU")
def test_a_missing_kernel_is_named():
    with capture() as graph:
        x = tf.layers.conv2d(tf.placeholder(tf.float32, [2, 6, 6, 3]), 4, 3)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(x))
    with pytest.raises(UnsupportedError, match="has no bfloat16 kernel of Conv2D for the device type CPU"):
        one(graph)
    assert not [n for n in one(graph, amp__level="", amp__dtype="auto").graph.nodes if n.startswith("epl_")]


def test_the_table(caplog):
    with capture() as graph:
        loss, _, _ = mlp()
    with caplog.at_level("INFO", "epl"):
        one(
            graph,
            amp__debug_log=True,
            amp__dtype="float16",
            amp__loss_scale=1,
            amp__custom_black_list="Add,AddV2,BiasAdd",
        )
    rows = {
        line.split()[0]: line.split() for line in caplog.text.splitlines() if line.startswith(("net/", loss.op.name))
    }
    assert rows["net/MatMul"][1:5] == ["MatMul", "16", "bits", "list"] and rows["net/MatMul"][-2] == "2"
    add = graph.get_operation_by_name("net/add").type
    assert rows["net/add"][1:] == [add, "float32", "custom", "list", "0", "0"]
    assert rows["net/Relu"][1:] == ["Relu", "float32", "after", "net/add", "0", "0"]
    assert rows[loss.op.name][1:] == ["Mean", "float32", "no", "list", "0", "0"]


def test_the_table_of_what_follows(caplog):
    with capture() as graph:
        mlp()
    with caplog.at_level("INFO", "epl"):
        one(graph, amp__debug_log=True, amp__dtype="float16", amp__loss_scale=1)
    row = next(line.split() for line in caplog.text.splitlines() if line.startswith("net/Relu "))
    assert row[1:5] == ["Relu", "16", "bits", "after"] and row[-2:] == ["0", str(16 * 2)]


@needs_bfloat16
@pytest.mark.parametrize("resource", [False, True])
def test_losses_stay_near_those_in_float32(resource):
    """Rows are drawn anew for each step; what is learnt is which of three sums of them is the largest."""
    curves = []
    rng = np.random.RandomState(1)
    rows = rng.normal(size=(50, 64, 6)).astype(np.float32)
    answers = rows.reshape(50, 64, 3, 2).sum(axis=3).argmax(axis=2)
    with capture() as graph:
        loss, logits, train_op = mlp(resource)
        init = tf.global_variables_initializer()
    for level in ("", "O1", "O2"):
        dtype = "bfloat16" if level else "auto"
        computed = one(graph, amp__level=level, amp__dtype=dtype).graph.to_graph_def(tf_compat.GraphDef)
        with tf.Graph().as_default():
            tf.import_graph_def(computed, name="")
            with tf.Session() as sess:
                sess.run(init.name)
                fed = ({"x:0": x, "labels:0": y} for x, y in zip(rows, answers))
                values = [sess.run([loss.name, logits.name, train_op.name], feeds) for feeds in fed]
        assert values[0][1].dtype == np.float32
        curves.append([value[0] for value in values])
    assert curves[0][-1] < 0.7 * curves[0][0]
    assert curves[0] != curves[1] != curves[2]
    for curve in curves[1:]:
        np.testing.assert_allclose(curve, curves[0], rtol=0.02)


# --- together with the rest ---

PIPELINES = "tests.helpers.programs.pipelines:"


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=needs_bfloat16), "float16"])
@pytest.mark.parametrize(
    "devices, model, stages, micro_batches, replicas, config",
    [
        (2, "batch_norm_cnn", 1, 2, 2, {}),
        (2, "tied_mlp", 2, 2, 1, {"gradient_checkpoint__type": "auto"}),
        (2, "tied_mlp", 2, 2, 1, {"gradient_checkpoint__type": "auto", "amp__level": "O2"}),
    ],
)
def test_losses_stay_near_those_of_one_device(
    by_hand, two_devices, devices, model, stages, micro_batches, replicas, config, dtype
):
    want = by_hand(model, micro_batches, replicas)
    arguments = (devices, model, stages, micro_batches, replicas, "PreferBackward")
    got = two_devices(PIPELINES + "train", *arguments, **dict({"amp__level": "O1", "amp__dtype": dtype}, **config))
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
    assert list(got["losses"]) != list(want["losses"])
    assert all(value.dtype == np.float32 for name, value in got["states"][-1].items() if name != "global_step")
