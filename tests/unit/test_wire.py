"""Gradients in fewer bits between workers: which, how many bytes, in which order, and what is refused; nothing runs."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.plan.exchange.order import collective_keys
from epl.plan.report.plan_table import plan_table
from tests.helpers import planning
from tests.helpers.planning import of_op


def compiled(build=planning.sgd, workers=2, devices=1, form="int8", **config):
    with planning.capture() as graph:
        build(planning.layers())
    return planning.compiled(graph, workers, devices, communication__wire_dtype=form, **config)


@pytest.mark.parametrize("form, number_bytes, scale_bytes", [("int8", 1, 4), ("bfloat16", 2, 0)])
def test_shares_of_all_gradients_are_exchanged_twice(form, number_bytes, scale_bytes):
    program = compiled(form=form, communication__max_splits=1)
    (encode,), (add_up,) = of_op(program.graph, "EplWireEncode"), of_op(program.graph, "EplWireSum")
    assert not of_op(program.graph, "EplAllReduce")
    assert sorted(encode.attr["sizes"].list.i) == [4, 4, 16, 16] and add_up.attr["scale"].f == 0.5
    assert encode.attr["wire_dtype"].s == form.encode()
    # Two shares of each: of kernels 8 numbers, of biases 2.
    sent = 2 * ((8 + 8 + 2 + 2) * number_bytes + 4 * scale_bytes)
    assert program.plan.bytes_per_step() == sent
    (strategy,) = [each for each in program.plan.strategies if each.key.startswith("communication.wire_dtype")]
    assert strategy.sent_bytes == sent - 40 * 4 and strategy.kept_bytes == 40 * 4 + 20 * 4
    assert "4 gradients travel as %s" % form in plan_table(program.plan)


def test_each_update_takes_what_came_of_its_own_gradient():
    program = compiled(communication__max_splits=1)
    (decode,) = of_op(program.graph, "EplWireDecode")
    shapes = [tuple(dim.size for dim in shape.dim) for shape in decode.attr["shapes"].list.shape]
    taken = {}
    for name in program.graph.find("ApplyGradientDescent".__eq__):
        variable, gradient = program.graph.inputs[name][0].node, program.graph.inputs[name][2]
        assert gradient.node == decode.name
        taken[gradient.index] = program.variables[variable].shape
    assert sorted(shapes) == [(4,), (4,), (4, 4), (4, 4)] and [taken[place] for place in range(4)] == shapes


def test_sums_come_when_the_next_gradients_are_on_their_way():
    program = compiled(communication__fuse_size_mb=1e-5, communication__num_communicators=1)
    keys = sorted(collective_keys(program.plan, program.source.graph).values())
    count = len(program.plan.aggregation.groups)
    want = ["to_sum"] + ["to_sum", "sums"] * (count - 1) + ["sums"]
    assert count > 2 and [key[1].rsplit("/", 1)[1] for key in keys] == want


def test_one_worker_sends_nothing():
    program = compiled(workers=1, devices=2)
    assert not of_op(program.graph, "EplWireEncode") and not program.plan.added


def by_hand(loss):
    variables = tf.trainable_variables()
    for variable, gradient in zip(variables, tf.gradients(loss, variables)):
        tf.assign_sub(variable, 0.1 * gradient)


@pytest.mark.parametrize(
    "build, config, text",
    [
        (by_hand, {}, "communication.wire_dtype cannot be used with programs that assign"),
        (planning.sgd, {"zero__level": "v1"}, "cannot be used with communication.wire_dtype='int8'"),
    ],
)
def test_what_is_refused(build, config, text):
    with pytest.raises(UnsupportedError, match=text):
        compiled(build, **config)


def in_stages():
    with planning.capture() as graph:
        with epl.replicate(1):
            hidden = tf.layers.dense(planning.batch(), 4)
        with epl.replicate(1):
            planning.sgd(tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1))))
    return graph


def test_stages_of_a_worker_send_their_gradients_together():
    program = planning.compiled(in_stages(), 2, 2, communication__wire_dtype="float16")
    (encode,) = of_op(program.graph, "EplWireEncode")
    assert sorted(encode.attr["sizes"].list.i) == [1, 4, 4, 16] and encode.attr["R"].i == 1


def test_stages_of_several_workers_each_send_their_own():
    program = planning.compiled(in_stages(), 4, 1, communication__wire_dtype="float16")
    (encode,) = of_op(program.graph, "EplWireEncode")
    assert sorted(encode.attr["sizes"].list.i) == [4, 16] and encode.attr["workers"].i == 2
    sent = [each for each in program.plan.collectives if each.wire_dtype is not None]
    assert [(each.stage, each.takes_part) for each in sent] == [(0, True)] * 2 + [(1, False)] * 2
    (strategy,) = [each for each in program.plan.strategies if each.key.startswith("communication.wire_dtype")]
    assert strategy.sent_bytes == -20 * 2 and strategy.kept_bytes == 20 * 4 + 10 * 4


def test_stages_of_different_device_counts_in_several_workers_are_refused():
    with planning.capture() as graph:
        with epl.replicate(2):
            hidden = tf.layers.dense(planning.batch(), 4)
        with epl.replicate(1):
            planning.sgd(tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1))))
    with pytest.raises(UnsupportedError, match="where a copy of the model lies in several workers, in this version"):
        planning.compiled(graph, 6, 1, communication__wire_dtype="float16")


@pytest.mark.parametrize("workers, devices, shard_ranks", [(2, 2, 2), (4, 1, 1)])
def test_each_part_of_a_divided_variable_travels_by_itself(workers, devices, shard_ranks):
    with planning.capture() as graph, epl.split(2):
        kernel = epl.shard(tf.get_variable("kernel", [4, 5], use_resource=True), 1)
        planning.sgd(tf.reduce_mean(tf.square(tf.matmul(planning.batch(8, 4), kernel))))
    program = planning.compiled(graph, workers, devices, communication__wire_dtype="int8")
    sizes = [list(node.attr["sizes"].list.i) for node in of_op(program.graph, "EplWireEncode")]
    assert sizes == [[12], [8]][:shard_ranks]  # of the first part 3 columns, of the second 2
    assert all(node.attr["workers"].i == 2 for node in of_op(program.graph, "EplWireEncode"))
    left = {each.name: each.shape for each in program.plan.added if each.name.count("/left/")}
    assert sorted(left.values(), reverse=True) == [(4, 3), (4, 2)][:shard_ranks]
    assert program.plan.bytes_per_step() == sum(2 * (-(-size // 2) + 4) for (size,) in sizes)
