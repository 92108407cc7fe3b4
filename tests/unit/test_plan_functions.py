"""Small functions of plan, partition and passes by themselves, at the edges that models seldom come to."""

import collections
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.cluster.machine import NOMINAL, Link
from epl.graph import tags
from epl.graph.index import NodeInput
from epl.graph.node_defs import Type, constant, make_node
from epl.partition import conversion, values
from epl.partition.facts import Facts
from epl.partition.lookup_gradients import lists_of_rows
from epl.passes.copies import share_batches
from epl.plan.cost import cost
from epl.plan.cost.device_memory import ACTIVATIONS, KINDS
from epl.plan.estimate.lifetimes import lives
from epl.plan.estimate.prices import Price, Prices
from epl.plan.facts import merging, numbers, row_kinds
from epl.plan.facts.analysis import analyse
from epl.plan.facts.loops import find_loops
from epl.plan.facts.trip_counts import of_all_trips
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


def test_zero_names_what_it_leaves_whole(caplog):
    """A variable whose size nobody knows; one that is known to be empty is not worth a word."""
    with capture() as graph:
        odd = tf.get_variable("odd", initializer=lambda: tf.ones([4]), validate_shape=False, use_resource=False)
        empty = tf.get_variable("empty", [0])
        loss = planning.layers(1) + tf.reduce_mean(planning.batch()) * (tf.reduce_sum(odd) + tf.reduce_sum(empty))
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with caplog.at_level(logging.WARNING):
        plan = planning.plan_of(graph, 2, 1, zero__level="v0")[1]
    (said,) = [record.getMessage() for record in caplog.records if "stays whole" in record.getMessage()]
    assert "the state of 'odd' stays whole on every device" in said
    assert {name for update in plan.zero.updates for name in update.members} >= {"Momentum/update_w0/ApplyMomentum"}


def test_what_fills_queues_is_not_averaged():
    """Each copy fills its own."""
    with capture() as graph:
        filled = tf.get_variable("filled", [], initializer=tf.zeros_initializer(), trainable=False)
        queue = tf.FIFOQueue(4, tf.float32, [[]])
        queue.enqueue(tf.assign_add(filled, tf.reduce_sum(planning.batch())))
        rate = tf.get_variable("rate", [], initializer=tf.zeros_initializer(), trainable=False)
        loss = planning.layers(1)
        tf.group(sgd(loss + queue.dequeue()), tf.assign(rate, loss))
    plan = planning.plan_of(graph, 2, 1, **LOCAL)[1]
    assert plan.local_sgd.variables == {"w0", "b0", "rate"}


def test_generators_keep_a_state_of_each_copy():
    with capture() as graph:
        with tf.variable_scope("", use_resource=True):
            generator, x = tf.random.experimental.Generator.from_seed(3), planning.batch()
            count = tf.cast(tf.reduce_max(x), tf.int32)  # how many it draws the data says
            sgd(planning.layers(1, x=x + tf.reduce_sum(generator.normal([count]))))
    plan = planning.plan_of(graph, 2, 1, **LOCAL)[1]
    assert plan.local_sgd.variables == {"w0", "b0"}


def test_what_only_waits_takes_no_statistic():
    def tensors_in_common(waits):
        with capture() as graph:
            x, w, other = planning.batch(), variable("w"), variable("other")
            (first,) = tf.gradients(tf.reduce_sum(tf.matmul(x, other)), other)
            hidden = tf.matmul(x, w)
            mean, variance = tf.nn.moments(hidden, [0])
            loss = tf.reduce_mean(tf.square((hidden - mean) * tf.rsqrt(variance + 1.0)))
            optimizer = tf.train.GradientDescentOptimizer(0.1)
            with tf.control_dependencies([first] if waits else []):
                gradients = optimizer.compute_gradients(loss, [w])
            optimizer.apply_gradients(gradients + [(first, other)])
        program, plan = planning.plan_of(graph, 2, 1, communication__sync_batch_norm=True)
        waiting = [n for n in program.graph.nodes.values() if any(text == "^" + first.op.name for text in n.input)]
        assert bool(waiting) == waits
        done = planning.compiled(graph, 2, 1, communication__sync_batch_norm=True)
        assert "communication.sync_batch_norm" in {each.key.partition("=")[0] for each in done.plan.strategies}
        alone = planning.compiled(graph, 1, 1, communication__sync_batch_norm=True)
        assert "communication.sync_batch_norm" not in {each.key.partition("=")[0] for each in alone.plan.strategies}
        return [norm.tensor for norm in plan.batch_norms]

    found = tensors_in_common(True)
    assert len(found) == 4 and found == tensors_in_common(False)


@pytest.mark.parametrize("least, trips", [(2, 2), (7, 7), (None, 32)])
def test_loops_cost_as_often_as_they_go_round(least, trips):
    """Which is the smallest number that the end of the loop depends on, and some if there is none."""
    with planning.control_flow("v1"), capture() as graph:
        w, fed = variable("w"), tf.placeholder(tf.int32, [])
        ends = (lambda i: tf.logical_and(i < least, i < 9)) if least else (lambda i: i < fed)
        product = tf.while_loop(
            lambda i, _: ends(i), lambda i, h: (i + 1, tf.matmul(h, w, name="product")), [0, planning.batch()]
        )[1]
        sgd(tf.reduce_mean(product))
    model = make_program(graph)
    backward = frozenset(n for n, node in model.graph.nodes.items() if tags.phase(node) == tags.BACKWARD)
    once = cost.forward_costs(model.graph, analyse(model).cloned, model.spec_of, NOMINAL)
    often = of_all_trips(once, model.graph, find_loops(model.graph, model.stateful, backward), model.spec_of)
    assert once.operations["while/product"].forward_s > 0
    assert often.operations["while/product"].forward_s == trips * once.operations["while/product"].forward_s
    outside = [name for name in once.operations if not name.startswith("while/")]
    assert outside and all(often.operations[name] == once.operations[name] for name in outside)


