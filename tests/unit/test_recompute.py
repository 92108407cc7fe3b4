"""Recomputation on one copy of a model: the same numbers to the last bit, and nothing repeated that must not be."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.capture.record import make_program
from epl.compiler import compile
from epl.config import Config
from epl.errors import CaptureError, PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.index import node_of
from epl.passes.model.compute_again import with_copies
from epl.plan.cost.cost import forward_costs
from epl.plan.cost.device_memory import VARIABLES
from epl.plan.facts.analysis import analyse
from epl.plan.facts.names import recomputed_name
from epl.plan.memory.checkpoint_policy import plan_recomputation
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import ROWS, capture, cluster, compiled, control_flow, trained, variable

pytestmark = pytest.mark.either_line

AUTO = {"gradient_checkpoint.type": "auto"}


def stateful(op):
    return tf_compat.op_def(op).is_stateful


def planned(graph, values=None):
    """(Program, Recomputation) of a tf.Graph."""
    program = make_program(graph)
    analysis = analyse(program)

    def costs():
        return forward_costs(program.graph, analysis.cloned, program.spec_of)

    return program, plan_recomputation(program, Config(values or {}, {}), analysis, costs)


def data(width=8):
    return tf.placeholder(tf.float32, [ROWS, width], name="x")


def dense(x, units, index, activation=tf.tanh):
    return tf.layers.dense(
        x, units, activation=activation, kernel_initializer=tf.random_normal_initializer(stddev=0.3, seed=index)
    )


def mlp(keep=lambda i, x: None, dropout=0.0, resource=False):
    x = data()
    with tf.variable_scope("net", use_resource=resource):
        for i in range(9):
            x = dense(x, 8, i)
            if dropout:
                x = tf.nn.dropout(x, rate=dropout, seed=i)
            keep(i, x)
    return tf.reduce_mean(tf.square(x))


def mlp_of_resources():
    return mlp(resource=True)


def with_dropout():
    return mlp(dropout=0.3)


def convolutions():
    x = tf.reshape(data(64), [ROWS, 8, 8, 1])
    for i in range(4):
        x = tf.layers.conv2d(x, 4, 3, padding="same", kernel_initializer=tf.random_normal_initializer(seed=i))
        x = tf.nn.relu(tf.layers.batch_normalization(x, training=True))
    return tf.reduce_mean(tf.square(x))


def residual():
    x = dense(data(), 8, 0)
    for i in range(6):
        x = x + dense(dense(x, 16, 2 * i + 1), 8, 2 * i + 2)
    return tf.reduce_mean(tf.square(x))


def branches():
    x = data()
    for i in range(6):
        h = dense(x, 8, i)
        x = tf.cond(tf.reduce_sum(h) > 0, lambda h=h: tf.sin(h) * h, lambda h=h: tf.cos(h) - h)
    return tf.reduce_mean(tf.square(x))


def loops():
    x = data()
    for i in range(5):
        h = dense(x, 8, i)
        w = variable("loop%d" % i, [8, 8])
        _, x = tf.while_loop(lambda n, _: n < 3, lambda n, y, w=w: (n + 1, tf.tanh(tf.matmul(y, w)) + y), [0, h])
    return tf.reduce_mean(tf.square(x))


def embeddings():
    ids = tf.cast(tf.abs(data(4)) * 5, tf.int32) % 12
    x = tf.reshape(tf.nn.embedding_lookup(variable("table", [12, 2]), ids), [ROWS, 8])
    for i in range(6):
        x = dense(x, 8, i)
    return tf.reduce_mean(tf.square(x))


def tied():
    x, w = data(), tf.get_variable("w", [8, 8], initializer=tf.random_normal_initializer(stddev=0.5, seed=3))
    for i in range(8):
        x = tf.tanh(tf.matmul(x, w, transpose_b=bool(i % 2)))
    return tf.reduce_mean(tf.square(x))


def products():
    """What is computed again has a use other than the gradient of its own weights."""
    x = data()
    for i in range(6):
        x = dense(x, 8, 2 * i, None) * tf.exp(-tf.square(dense(x, 8, 2 * i + 1, None)))
    return tf.reduce_mean(tf.square(x))


def attention():
    x = dense(data(32), 32, 0)
    for i in range(3):
        q, k, v = (tf.reshape(dense(x, 32, 4 * i + j + 1, None), [ROWS, 4, 8]) for j in range(3))
        mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v)
        x = x + dense(tf.reshape(mixed, [ROWS, 32]), 32, 4 * i + 4, tf.nn.relu)
    return tf.reduce_mean(tf.square(x))


def calls_python():
    x = data()
    for i in range(6):
        x = dense(x, 8, i)
        if i == 3:
            x = x + tf.stop_gradient(tf.reshape(tf.py_func(lambda y: np.cos(y), [x], tf.float32), [ROWS, 8]))
    return tf.reduce_mean(tf.square(x))


def several_losses():
    """Losses of several heads on one trunk, one of them from its middle, and one that is collected."""
    x = data()
    losses = []
    for i in range(8):
        x = dense(x, 8, i)
        if i in (3, 7):
            losses += [
                tf.reduce_mean(tf.square(dense(x, 4, 20 + i, None))),
                tf.reduce_mean(tf.abs(dense(x, 2, 30 + i))),
            ]
    tf.losses.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
    return tf.add_n(losses) + tf.losses.get_total_loss()


def looks_on():
    """Summaries of what is in the middle, and a queue that it goes through."""
    x = data()
    for i in range(8):
        x = dense(x, 8, i)
        tf.summary.histogram("layer%d" % i, x)
        if i == 4:
            queue = tf.FIFOQueue(4, [tf.float32], [[ROWS, 8]])
            with tf.control_dependencies([queue.enqueue(x), tf.summary.merge_all()]):
                x = x + tf.stop_gradient(queue.dequeue())
    return tf.reduce_mean(tf.square(x))


def keras_branches():
    """Layers of Keras, of which two do something else in training: as branches, whose predicate is the phase."""
    layers = tf.keras.layers
    training = tf.keras.backend.learning_phase() if tf_compat.line() == "tf1" else tf.placeholder_with_default(True, [])
    x = data()
    for i in range(4):
        kernel = tf.keras.initializers.RandomNormal(stddev=0.4, seed=i)
        x = layers.Dense(8, activation="tanh", kernel_initializer=kernel)(x)
        x = layers.BatchNormalization()(x, training=training)
        x = layers.Dropout(0.2, seed=i)(x, training=training)
    return tf.reduce_mean(tf.square(x))


MODELS = [
    mlp,
    mlp_of_resources,
    with_dropout,
    convolutions,
    residual,
    branches,
    loops,
    embeddings,
    tied,
    products,
    attention,
    calls_python,
    several_losses,
    looks_on,
    keras_branches,
]
# Of what keeps state: arrays are new ones, and variables change later.
REPEATED_ALL_THE_SAME = ["ReadVariableOp"] + [
    "TensorArray%sV3" % kind for kind in ("", "Scatter", "Read", "Gather", "Write")
]
OPTIMIZERS = {"sgd": lambda: tf.train.GradientDescentOptimizer(0.1), "adam": lambda: tf.train.AdamOptimizer(0.01)}


def minimize(loss, optimizer="adam"):
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        return OPTIMIZERS[optimizer]().minimize(loss)


def check(build, values, optimizer="adam", version="v1"):
    """Trains with and without; returns (Model, Recomputation, Graph)."""
    with control_flow(version), capture(seed=5) as graph:
        loss = build()
        train = minimize(loss, optimizer)
        init = tf.global_variables_initializer()
        model, plan = planned(graph, values)
        assert plan.num_nodes > 0
        after = with_copies(model.graph, plan)
    names = init.name, train.name, loss.name
    want, got = trained(model.graph, *names), trained(after, *names)
    assert len(want) == len(got) and np.all(np.isfinite(want[0]))
    for one, other in zip(want, got):
        np.testing.assert_array_equal(one, other)
    for name in (n for group in plan.groups for n in group.nodes):
        copy = after.nodes[recomputed_name(name)]
        assert not stateful(copy.op) or copy.op in REPEATED_ALL_THE_SAME
        assert tags.phase(copy) == tags.BACKWARD
    return model, plan, after


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_same_to_the_last_bit(build):
    check(build, AUTO)


@pytest.mark.parametrize("build", [branches, loops, keras_branches], ids=lambda build: build.__name__)
def test_control_flow_of_functions(build):
    check(build, AUTO, version="v2")


@pytest.mark.parametrize("build", [mlp, tied, products], ids=lambda build: build.__name__)
def test_updates_that_need_no_slots(build):
    """Nothing but the read of a variable stands between the pass that reads it and its update."""
    check(build, AUTO, "sgd")


def test_tensorflows_optimizer_does_not_merge_them_with_the_first():
    """Of what is computed twice by the same operation from the same inputs it would keep one."""
    with control_flow("v1"), capture() as graph:
        train = minimize(mlp())
        init = tf.global_variables_initializer()
        model, plan = planned(graph, AUTO)
        after = with_copies(model.graph, plan)
    twice = [name for group in plan.groups for name in group.nodes if model.graph.nodes[name].op == "Tanh"]
    assert len(twice) >= 3
    with tf.Graph().as_default():
        tf.import_graph_def(after.to_graph_def(tf.GraphDef), name="")
        with tf.Session() as session:
            session.run(init.name)
            metadata = tf.RunMetadata()
            options = tf.RunOptions(output_partition_graphs=True)
            session.run(train.name, {"x:0": np.ones((ROWS, 8), np.float32)}, options, metadata)
    left = {node.name for graph in metadata.partition_graphs for node in graph.node}
    assert left.issuperset(twice) and left.issuperset(map(recomputed_name, twice))


def test_every_copy_waits_for_a_gradient():
    _, plan, after = check(with_dropout, AUTO)
    for group in plan.groups:
        copies = {recomputed_name(name) for name in group.nodes}
        assert group.triggers
        for name in group.nodes:
            inputs = after.nodes[recomputed_name(name)].input
            waits = ["^" + trigger for trigger in group.triggers]
            waits += ["^" + recomputed_name("after/%s" % group.nodes[0])] if group.after else []
            waits += ["^" + name] if name in group.reading else []
            assert any(node_of(text) in copies for text in inputs) or waits == [t for t in inputs if t[0] == "^"]


@pytest.mark.parametrize("build", [mlp, tied, with_dropout, attention], ids=lambda build: build.__name__)
def test_gradients_of_variables_are_not_put_off(build):
    """tf.gradients orders nothing by itself, so copies wait for what is to be made of those of later layers."""
    with capture(seed=5) as graph:
        loss, optimizer = build(), tf.train.AdamOptimizer(0.01)
        variables = tf.trainable_variables()
        optimizer.apply_gradients(list(zip(tf.gradients(loss, variables), variables)))
        model, plan = planned(graph, AUTO)
        after = with_copies(model.graph, plan)
    assert all(group.after for group in plan.groups)
    for group in plan.groups:
        first = after.ancestors([recomputed_name(group.nodes[-1])])
        assert first.issuperset(group.after) and all(tags.phase(after.nodes[n]) == tags.BACKWARD for n in group.after)


def test_the_peak_falls_whatever_makes_the_gradients():
    peaks = []
    for config in ({}, {"gradient_checkpoint__type": "auto"}):
        with capture() as graph:
            x = tf.placeholder(tf.float32, [256, 64], name="x")
            for i in range(24):
                x = dense(x, 64, i)
            loss, variables = tf.reduce_mean(tf.square(x)), tf.trainable_variables()
            gradients = tf.gradients(loss, variables)
            tf.train.GradientDescentOptimizer(0.1).apply_gradients(list(zip(gradients, variables)))
            (memory,) = estimate_program(compiled(graph, 1, 1, **config))[0].values()
        peaks.append(memory.peak_bytes - memory.lasting[VARIABLES])
    assert peaks[1] < 0.5 * peaks[0]


def test_masks_are_kept_instead_of_random_numbers():
    model, plan, after = check(with_dropout, AUTO)
    used = {node_of(text) for name in after.nodes for text in after.nodes[name].input if "epl_recompute" in name}
    ops_used = {model.graph.nodes[name].op for name in used if name in model.graph.nodes}
    assert "GreaterEqual" in ops_used and "RandomUniform" not in ops_used


def test_tensors_of_the_collection_are_kept():
    def build():
        return mlp(lambda i, x: tf.add_to_collection("checkpoints", x) if i in (2, 5) else None)

    model, plan, after = check(build, {"gradient_checkpoint.type": "collection"})
    assert model.checkpoints == ["net/dense_2/Tanh:0", "net/dense_5/Tanh:0"]
    again = {name for group in plan.groups for name in group.nodes}
    assert len(plan.groups) == 2 and not {"net/dense_2/Tanh", "net/dense_5/Tanh"} & again
    assert "net/dense_1/Tanh" in again and "net/dense_4/Tanh" in again


def test_an_empty_collection_is_refused():
    with capture() as graph:
        minimize(mlp())
        with pytest.raises(PlanError, match='"checkpoints".*there is none.*add_to_collection'):
            planned(graph, {"gradient_checkpoint.type": "collection"})


def test_marked_blocks():
    def build():
        x = data()
        for i in range(4):
            with epl.recompute():
                x = dense(dense(x, 8, 2 * i), 8, 2 * i + 1)
        return tf.reduce_mean(tf.square(x))

    _, plan, _ = check(build, {})
    again = {name for group in plan.groups for name in group.nodes}
    assert len(plan.groups) == 3  # the last block's turn comes at once
    assert "dense_2/Tanh" in again and "dense_3/Tanh" not in again


def test_blocks_do_not_nest():
    with capture(), epl.recompute(), pytest.raises(CaptureError, match="cannot be nested"):
        with epl.recompute():
            pass


def test_nothing_asked_for_nothing_done():
    with capture() as graph:
        minimize(mlp())
        assert planned(graph)[1] is None


def test_moving_averages_move_once():
    model, _, after = check(convolutions, AUTO)
    for op in ("AssignSub", "AssignSubVariableOp", "Assign", "AssignVariableOp"):
        assert len(model.graph.find(op.__eq__)) == len(after.find(op.__eq__))


def test_limit_that_cannot_be_kept():
    with capture() as graph:
        minimize(mlp())
        with pytest.raises(PlanError, match=r"memory_limit_mb=0.0001 cannot be kept.*larger limit"):
            planned(graph, dict(AUTO, **{"gradient_checkpoint.memory_limit_mb": 0.0001}))


def test_a_generous_limit_needs_nothing_again():
    with capture() as graph:
        minimize(mlp())
        assert planned(graph, dict(AUTO, **{"gradient_checkpoint.memory_limit_mb": 100}))[1].num_nodes == 0


@pytest.mark.parametrize("clipped", [False, True])
def test_a_limit_counts_gradients(clipped):
    """Weights of 64 KiB, activations of 1 KiB: all but the first layer's gradients are there in the end."""
    with capture() as graph:
        x = data(128)
        for i in range(8):
            x = dense(x, 128, i)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        gradients, variables = zip(*optimizer.compute_gradients(tf.reduce_mean(tf.square(x))))
        if clipped:
            gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, variables))
        with pytest.raises(PlanError, match=r"activations and gradients of one micro-batch need 0.5 MiB"):
            planned(graph, dict(AUTO, **{"gradient_checkpoint.memory_limit_mb": 0.2}))


