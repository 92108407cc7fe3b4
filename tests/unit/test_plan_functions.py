"""Small functions of plan, partition and passes by themselves, at the edges that models seldom come to."""

import collections
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.cluster.machine import Link
from epl.graph import tags
from epl.graph.index import NodeInput
from epl.graph.node_defs import Type, constant, make_node
from epl.partition import conversion, values
from epl.passes.copies import share_batches
from epl.plan.cost import cost
from epl.plan.facts import merging, numbers, row_kinds
from epl.plan.memory import forward
from epl.plan.report import strategy_rows
from tests.helpers import planning
from tests.helpers.planning import capture, of_op, sgd, variable

pytestmark = pytest.mark.either_line

FLOAT32, INT32, INT64 = 1, 3, 9
LOCAL = {"local_sgd__k_steps": 8}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("wanted", [[5], [-1, 2, 7], [3, 3, 3, 3]])
def test_whole_numbers_of_constants(dtype, wanted):
    """However a constant has its values: as bytes, one by one, or once for all."""
    number = INT32 if dtype is np.int32 else INT64
    node = constant("c", wanted if len(wanted) > 1 else wanted[0], number)
    assert merging._integers(node) == wanted
    as_bytes = make_node("Const", "c", dtype=Type(number))
    as_bytes.attr["value"].tensor.dtype = number
    as_bytes.attr["value"].tensor.tensor_content = np.array(wanted, dtype).tobytes()
    assert merging._integers(as_bytes) == wanted
    assert merging._integers(make_node("Identity", "c")) is None


class NoFacts(object):
    def shape(self, tensor):
        return ()

    def value(self, tensor):
        return None


@pytest.mark.parametrize(
    "op, wanted", [("Sub", 4.0), ("AddV2", 10.0), ("Mul", 21.0), ("RealDiv", 7 / 3), ("Maximum", 7.0)]
)
def test_numbers_that_follow_from_constants(op, wanted):
    with tf.Graph().as_default() as graph:
        getattr(tf.raw_ops, op)(x=tf.constant(7.0), y=tf.constant(3.0), name="z")
    found = numbers.number(planning.Graph.from_graph_def(graph.as_graph_def()), NoFacts(), NodeInput("z", 0))
    assert found == pytest.approx(wanted)


def test_what_changes_a_variable_is_of_its_kind():
    held = collections.namedtuple("Held", "kind shape")
    one, other, third = held("rows", (None, 3)), held("whole", (3,)), held("rows", (None, 4))
    assert row_kinds._changed([one, one]) == one and row_kinds._changed([one]) == one
    for taken in ([one, other], [one, third], [one, one, other], [one, other, one]):
        assert row_kinds._changed(taken) is None


@pytest.mark.parametrize("shape, known", [([6], True), ([2, 3], True), ([1, 2, 3], False), ([2, None], False)])
def test_values_of_what_is_reshaped(shape, known):
    found = values._reshape(None, np.arange(6), np.array(shape, object))
    assert np.array_equal(found, np.arange(6).reshape(shape)) if known else found is None


def test_ids_cost_what_they_take():
    link = Link(latency_s=1e-5, bytes_per_s=1e9)
    rows, both = conversion.route_cost(800, 0, 2, link), conversion.route_cost(800, 80, 2, link)
    ids = conversion.route_cost(80, 0, 2, link)
    assert rows > 0 and both == pytest.approx(rows + ids)


def source(key, *shapes):
    node = make_node("IteratorGetNext", "next")
    node.attr["output_types"].list.type.extend([FLOAT32] * 3)
    for shape in shapes:
        made = node.attr[key].list.shape.add(unknown_rank=shape is None)
        for size in shape or ():
            made.dim.add(size=size)
    return node


def test_what_of_a_batch_can_be_divided():
    """Not scalars; what has a first dimension, or nobody knows what."""
    node = source("output_shapes", (4, 2), (), None)
    assert [share_batches._divisible(node, index) for index in range(3)] == [True, False, True]
    node = source("output_shapes", (), (4,))
    assert [share_batches._divisible(node, index) for index in range(3)] == [False, True, True]
    assert [share_batches._divisible(source("output_shapes"), index) for index in range(3)] == [True] * 3


def test_constants_that_may_stand_for_data():
    def of(values, dtype):
        with tf.Graph().as_default():
            return tf.constant(values, dtype).op.node_def

    rows = of([[1.0, 2.0], [3.0, 4.0]], tf.float32)
    few, whole_numbers = of([1.0, 2.0], tf.float32), of([[1, 2], [3, 4]], tf.int32)
    assert [forward._is_array(each) for each in (rows, few, whole_numbers)] == [True, False, False]
    assert forward._is_array(make_node("Identity", "x", ["y"], T=Type(FLOAT32)))