def test_the_backward_pass_keeps_what_depends_on_data():
    """Variables are there anyhow."""
    with capture() as graph:
        sgd(planning.layers(3, resource=True))
    model = make_program(graph)
    costs = cost.forward_costs(model.graph, analyse(model).cloned, model.spec_of, NOMINAL)
    assert len(costs.kept) >= 3
    assert all(costs.operations[tensor.partition(":")[0]].from_data for tensor in costs.kept)


def test_rows_of_a_lookup_and_their_ids():
    """Among other operations on the same ids, before and after."""
    with capture() as graph:
        ids = tf.placeholder(tf.int64, [None, 3], name="ids")
        tf.cast(ids, tf.float32), tf.reshape(ids, [-1, 1]), tf.shape(ids)
        table = tf.get_variable("table", [10, 4], use_resource=True)
        rows = tf.nn.embedding_lookup(table, ids)
        (gradient,) = tf.gradients(tf.reduce_sum(tf.square(rows)), table)
        tf.cast(ids, tf.int32), tf.reshape(ids, [3, -1])
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, table)])
    program = make_program(graph)
    (lookup,) = program.graph.find("ResourceGather".__eq__)
    found = list(lists_of_rows(Facts(program.graph, program.spec_of), lookup))
    assert found == [(gradient.values.op.name, gradient.indices.op.name)]


def test_what_is_alive_is_counted_by_kind():
    nodes = [make_node("MatMul", "a"), make_node("MatMul", "b", ["a"]), make_node("MatMul", "c", ["b"])]
    graph = planning.Graph.from_graph_def(tf.GraphDef(node=nodes))
    sizes = {"a": 100, "b": 200, "c": 50}
    prices = {name: Price(0.0, 0.0, (size,), 0) for name, size in sizes.items()}
    phases = dict.fromkeys(sizes, tags.FORWARD)
    first, second = lives(graph, list(sizes), prices, phases, lambda name: int(name == "c"), 2)
    kinds = dict.fromkeys(KINDS, 0)
    assert first.peak == dict(kinds, **{ACTIVATIONS: 300}) and second.peak == dict(kinds, **{ACTIVATIONS: 50})


@pytest.mark.parametrize("shape, known", [([6], True), ([2, 3], True), ([1, 2, 3], False), ([2, None], False)])
def test_values_of_what_is_reshaped(shape, known):
    found = values._reshape(None, np.arange(6), np.array(shape, object))
    assert np.array_equal(found, np.arange(6).reshape(shape)) if known else found is None


@pytest.mark.parametrize("bounds", [(0, 5, 1), (2, 9, 3), (5, 0, -2), (3, 3, 1)])
def test_values_of_ranges(bounds):
    assert np.array_equal(values._range(None, *map(np.array, bounds)), np.arange(*bounds))
    assert values._range(None, *map(np.array, bounds[:2] + (0,))) is None
    assert values._range(None, np.array(0), np.array(10**9), np.array(1)) is None


def test_sizes_that_are_guessed_are_those_of_the_batch():
    """Against what TensorFlow computes of as many rows."""
    rows = 3
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4, 3], name="x")
        flat = tf.reshape(x, [-1, 12])
        hidden = tf.tanh(tf.matmul(flat, variable("w", [12, 6])) + variable("b", [6]))
        like = tf.reshape(tf.reshape(hidden, [-1, 2, 3]), tf.shape(hidden))
        tf.reduce_mean(tf.concat([tf.transpose(flat, [0, 1]), like, flat[:, :2]], 1), 1)
        init = tf.global_variables_initializer()
    program, _ = planning.plan_of(graph, 1, 1)
    order = sorted(program.graph.order, key=program.graph.order.__getitem__)
    prices = Prices(program, order, NOMINAL.device, rows)
    with tf.Graph().as_default() as plain:
        tf.import_graph_def(graph.as_graph_def(), name="")
        names = [name for name in order if program.graph.nodes[name].op in _COMPUTED]
        with tf.Session() as session:
            session.run(init.name)
            found = session.run([name + ":0" for name in names], {"x:0": np.zeros([rows, 4, 3], np.float32)})
    del plain
    assert {program.graph.nodes[name].op for name in names} == _COMPUTED
    for name, value in zip(names, found):
        assert prices.shape(NodeInput(name, 0)) == value.shape, name


def test_impossible_sizes_are_for_tensorflow_to_refuse():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 3])
        tf.reshape(x * variable("w", [3]), [-1, 0], name="nothing")
    program, _ = planning.plan_of(graph, 1, 1)
    order = sorted(program.graph.order, key=program.graph.order.__getitem__)
    assert Prices(program, order, NOMINAL.device, 5).shape(NodeInput("nothing", 0))[1] == 0


def test_changed_rows_are_read_and_written():
    """Of the largest that a change of rows takes, which are the rows; of other changes the variable."""
    for op in ("ResourceSparseApplyAdagrad", "ScatterSub"):
        assert Prices._changed(None, op, [], [4, 400, 16]) == 800
        assert Prices._changed(None, op, [], []) == 0


_COMPUTED = set("Reshape MatMul Tanh ConcatV2 Transpose StridedSlice Mean AddV2".split())


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
