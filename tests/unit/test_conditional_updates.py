"""Optimizers in a branch that is chosen by what their gradients are: all copies of the model choose alike."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.errors import UnsupportedError
from epl.graph.index import node_of
from tests.helpers.control_flow import control_flow
from tests.helpers.planning import capture, compiled, layers, of_op, plan_of, variable


def finite(gradients):
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.is_finite(g)) for g in gradients]))


def trained(condition, clip=False, resource=False):
    """Captures a model of two layers whose optimizer runs where `condition(gradients, loss)` holds."""
    with control_flow("v1"), capture() as graph:
        loss = layers(2, resource, x=tf.placeholder(tf.float32, [None, 4], "x"))
        optimizer = tf.train.AdamOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        chosen = condition([gradient for gradient, _ in pairs], loss)
        pairs = [(tf.clip_by_value(g, -0.1, 0.1), v) for g, v in pairs] if clip else pairs
        tf.cond(chosen, lambda: optimizer.apply_gradients(pairs), tf.no_op)
    return graph


@pytest.mark.parametrize("resource", [False, True])
def test_the_condition_is_made_of_reduced_gradients(resource):
    program = compiled(trained(lambda gradients, _: finite(gradients), resource=resource), 2, 1)
    graph = program.graph
    reductions = [node.name for node in of_op(graph, "EplAllReduce")]
    tested = of_op(graph, "IsFinite")
    assert len(tested) == 4 and all(node_of(node.input[0]) in reductions for node in tested)
    updates = of_op(graph, "ResourceApplyAdam" if resource else "ApplyAdam")
    for update in updates:
        switch = graph.nodes[node_of(update.input[-1])]
        assert switch.op == "Switch" and node_of(switch.input[0]) in reductions


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_what_is_clipped_is_judged_before_it(micro_batches):
    """With clip_after_allreduce gradients are reduced where tf.gradients returned them, for the condition too."""
    options = {"communication__clip_after_allreduce": True, "pipeline__num_micro_batch": micro_batches}
    program = compiled(trained(lambda gradients, _: finite(gradients), clip=True), 1, 2, **options)
    reductions = [node.name for node in of_op(program.graph, "EplAllReduce")]
    tested = of_op(program.graph, "IsFinite")
    assert reductions and all(node_of(node.input[0]) in reductions for node in tested)


@pytest.mark.parametrize("layout", [(2, 1), (1, 2)])
def test_a_condition_that_differs_between_copies_is_refused_by_name(layout):
    graph = trained(lambda _, loss: tf.is_finite(loss))
    with pytest.raises(UnsupportedError, match="runs in a branch whose condition 'IsFinite' differs between") as error:
        plan_of(graph, *layout)
    assert "made inside of a branch or a loop" in str(error.value) and "learning rate of 0" in str(error.value)


def test_gradients_that_are_clipped_later_are_refused_with_the_key_that_helps():
    graph = trained(lambda gradients, _: finite(gradients), clip=True)
    with pytest.raises(UnsupportedError, match="with communication.clip_after_allreduce=True"):
        plan_of(graph, 2, 1)


def test_a_condition_may_take_what_is_the_same_in_all_copies():
    graph = trained(lambda gradients, _: tf.logical_and(finite(gradients), variable("gate", []) > 0.0))
    assert np.size(plan_of(graph, 2, 1)[1].aggregation.groups)
