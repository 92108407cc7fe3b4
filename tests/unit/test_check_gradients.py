"""Gradients of the first step are compared with those that nothing is computed again for."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import epl
from epl.capture.record import make_program
from epl.errors import ConfigError, GradientError
from epl.graph import tags
from epl.graph.index import parse_input
from epl.plan.facts.names import clone_name
from epl.program.program import CheckedGradient
from epl.session.first_gradients import FirstGradients
from epl.session.step import Run
from tests.helpers.checks import assert_same
from tests.helpers.planning import ROWS, capture, compiled, control_flow
from tests.unit.test_recompute import attention, branches, convolutions, dense, loops, minimize, mlp, with_dropout

pytestmark = pytest.mark.either_line

CHECK_ALONE = {"gradient_checkpoint__check_gradients": True}
CHECK = dict(CHECK_ALONE, gradient_checkpoint__type="auto")


def pairs(build, tampered=lambda graph: graph, config=CHECK, devices=1):
    """(CheckedGradients, their values) of the first step of a model on some devices of a worker."""
    with control_flow("v1"), capture(seed=5) as graph:
        loss = build()
        minimize(loss)
        program = compiled(make_program(graph), 1, devices, **config)
    width = next(n.attr["shape"].shape.dim[1].size for n in program.graph.nodes.values() if n.name == "x")
    with tf.Graph().as_default():
        tf.import_graph_def(tampered(program.graph).to_graph_def(tf.GraphDef), name="")
        options = tf.ConfigProto(
            device_count={"CPU": devices}, intra_op_parallelism_threads=1
        )  # several add up in an order of their own
        # Where it uses oneDNN, TensorFlow's optimizer fuses products of one of the two with what follows them.
        options.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
        with tf.Session(config=options) as session:
            firsts = [name for v in program.variables.values() for name in v.initializers]
            copies = [clone_name(name, index) for index in range(devices) for name in firsts]
            session.run([name for name in copies if name in program.graph.nodes])
            compared = [each.whole or (each.tensor, each.without) for each in program.checked]
            names = [tuple("%s:%d" % parse_input(tensor) for tensor in pair) for pair in compared]
            data = np.random.RandomState(3).normal(size=(ROWS, width)).astype(np.float32)
            return program.checked, session.run(names, {"x:0": data})


def test_updates_wait_for_the_copies_of_their_own_gradients():
    with control_flow("v1"), capture() as graph:
        loss, halves = mlp(), (tf.trainable_variables()[:6], tf.trainable_variables()[6:])
        for half in halves:
            tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=half)
        program = compiled(make_program(graph), 1, 1, **CHECK)
    (waits,) = [each.waits for key, each in program.plan.decisions.items() if key == "plan_checks"]
    calls = [{tags.get_int(program.graph.nodes[name], tags.APPLY_CALL) for name in each.writes} for each in waits]
    assert calls == [{0}, {1}] and [len(each.writes) for each in waits] == [len(half) for half in halves]


def test_equal_but_for_the_order_of_sums():
    """TensorFlow's graph optimizer may add up the two in orders of their own."""
    checked, values = pairs(attention)
    assert len(checked) > 4
    for each, (with_, without) in zip(checked, values):
        assert_same(with_, without, what=each.variable)
    FirstGradients().compare(checked, values)


@pytest.mark.parametrize("build", [with_dropout, convolutions, branches, loops], ids=lambda build: build.__name__)
def test_equal_to_the_last_bit(build):
    checked, values = pairs(build)
    assert len(checked) > 4
    for each, (with_, without) in zip(checked, values):
        np.testing.assert_array_equal(with_, without, err_msg=each.variable)
    FirstGradients().compare(checked, values)


def marked():
    """A model of which the user has marked a part."""
    x = tf.placeholder(tf.float32, [ROWS, 8], name="x")
    with epl.recompute():
        for i in range(3):
            x = dense(x, 8, i)
    return tf.reduce_mean(tf.square(dense(x, 8, 3)))


def test_what_the_user_marked_is_compared_too():
    checked, values = pairs(marked, config=CHECK_ALONE)
    assert len(checked) == 5  # the others need nothing that is computed again
    for each, (with_, without) in zip(checked, values):
        np.testing.assert_array_equal(with_, without, err_msg=each.variable)


def test_nothing_to_compare():
    with pytest.raises(ConfigError, match="has nothing to compare: .* or mark what .* with epl.recompute"):
        pairs(mlp, config=CHECK_ALONE)


def wrong(graph):
    """A Graph with a fault in what is computed again."""
    edit = graph.editor()
    copies = [n for n in graph.find("Tanh".__eq__) if n.startswith("epl_recompute")]
    edit.node(copies[-1]).op = "Sin"
    return edit.finish()


def test_the_first_one_that_differs_is_named():
    checked, values = pairs(mlp, wrong)
    with pytest.raises(GradientError, match="gradient '.*' of 'net/dense_.*is another one with recomputation"):
        FirstGradients().compare(checked, values)


def test_what_stands_in_a_branch_is_compared():
    with control_flow("v1"), capture(seed=5) as graph:
        minimize(branches())
        nodes = compiled(make_program(graph), 1, 1, **CHECK).graph.nodes
    assert any(name.startswith("epl_check/gradients/cond") and node.op == "Mul" for name, node in nodes.items())


def compare(with_, without):
    each = CheckedGradient("w", "g", "h")
    todo = FirstGradients()
    todo.compare([each], [(np.asarray(with_, np.float32), np.asarray(without, np.float32))])
    return todo


def test_another_order_of_sums_is_forgiven():
    compare([1.0, 1e-6], [1.0, 0.0])
    with pytest.raises(GradientError, match="differ by up to 0.01, and the largest entry is 1"):
        compare([1.0, 0.01], [1.0, 0.0])


def test_what_is_no_number_differs_from_numbers():
    compare([np.nan], [np.nan])
    with pytest.raises(GradientError):
        compare([np.nan], [1.0])


def test_each_is_compared_once():
    class Step(object):
        view = None
        run = Run(checked=(CheckedGradient("w", "g", "h"), CheckedGradient("v", "e", "f")))

    assert compare([1.0], [1.0]).of(Step) == list(Step.run.checked[1:])


def divided():
    with epl.split(2):
        return mlp()


def test_where_devices_divide_tensors_wholes_are_compared():
    checked, values = pairs(divided, devices=2)
    shapes = {each.variable: with_.shape for each, (with_, _) in zip(checked, values)}
    FirstGradients().compare(checked, values)
    assert shapes == {each.variable: with_.shape for each, (with_, _) in zip(*pairs(mlp))}
    with pytest.raises(GradientError, match="gradient '.*' of 'net/dense_.*is another one with recomputation"):
        FirstGradients().compare(*pairs(divided, wrong, devices=2))


def test_gradients_of_statistics_of_all_copies_are_computed_twice():
    with control_flow("v1"), capture(seed=5) as graph:
        minimize(convolutions())
        program = compiled(make_program(graph), 1, 2, communication__sync_batch_norm=True, **CHECK)
    gradients = [name for norm in program.plan.batch_norms for name in norm.gradients]
    assert {"epl_check/" + name for name in gradients if "epl_check" not in name} == {
        name for name in gradients if "epl_check" in name
    }
    assert len(gradients) == 2 * len(program.plan.batch_norms) > 0