def test_references_are_of_variables_alone():
    with capture() as graph:
        variable("w")
        variable("r", use_resource=True)
        tf.placeholder(tf.float32, [4], name="x")
    nodes = planning.Graph.from_graph_def(graph.as_graph_def())
    found = [text for text in ("w", "r", "x", "^w") if forward._is_reference(nodes, text)]
    assert found == ["w"]


def test_a_product_of_less_than_matrices_costs_nothing():
    class Sizes(object):
        def shape(self, tensor):
            return {"x": (3,), "y": (2, 3), "out": (2, 4)}[tensor]

    node = make_node("MatMul", "m", transpose_a=False)
    flops = cost._matmul("transpose_a")
    assert flops(node, ["x"], "out", Sizes()) == 0
    assert flops(node, ["y"], "out", Sizes()) == 2 * 8 * 3


def averaged(**config):
    with capture() as graph:
        sgd(planning.layers())
    return planning.compiled(graph, 1, 2, **config)


def test_late_averages_keep_what_was_and_nobody_else():
    for overlap in (False, True):
        program = averaged(local_sgd__overlap=overlap, local_sgd__average_slots=False, **LOCAL)
        kept = strategy_rows._of_local_sgd(program, program.plan)[-1]
        assert kept == (3 * program.plan.local_sgd.num_bytes if overlap else 0)
        assert any("snapshot" in name for name in program.graph.nodes) == overlap


def test_the_first_averages_come_no_later_than_the_others():
    for first, wanted in ((2, 2), (50, 8), (None, 8)):
        more = {} if first is None else {"local_sgd__init_k_steps": first}
        plan = averaged(local_sgd__adaptive=True, **dict(LOCAL, **more)).plan
        assert plan.local_sgd.first_steps == wanted


@pytest.mark.parametrize(
    "optimizer, said", [(tf.train.GradientDescentOptimizer, True), (tf.train.AdamOptimizer, False)]
)
def test_zero_says_that_there_is_nothing_to_divide(caplog, optimizer, said):
    with capture() as graph, caplog.at_level(logging.WARNING, "epl"):
        optimizer(0.1).minimize(planning.layers())
        planning.plan_of(graph, 1, 2, zero__level="v0")
    assert ("there is nothing to divide" in caplog.text) == said


@pytest.mark.parametrize("clip, later", [(True, False), (True, True), (False, False)])
def test_clipping_before_aggregation_is_told(caplog, clip, later):
    with capture() as graph, caplog.at_level(logging.WARNING, "epl"):
        made = tf.train.GradientDescentOptimizer(0.1)
        gradients, variables = zip(*made.compute_gradients(planning.layers()))
        gradients = tf.clip_by_global_norm(gradients, 1.0)[0] if clip else [2.0 * each for each in gradients]
        made.apply_gradients(list(zip(gradients, variables)))
        planning.plan_of(graph, 1, 2, communication__clip_after_allreduce=later)
    assert ("gradients are clipped" in caplog.text) == (clip and not later)


def test_state_is_shared_by_groups_of_workers():
    with capture() as graph:
        tf.train.AdamOptimizer(0.1).minimize(planning.layers())
    for degree, workers in ((2, 2), (0, 4), (4, 4), (1, 1)):
        zero = planning.plan_of(graph, 4, 1, zero__level="v0", zero__degree=degree)[1].zero
        assert (zero.shard_group.num_workers, zero.replicate_group.num_workers) == (workers, 4 // workers), degree


def test_copies_say_what_they_are():
    with capture() as graph:
        loss = planning.layers()
        epl.add_to_collection(loss, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
        sgd(loss)
    whole = planning.compiled(graph, 1, 2).whole
    reads = [
        tags.get_str(node, tags.ROLE) for node in of_op(whole, "IteratorGetNext") if tags.get_int(node, tags.INSTANCE)
    ]
    assert reads == ["source"]


def test_what_is_copied_to_the_device_says_so():
    with capture() as graph:
        sgd(planning.layers())
    whole = planning.compiled(graph, 1, 1, offload__level="v0").whole
    copies = [node for node in of_op(whole, "PreventGradient") if "offload" in node.name]
    assert copies and all(tags.get_str(node, tags.ROLE) for node in copies)