def test_gradients_of_gradients_are_refused():
    with capture() as graph:
        x, w = data(), variable("w", [8, 8])
        y = tf.reduce_sum(tf.tanh(tf.matmul(x, w)))
        slope = tf.gradients(y, x)[0]
        minimize(tf.reduce_mean(tf.square(slope)) + y)
        with pytest.raises(UnsupportedError, match="gradients of gradients"):
            planned(graph, AUTO)


@pytest.mark.parametrize(
    "workers, devices, micro_batches, stages", [(2, 2, 1, 1), (1, 2, 3, 1), (1, 2, 4, 2), (2, 1, 4, 2)]
)
def test_copies_of_the_model_have_their_own(workers, devices, micro_batches, stages):
    """Each replica and micro-batch computes again, and each stage what is its own."""
    with capture(seed=5) as graph:
        x = data()
        for stage in range(stages):
            with epl.replicate(1):
                for i in range(6):
                    x = dense(x, 8, 10 * stage + i)
                loss = tf.reduce_mean(tf.square(x))
        minimize(loss)
        values = dict(AUTO, **{"pipeline.num_micro_batch": micro_batches})
        program = compile(make_program(graph), Config(values, {}), cluster(workers, devices))
    again = [n for n in program.graph.nodes.values() if n.op == "MatMul" and "epl_recompute" in n.name]
    here = [stage for stage in range(stages) if stages == 1 or devices == 2 or stage == 0]
    copies = micro_batches * (devices if stages == 1 else 1)
    assert len(again) >= copies * len(here) and len(again) % copies == 0
    for node in again:
        stage = int(node.name.split("dense_")[1].split("/")[0]) // 6 if "dense_" in node.name else 0
        assert tags.get_int(node, tags.TASKGRAPH) == stage
