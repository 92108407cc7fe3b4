"""Loops and branches of control flow v1 that take what epl.split divides: what is exchanged for them, and where."""

import functools

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.graph.control_flow import inside_control_flow
from epl.graph.index import Graph, node_of
from epl.plan.report.plan_table import plan_table
from epl.program.placement import sharded
from tests.helpers import planning
from tests.helpers.planning import capture, compiled, control_flow

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def test_what_stands_in_loops_and_branches():
    with control_flow("v1"), tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [4], name="x")

        def body(i, s):
            s = tf.cond(i < 2, lambda: tf.tanh(s, name="deep"), lambda: s)
            return i + 1, tf.exp(s, name="behind_inner")

        def condition(i, s):
            return tf.less(tf.reduce_sum(s, name="decides"), tf.cast(i, tf.float32))

        _, s = tf.while_loop(condition, body, [0, x])
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(s, name="in_branch"), lambda: s)
        tf.gradients(tf.square(y, name="behind"), x)
    index = Graph.from_graph_def(graph.as_graph_def())
    inside = inside_control_flow(index)
    for name in ("deep", "behind_inner", "decides", "in_branch"):
        assert [each for each in inside if each.split("/")[-1] == name], name
    assert "behind" not in inside and "x" not in inside
    ends = {name for name in index.find(["Exit", "Merge"].__contains__) if name not in inside}
    assert {op.name for op in (s.op, y.op)} <= ends
    assert not index.descendants(["behind"], data_only=True) - inside <= ends  # its gradient begins outside


def loss_of(x, take):
    """A loss of a layer that is divided, of what `take` makes of it, and of a second layer."""
    with tf.variable_scope("layers"):
        hidden = tf.tanh(tf.matmul(x, tf.get_variable("first", [4, 6])), name="hidden")
        hidden = tf.ensure_shape(take(hidden), [None, 6])
        return tf.reduce_mean(tf.square(tf.matmul(hidden, tf.get_variable("second", [6, 5]))))


def branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: 2.0 * x)


def loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s)), [0, x])[1]


@pytest.mark.parametrize("take", [branch, loop])
def test_they_get_whole_inputs_and_are_listed(take):
    with control_flow("v1"), capture() as graph:
        with epl.split(2):
            loss = loss_of(tf.placeholder(tf.float32, [8, 4]), take)
        planning.sgd(loss)
    program = compiled(graph)
    done = program.plan.partitioned
    assert done.placements["layers/hidden"] == sharded(1)
    opens = {each.op for each in done.without_rule}
    assert opens == ({"Switch"} if take is branch else {"Enter"})
    assert "takes whole inputs" in plan_table(program.plan)
    inside = inside_control_flow(done.graph)
    assert not [each for each in done.collectives if each.node in inside]
    assert not [tensor for tensor in done.placements if node_of(tensor) in inside]


def test_rows_stay_divided_before_a_branch_of_what_is_split():
    with control_flow("v1"), capture() as graph:
        with epl.replicate(2):
            x = tf.tanh(tf.matmul(tf.placeholder(tf.float32, [8, 4]), tf.get_variable("w", [4, 4])), name="features")
        with epl.split(2):
            loss = loss_of(x, branch)
        planning.sgd(loss)
    done = compiled(graph, **COLOCATED).plan.partitioned
    assert done.placements["features"] == sharded(0) and done.placements["layers/hidden"] == sharded(1)


def hinted_inside(hidden):
    return tf.cond(tf.reduce_sum(hidden) > 0, lambda: epl.shard(tf.exp(hidden), 1), lambda: hidden)


def changed_inside(hidden, hint=lambda variable: variable):
    """The branch gives back the mean of what it has assigned to a variable that a product divides."""
    state = hint(tf.get_variable("state", [6, 6], use_resource=False))
    hidden = tf.matmul(hidden, state)
    given = tf.cond(
        tf.reduce_sum(hidden) > 0, lambda: tf.reduce_mean(tf.assign(state, 2.0 * state)), lambda: tf.constant(1.0)
    )
    return hidden * given


@pytest.mark.parametrize("take", [hinted_inside, changed_inside])
def test_what_would_be_exchanged_inside_is_refused(take):
    with control_flow("v1"), capture() as graph:
        with epl.split(2):
            loss = loss_of(tf.placeholder(tf.float32, [8, 4]), take)
        planning.sgd(loss)
    with pytest.raises(UnsupportedError, match=r"exchange in a loop or a branch, and .*epl\.whole"):
        compiled(graph)


def test_epl_whole_is_the_way_out():
    with control_flow("v1"), capture() as graph:
        with epl.split(2):
            take = functools.partial(changed_inside, hint=epl.whole)
            loss = loss_of(tf.placeholder(tf.float32, [8, 4]), take)
        planning.sgd(loss)
    done = compiled(graph).plan.partitioned
    assert done.placements["layers/hidden"] == sharded(1) and "layers/state" not in done.placements


def test_a_variable_that_a_loop_changes_stays_whole():
    """A loop takes a reference to it, of which there are no parts."""
    with control_flow("v1"), capture() as graph:
        with epl.split(2):
            state = tf.get_variable("state", [4, 4], use_resource=False)
            x = tf.matmul(tf.placeholder(tf.float32, [8, 4]), state)

            def body(i):
                with tf.control_dependencies([tf.assign(state, 0.5 * state)]):
                    return tf.identity(i) + 1

            with tf.control_dependencies([tf.while_loop(lambda i: i < 2, body, [0])]):
                loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(x), tf.get_variable("kernel", [4, 6]))))
        planning.sgd(loss, var_list=[v for v in tf.trainable_variables() if v.op.name == "kernel"])
    done = compiled(graph).plan.partitioned
    assert "kernel" in done.placements and "state" not in done.placements
