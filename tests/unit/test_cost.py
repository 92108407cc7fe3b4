"""Estimated costs of operations and stages, on models built with TensorFlow."""

import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.plan.cost.cost import cut_bytes, forward_costs, stage_costs
from epl.plan.facts.analysis import analyse
from tests.helpers.machines import simple_machine
from tests.helpers.planning import batch, capture, sgd, variable

# One operation, one byte: one second; nothing for starting.
UNIT = simple_machine(flops=1.0, memory=1.0)
NO_MEMORY = simple_machine(flops=1.0, memory=1e30)


def costs_of(graph, machine=UNIT):
    """(Graph, Costs) of a tf.Graph."""
    model = make_program(graph)
    names = analyse(model).cloned or model.graph.nodes
    return model.graph, forward_costs(model.graph, names, model.spec_of, machine, unknown_size=10)


def flops(build, op):
    """The operations counted for the one node of an operation type in what `build` makes."""
    with capture() as graph:
        build()
    made, costs = costs_of(graph)
    (name,) = [n for n in costs.operations if made.nodes[n].op.startswith(op)]
    return costs.operations[name].flops


def random(*shape):
    return tf.placeholder(tf.float32, shape)


@pytest.mark.parametrize(
    "build, op, want",
    [
        (lambda: tf.matmul(random(3, 4), random(4, 5)), "MatMul", 2 * 3 * 4 * 5),
        (lambda: tf.matmul(random(4, 3), random(4, 5), transpose_a=True), "MatMul", 2 * 3 * 4 * 5),
        (lambda: tf.matmul(random(None, 4), random(4, 5)), "MatMul", 2 * 10 * 4 * 5),
        (lambda: tf.matmul(random(7, 3, 4), random(7, 4, 5)), "BatchMatMul", 7 * 2 * 3 * 4 * 5),
        (lambda: tf.matmul(random(7, 3, 4), random(7, 5, 4), transpose_b=True), "BatchMatMul", 7 * 2 * 3 * 4 * 5),
        (lambda: tf.matmul(random(7, 4, 3), random(7, 4, 5), transpose_a=True), "BatchMatMul", 7 * 2 * 3 * 4 * 5),
        (lambda: tf.nn.conv2d(random(2, 8, 8, 3), random(5, 5, 3, 4), 2, "SAME"), "Conv2D", 2 * (2 * 4 * 4 * 4) * 75),
        (lambda: tf.nn.conv1d(random(2, 8, 3), random(5, 3, 4), 1, "SAME"), "Conv2D", 2 * (2 * 8 * 4) * 15),
        (
            lambda: tf.nn.conv3d(random(1, 4, 4, 4, 2), random(3, 3, 3, 2, 6), [1, 1, 1, 1, 1], "SAME"),
            "Conv3D",
            2 * (64 * 6) * 54,
        ),
        (
            lambda: tf.nn.depthwise_conv2d(random(1, 4, 4, 3), random(3, 3, 3, 2), [1, 1, 1, 1], "SAME"),
            "DepthwiseConv2dNative",
            2 * (16 * 6) * 9,
        ),
        (
            lambda: tf.nn.conv2d_transpose(random(1, 4, 4, 6), random(3, 3, 5, 6), [1, 8, 8, 5], 2),
            "Conv2DBackpropInput",
            2 * (16 * 6) * 45,
        ),
        (
            lambda: tf.raw_ops.Einsum(inputs=[random(2, 3, 4), random(4, 5, 6)], equation="abc,cde->abde"),
            "Einsum",
            1440,
        ),
        (
            lambda: tf.raw_ops.Einsum(inputs=[random(2, 3, 4), random(2, 4, 5)], equation="...ab,...bc->...ac"),
            "Einsum",
            240,
        ),
    ],
)
def test_arithmetic(build, op, want):
    assert flops(build, op) == want


def test_everything_else_counts_bytes():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 6], name="x")
        tf.add(x, tf.ones([6]), name="add")
        tf.cast(x, tf.float64, name="cast")
        tf.identity(tf.reshape(x, [60], name="reshape"), name="identity")
        tf.slice(x, [0, 0], [2, 2], name="slice")
    _, costs = costs_of(graph)
    cost = costs.operations
    assert (cost["add"].num_bytes, cost["add"].forward_s) == (240 + 24 + 240, 504)
    assert cost["cast"].num_bytes == 240 + 480
    assert cost["slice"].num_bytes == 2 * 16
    for name in ("x", "reshape", "identity"):
        assert (cost[name].num_bytes, cost[name].forward_s) == (0, 0)


def test_a_gather_does_not_read_the_whole_table():
    for resource in (False, True):
        with capture() as graph:
            tf.nn.embedding_lookup(variable("table", (1000, 8), use_resource=resource), tf.placeholder(tf.int32, [5]))
        made, costs = costs_of(graph)
        (name,) = [n for n in costs.operations if "Gather" in made.nodes[n].op]
        assert costs.operations[name].num_bytes == 2 * 5 * 8 * 4


