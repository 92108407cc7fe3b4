"""Merged state: what becomes of moving averages, counters and metrics, and of values from checkpoints."""

import logging

import pytest
import tensorflow.compat.v1 as tf

from epl.errors import UnsupportedError
from epl.graph.index import node_of
from epl.program.placement import OWN, Placed
from epl.rules.effects import is_write
from tests.helpers import planning
from tests.helpers.planning import capture, control_flow, plan_of, variable


def state_of(model, plan):
    """dict of variable to "mean", "sum", "max" or "min"; of another node where its input is merged, that node."""
    found = {}
    for group in plan.state:
        for write, _ in group.consumers:
            node = model.graph.nodes[write]
            found[node_of(node.input[0]) if is_write(node.op) else write] = group.how
    return found


@pytest.mark.parametrize("resource", [False, True])
def test_moving_averages_and_counters(resource):
    with capture() as graph:
        x = planning.batch()
        mean = tf.reduce_mean(x, 0)
        moving = variable("moving", [4], trainable=False, use_resource=resource)
        tf.assign_sub(moving, 0.1 * (moving - mean))
        last = variable("last", [4], trainable=False, use_resource=resource)
        tf.assign(last, mean)
        rows = tf.get_variable("rows", [], tf.int64, tf.zeros_initializer(), trainable=False, use_resource=resource)
        tf.assign_add(rows, tf.cast(tf.reduce_sum(x), tf.int64))
        steps = tf.get_variable("steps", [], tf.int64, tf.zeros_initializer(), trainable=False, use_resource=resource)
        tf.assign_add(steps, 1)
        total = tf.get_variable("total", [], tf.float32, tf.zeros_initializer(), trainable=False,
                                use_resource=resource, collections=[tf.GraphKeys.LOCAL_VARIABLES])  # fmt: skip
        tf.assign_add(total, tf.reduce_sum(x))
        planning.sgd(planning.layers(x=x), global_step=tf.train.get_or_create_global_step())
    model, plan = plan_of(graph)
    assert state_of(model, plan) == {"moving": "mean", "last": "mean", "rows": "sum", "total": "sum"}


@pytest.mark.parametrize("resource", [False, True])
def test_epochs_of_a_queue_are_left_to_its_worker(resource):
    with capture() as graph:
        with tf.variable_scope("", use_resource=resource):
            row = tf.train.input_producer(tf.ones([8, 4]), num_epochs=2).dequeue()
        x = tf.train.batch([row], 2)
        planning.sgd(planning.layers(x=x, resource=resource), global_step=tf.train.get_or_create_global_step())
        tf.FIFOQueue(4, tf.int64, shapes=[[]]).enqueue(tf.train.get_global_step() + 1)
    _, plan = plan_of(graph)
    assert plan.analysis.of_queues == {"input_producer/limit_epochs/epochs"}
    assert "global_step" in plan.variables and "global_step" in plan.analysis.cloned
    touched = set(plan.analysis.writes) | plan.analysis.cloned | set(filter(plan.is_sent, plan.variables))
    assert not any("input_producer" in name for name in touched)
    assert plan.placed("input_producer/limit_epochs/epochs") == Placed(data=OWN)


def test_metrics_are_sums():
    with capture() as graph:
        x = planning.batch()
        tf.metrics.mean(x, name="the_mean")
        tf.metrics.accuracy(tf.cast(x, tf.int64), tf.cast(x * 0.5, tf.int64))
    model, plan = plan_of(graph)
    assert plan.state and {group.how for group in plan.state} == {"sum"}
    assert {"the_mean/total", "accuracy/total"} <= set(state_of(model, plan))


def test_batch_normalization_merges_its_averages(caplog):
    with capture() as graph:
        x = planning.batch()
        y = tf.layers.batch_normalization(tf.matmul(x, variable("w")), training=True)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            planning.sgd(tf.reduce_mean(tf.square(y)), global_step=tf.train.get_or_create_global_step())
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = plan_of(graph)
    assert sum(len(group.values) for group in plan.state) == 2 and {group.how for group in plan.state} == {"mean"}
    assert [record for record in caplog.records if record.name == "epl"] == []


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_recurrent_state_in_a_variable_is_warned_of(resource, copies, caplog):
    with capture() as graph:
        x = planning.batch()
        state = variable("state", [4], trainable=False, use_resource=resource)
        unread = variable("unread", [4], trainable=False, use_resource=resource)
        after = tf.tanh(variable("gain", [4]) * (x[0] + state))
        with tf.control_dependencies([tf.assign(state, after), tf.assign(unread, after)]):
            planning.sgd(tf.reduce_sum(after))
    with caplog.at_level(logging.WARNING, "epl"):
        plan_of(graph, workers=copies, devices=1)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 * (copies - 1)
    assert all("changes 'unread' by" in text for text in messages[1:])
    assert all("computes with 'state'," in text and "LOCAL_CONCAT_OBJECTS" in text for text in messages[:1])


