"""Gradients in fewer bits between workers: which, how many bytes, in which order, and what is refused; nothing runs."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.plan.exchange.order import collective_keys
from epl.plan.report.plan_table import plan_table
from epl.program.collective import ALL_TO_ALL, GRADIENTS
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


def momentum(loss):
    return tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


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


def test_what_is_refused():
    with pytest.raises(UnsupportedError, match="communication.wire_dtype cannot be used with programs that assign"):
        compiled(by_hand)


@pytest.mark.parametrize("level", ["v1", "v2", "v3"])
@pytest.mark.parametrize("form, number_bytes, scale_bytes", [("int8", 1, 4), ("float16", 2, 0)])
def test_owners_get_their_gradients_in_fewer_bits(level, form, number_bytes, scale_bytes):
    program = compiled(momentum, form=form, communication__max_splits=1, zero__level=level)
    plan, (encode,) = program.plan, of_op(program.graph, "EplWireEncode")
    (decode,) = of_op(program.graph, "EplWireDecode")
    assert not of_op(program.graph, "EplWireSum") and not of_op(program.graph, "EplReduceScatter")
    owners, sizes = list(encode.attr["owners"].list.i), list(encode.attr["sizes"].list.i)
    assert owners == sorted(owners) and set(owners) == {0, 1} and sorted(sizes) == [4, 4, 16, 16]
    # Each owner gets its own from both, and no sum travels.
    own = [size for size, owner in zip(sizes, owners) if owner == 0]
    assert list(decode.attr["sizes"].list.i) == own and decode.attr["adds"].b and decode.attr["scale"].f == 0.5
    (sent,) = [each for each in plan.collectives if each.wire_dtype is not None]
    assert sent.operation == ALL_TO_ALL and sent.purpose == GRADIENTS
    assert sent.num_bytes == 40 * number_bytes + 4 * scale_bytes and sent.tensor_bytes == 40 * 4
    splits = tf.make_ndarray(program.graph.nodes[encode.name.replace("encode", "splits")].attr["value"].tensor)
    assert list(splits) == [
        sum(size * number_bytes + scale_bytes for size, owner in zip(sizes, owners) if owner == worker)
        for worker in (0, 1)
    ]
    # What is left over of sums is nothing.
    assert sorted(each.name.rsplit("/", 1)[1] for each in plan.added) == ["left"] * 4
    (strategy,) = [each for each in plan.strategies if each.key.startswith("communication.wire_dtype")]
    assert strategy.kept_bytes == 40 * 4 and strategy.sent_bytes == sent.num_bytes - 40 * 4


def test_owners_of_level_v0_get_whole_sums():
    program = compiled(momentum, form="int8", communication__max_splits=1, zero__level="v0")
    assert of_op(program.graph, "EplWireSum") and not program.plan.wire.to_owners


def test_gradients_that_something_else_takes_are_whole_for_owners_too():
    def with_one_gradient_for_two(loss):
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        kernel, (first, one), other_kernel, (_, other) = optimizer.compute_gradients(loss)
        optimizer.apply_gradients([kernel, (first, one), other_kernel])
        tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(first, other)])

    program = compiled(with_one_gradient_for_two, zero__level="v1", communication__fuse_size_mb=1e-5)
    groups = program.plan.wire.groups
    assert program.plan.wire.to_owners and len(program.plan.wire.to_owners) < len(groups)
    kept = {each.residual_of_sum for name in groups for each in groups[name] if name not in program.plan.wire.to_owners}
    assert {each.name for each in program.plan.added if each.name.count("residual_of_sum")} == kept


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