def test_roofline_and_overhead():
    with capture() as graph:
        tf.matmul(random(3, 4), random(4, 5), name="y")
    num_bytes = 4 * (12 + 20 + 15)
    assert costs_of(graph)[1].operations["y"].forward_s == num_bytes
    assert costs_of(graph, NO_MEMORY)[1].operations["y"].forward_s == 120
    assert costs_of(graph, simple_machine(60.0, 1e30, start=0.5))[1].operations["y"].forward_s == 2.5


def test_backward_by_what_needs_a_gradient():
    with capture() as graph:
        x = batch()
        h = tf.matmul(x, variable("w0"), name="first")
        h = tf.matmul(h, variable("w1"), name="second")
        loss = tf.reduce_mean(tf.tanh(tf.matmul(h, h, transpose_b=True, name="both"), name="tanh"))
        sgd(loss)
    _, costs = costs_of(graph, NO_MEMORY)
    first, second, both = [costs.operations[name] for name in ("first", "second", "both")]
    assert (first.backward_s, first.weight_s) == (0, first.forward_s)  # nobody wants the gradient of data
    assert (second.backward_s, second.weight_s) == (second.forward_s, second.forward_s)
    assert (both.backward_s, both.weight_s) == (2 * both.forward_s, 0)
    tanh = costs_of(graph)[1].operations["tanh"]
    assert (tanh.forward_s, tanh.backward_s, tanh.weight_s) == (512, 512, 0)
    assert tanh.total_s == 1024


def test_only_what_is_trained_has_a_backward_pass():
    with capture() as graph:
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.1, step, 10, 0.5)
        loss = tf.reduce_mean(tf.matmul(batch(), variable("w")))
        tf.train.GradientDescentOptimizer(rate).minimize(loss, step)
    made, costs = costs_of(graph)
    rates = [name for name in costs.operations if name.startswith("ExponentialDecay")]
    assert rates and all(costs.operations[name].backward_s == costs.operations[name].weight_s == 0 for name in rates)
    phases = {made.nodes[name].attr["_epl_phase"].s for name in costs.operations}
    assert phases == {b""}


@pytest.mark.parametrize("resource", [False, True])
def test_stages(resource):
    with capture() as graph:
        x = batch(8, 4)
        h = tf.tanh(tf.matmul(x, variable("w0", (4, 16), resource)), name="h")
        y = tf.matmul(h, variable("w1", (16, 2), resource), name="y")
        sgd(tf.reduce_sum(tf.square(y, name="square"), name="loss"))
    made, costs = costs_of(graph)
    # The backward pass uses x and h (for the weights), h (tanh's gradient) and y (the square's); once each.
    stage_of = {"y": 1}  # a training step runs neither the square nor the sum: only their gradients
    first, second = stage_costs(made, costs, stage_of, 2)
    assert (first.activation_bytes, second.activation_bytes) == (8 * 4 * 4 + 8 * 16 * 4, 8 * 2 * 4)
    assert first.forward_s + second.forward_s == sum(cost.forward_s for cost in costs.operations.values())
    assert second.forward_s == sum(costs.operations[name].forward_s for name in stage_of)
    assert second.weight_s == costs.operations["y"].weight_s > 0
    assert cut_bytes(made, costs, stage_of, 2) == [8 * 16 * 4]


def test_tensors_that_skip_stages_count_at_each_border():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [2, 3], name="x")
        a = tf.tanh(x, name="a")
        b = tf.tanh(a, name="b")
        tf.add(tf.concat([b, b], 0, name="c"), tf.concat([x, a], 0), name="d")
    made, costs = costs_of(graph)
    stage_of = {"x": 0, "a": 0, "b": 1, "c": 2, "d": 2, "concat": 2}
    assert cut_bytes(made, costs, stage_of, 3) == [48, 72]


@pytest.mark.parametrize("make", [lambda: tf.random_normal([2, 4]), lambda: tf.ones([2, 4])])
def test_data_that_nobody_feeds(make):
    with capture() as graph:
        sgd(tf.reduce_sum(tf.tanh(tf.matmul(make(), variable("w", (4, 3))), name="y")))
    made, costs = costs_of(graph)
    assert costs.operations["y"].from_data and not costs.operations["w"].from_data
    assert stage_costs(made, costs, {}, 1)[0].activation_bytes == 4 * (2 * 4 + 2 * 3)


def test_handles_are_held():
    with capture() as graph:
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1])), default_value=0
        )
        tf.lookup.StaticHashTable.lookup(table, tf.placeholder(tf.string, [3], name="words"))
        tf.tanh(random(2, 2), name="y")
    made, costs = costs_of(graph)
    held = {made.nodes[name].op for name, cost in costs.operations.items() if cost.held}
    assert held >= {"HashTableV2", "Placeholder"} and not costs.operations["y"].held
