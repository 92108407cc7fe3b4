"""What a device exchanges in a step, read off the compiled program, for programs of which the fewest are known."""

import collections

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.plan.exchange.exchanges import bytes_by_axis
from epl.plan.report.exchanges_table import exchanges_table, facts
from epl.session.estimated_program import estimate_exchanges
from tests.helpers import planning, split_models

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def rows_of(graph, workers=1, devices=2, **config):
    """(Program, its exchanges) of a graph for 8 rows of a batch, without the comparisons of what workers were fed."""
    program = planning.compiled(graph, workers, devices, **config)
    found = estimate_exchanges(program, 8)
    compared = [each for each in found if each.name.startswith("epl_same_batch")]
    placeholders = graph.as_graph_def().node if program.partitioned is not None and workers > 1 else ()
    assert len(compared) == sum(node.op == "Placeholder" for node in placeholders)
    return program, [each for each in found if each not in compared]


def kinds(exchanges, least=0, axis="shard"):
    """Phase and operation to how often it is done, of those that carry at least so many bytes."""
    found = collections.Counter()
    for each in exchanges:
        if each.axis == axis and each.num_bytes >= least:
            found[each.phase, each.operation] += each.times
    return found


def trained(loss):
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.once
def test_a_transformer_block(workers):
    with planning.capture() as graph:
        tokens = tf.placeholder(tf.int32, [None, 6])
        x = tf.gather(tf.get_variable("table", [11, 16]), tokens)
        with epl.split(2):
            x = split_models.transformer_block(x, 4, "block")
        trained(tf.reduce_mean(tf.square(x - tf.one_hot(tokens, 16))))
    _, found = rows_of(graph, workers, 2 // workers)
    assert kinds(found) == {("forward", "all_reduce"): 2, ("backward", "all_reduce"): 2}
    assert [each.num_bytes for each in found] == [8 * 6 * 16 * 4] * 4
    assert {each.sent_by for each in found} == {"EplAllReduce" if workers == 2 else ""}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.once
def test_a_divided_classifier_behind_features_of_rows(workers):
    with planning.capture() as graph:
        x, labels = tf.placeholder(tf.float32, [8, 4]), tf.placeholder(tf.int32, [8])
        with epl.replicate(2):
            features = tf.tanh(tf.matmul(x, tf.get_variable("first", [4, 6])))
        with epl.split(2):
            logits = tf.matmul(features, tf.get_variable("kernel", [6, 1000]))
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        trained(tf.reduce_mean(each))
    program, found = rows_of(graph, workers, 2 // workers, **COLOCATED)
    row, activations = 8 * 4, 8 * 6 * 4
    forward = [(e.operation, e.num_bytes) for e in found if e.phase == "forward"]
    # A part of the features, and three numbers for each row.
    assert sorted(forward) == [("all_gather", activations // 2), ("all_reduce", row), ("all_reduce", 2 * row)]
    backward = [(e.operation, e.num_bytes) for e in found if e.phase == "backward"]
    assert sorted(backward) == [("all_reduce", 4 * 6 * 4), ("reduce_scatter", activations)]
    assert bytes_by_axis(found) == {"shard": sum(size for _, size in forward + backward)}
    # A worker hands in what its devices have of it.
    handed_in = sorted((e.operation, e.num_bytes) for e in program.plan.collectives)
    others = [each for each in forward + backward if each[0] != "all_gather"]
    assert handed_in == sorted(others + [("all_gather", activations // workers)])
    text = exchanges_table(program, found)
    assert "along the axis shard: 5 exchanges" in text and "kernel            [6, 1000]  1" in text


@pytest.mark.once
def test_experts():
    with planning.capture() as graph:
        epl.set_default_strategy(epl.replicate(2))
        tokens = tf.placeholder(tf.float32, [4, 6, 64]) * tf.get_variable("gain", [64])
        y = tokens + split_models.experts(tokens, 4, 128, lambda: epl.split(2), capacity=2)
        trained(tf.reduce_mean(tf.square(tf.tanh(y) - 1.0)))
    _, found = rows_of(graph, 2, 1, **COLOCATED)
    routed = 4 * 4 * 2 * 64 * 4 // 2  # groups, experts, room, width, bytes; half of them on a device
    assert kinds(found, routed) == {("forward", "all_to_all"): 2, ("backward", "all_to_all"): 2}


@pytest.mark.once
def test_rows_of_a_divided_table():
    """Workers with one device each send one another ids, rows, and gradients of rows."""
    rows, width, asked = 4096, 64, 64 * 5
    with planning.capture() as graph:
        with epl.replicate(2):
            ids = tf.placeholder(tf.int64, [64, 5]) % rows
        with epl.split(2):
            table = tf.get_variable("table", [rows, width], use_resource=True)
            found = tf.nn.embedding_lookup(table, ids)
        with epl.replicate(2):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.reshape(found, [64, 5 * width]), 4)))
        tf.train.AdagradOptimizer(0.1).minimize(loss)
    program = planning.compiled(graph, 2, 1, **COLOCATED)
    (route,) = planning.of_op(program.graph, "EplRouteIds")
    sent = planning.of_op(program.graph, "EplAllToAll")
    assert sorted(node.attr["T"].type for node in sent) == [tf.float32, tf.float32, tf.int64]
    routed = program.graph.descendants([route.name], data_only=True)
    for node in sent:
        (given, _), (counts, _) = program.graph.inputs[node.name][:2]
        assert counts in routed and (given in routed or node.attr["T"].type == tf.float32)
    sizes = [each.num_bytes for each in program.plan.collectives if each.operation == "all_to_all"]
    assert sorted(sizes, key=lambda size: size or 0)[-1] == asked // 2 * width * 4


@pytest.mark.parametrize("workers, devices", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.once
def test_data_parallelism(workers, devices):
    with planning.capture() as graph:
        planning.sgd(planning.layers(3))
    program, found = rows_of(graph, workers, devices)
    size = sum(4 * tf.TensorShape(v.shape).num_elements() for v in program.variables.values() if v.is_trainable)
    assert {(e.operation, e.axis, e.devices) for e in found} == {("all_reduce", "data", workers * devices)}
    assert sum(e.num_bytes * e.times for e in found) == size
    rows = facts(program, found)["collectives"]
    assert {key for row in rows for key in row} == set(
        "name operation axis devices sent_by bytes times_per_step phase tensor wanted_by".split()
    )


@pytest.mark.parametrize("level", ["v1", "v3"])
@pytest.mark.once
def test_zero_hands_in_all_gradients_and_all_parameters(level):
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [8, 4])
        for index in range(4):
            x = tf.tanh(tf.matmul(x, tf.get_variable("kernel_%d" % index, [4, 4])))
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(x))
    _, found = rows_of(graph, 2, 1, zero__level=level)
    sent = collections.Counter()
    for each in found:
        sent[each.operation] += each.num_bytes * each.times
    kernels = 4 * 4 * 4 * 4
    assert sent == {"reduce_scatter": kernels, "all_gather": kernels // 2 * (2 if level == "v3" else 1)}