def test_how_a_value_is_made_says_how_it_is_merged(caplog):
    with capture() as graph:
        x = planning.batch()
        local = dict(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        loss = tf.reduce_mean(tf.square(x), name="one_loss")

        def held(name, **kwargs):
            return variable(name, [], trainable=False, **kwargs)

        average = variable("average", [], **local)
        tf.assign_sub(average, (average - loss) * 0.1)
        combined = variable("combined", [], **local)
        tf.assign(combined, 0.9 * combined + 0.1 * loss)
        largest = held("largest")
        tf.assign(largest, tf.maximum(largest, tf.reduce_max(x)))
        smallest = held("smallest")
        tf.assign(smallest, tf.minimum(smallest, tf.reduce_min(x)))
        best = held("best")
        tf.assign(best, tf.minimum(best, loss, name="better"))
        counted = held("counted")
        tf.assign(counted, tf.add(counted, tf.reduce_sum(x), name="more"))
        last = held("last")
        tf.assign(last, x[0, 0])
        planning.sgd(planning.layers(x=planning.batch()))
    with caplog.at_level(logging.WARNING, "epl"):
        model, plan = plan_of(graph)
    assert state_of(model, plan) == {
        "average": "mean", "combined": "mean", "largest": "max", "smallest": "min", "better": "mean",
        "more": "sum", "last": "mean",
    }  # fmt: skip
    (message,) = [record.getMessage() for record in caplog.records]
    assert "changes 'last' by" in message and "averaged" in message


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_changes_in_control_flow_are_warned_of(version, caplog):
    with control_flow(version), capture() as graph:
        x = planning.batch()
        moving = variable("moving", [4], trainable=False, use_resource=True)
        value = tf.reduce_mean(x, 0)
        tf.cond(tf.reduce_sum(x) > 0, lambda: tf.assign(moving, value), lambda: tf.identity(moving))
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = plan_of(graph)
    assert plan.state == ()
    (record,) = caplog.records
    assert "cannot be merged" in record.getMessage() and "cond" in record.getMessage()


def test_restored_values_are_first_values():
    """An assignment of what a checkpoint holds runs once, also when it waits for something."""
    with capture() as graph:
        v = variable("v")
        with tf.control_dependencies([tf.no_op()]):
            restored = tf.raw_ops.RestoreV2(prefix="p", tensor_names=["v"], shape_and_slices=[""], dtypes=[tf.float32])
            tf.assign(v, restored[0], name="from_file")
            graph.get_operation_by_name("from_file")._add_control_input(tf.no_op())
        planning.sgd(planning.layers())
    _, plan = plan_of(graph)
    assert plan.analysis.initial_writes["from_file"] == "v"


def test_a_batch_of_a_fixed_size_differs_between_the_workers():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [8, 4])
        moving = variable("moving", [4], trainable=False)
        tf.assign_sub(moving, 0.1 * (moving - tf.reduce_mean(x, 0)))
        planning.sgd(planning.layers(x=x))
    model, plan = plan_of(graph)
    assert state_of(model, plan) == {"moving": "mean"}


def test_a_value_that_is_fed_to_an_assignment_is_no_batch():
    with capture() as graph:
        loaded = variable("loaded", [4], trainable=False)
        value = tf.placeholder(tf.float32)
        tf.assign(loaded, value, validate_shape=False)
        planning.sgd(planning.layers(x=planning.batch()))
    model, plan = plan_of(graph)
    assert state_of(model, plan) == {}
    assert value.op.name not in plan.analysis.cloned  # all copies are given the same


def test_a_staging_area_cannot_serve_several_copies():
    with capture() as graph:
        area = tf.contrib.staging.StagingArea([tf.float32], [[8, 4]]) if hasattr(tf, "contrib") else None
        if area is None:
            x = tf.raw_ops.Unstage(dtypes=[tf.float32])[0]
            x.set_shape([8, 4])
        else:
            x = area.get()
        planning.sgd(planning.layers(x=x))
    with pytest.raises(UnsupportedError, match="staging area.*2 copies"):
        plan_of(graph)
    assert plan_of(graph, workers=2, devices=1)[1].mesh.copies.size == 2
