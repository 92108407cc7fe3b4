"""Parameters divided over devices, each in the memory of its owner's host (zero.level with offload.level)."""

import pytest
import tensorflow.compat.v1 as tf

from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.cost.device_memory import COMMUNICATION, KINDS, SLOTS, VARIABLES
from epl.rules import effects
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import batch, capture, compiled, layers, of_op, variable

pytestmark = pytest.mark.either_line

HOST, DEVICE = "CPU:0", "CPU:1"
SMALL = 1e-4  # MiB: more than one layer of those that are built here
LEVELS = ["v2", "v3"]


def training(count=3, resource=False):
    """Layers, a table of which rows are looked up, and weight decay."""
    with capture() as graph:
        x = batch()
        with tf.variable_scope("all", use_resource=resource):
            table = variable("table", [16, 4], use_resource=resource)
            x += tf.nn.embedding_lookup(table, tf.cast(x[:, 0], tf.int64))
            loss = layers(count, resource, x) + 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
        tf.train.AdamOptimizer(0.01).minimize(loss)
        tf.train.Saver()
    return graph


def workers(graph, level, count=2, devices=1, **config):
    config = dict({"offload__level": "v1"}, **config)
    return [compiled(graph, count, devices, index, zero__level=level, **config) for index in range(count)]


def where(nodes):
    return {node.device[-5:] for node in nodes}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("resource", [False, True])
def test_what_an_owner_has_lies_on_its_host(level, resource):
    graph = training(resource=resource)
    trained = {v.op.name for v in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)}
    programs = workers(graph, level, zero__segment_mb=SMALL)
    first, second = (set(program.graph.find(effects.VARIABLES.__contains__)) for program in programs)
    assert programs[0].plan.zero.parameters == trained
    assert not first & second & trained and trained <= first | second
    for program in programs:
        nodes = program.graph.nodes
        of_others = [n for n in nodes.values() if n.name.startswith(("epl_zero/", "epl_offload/"))]
        held = [nodes[name] for name in (first | second) & nodes.keys()]
        updates = [node for node in nodes.values() if "ApplyAdam" in node.op]
        # So are rows looked up, and norms of parameters made.
        made = [n for n in of_op(program.graph, "GatherV2") if "save" not in n.name]
        made += of_op(program.graph, "L2Loss") + of_op(program.graph, "EplAllGather")
        assert of_others and updates and made
        assert not [n.name for n in of_others + held + updates + made if not n.device.endswith(HOST)]
        assert where(of_op(program.graph, "MatMul")) == {DEVICE}


@pytest.mark.parametrize("level", LEVELS)
def test_a_parameter_is_once_on_the_host_of_its_worker(level):
    for worker, program in enumerate(workers(training(), level, devices=2)):
        zero, graph = program.plan.zero, program.graph
        for name in zero.parameters:
            copies = [graph.nodes[n] for n in graph.find(effects.VARIABLES.__contains__) if n.endswith(name)]
            assert len(copies) == (zero.owners[name] // 2 == worker) and where(copies) <= {HOST}
        assert where(of_op(graph, "MatMul")) == {DEVICE, "CPU:2"}


def test_devices_get_copies_of_what_segments_bring_layer_by_layer():
    with capture() as graph:
        tf.train.AdamOptimizer(0.01).minimize(layers(3))
    (program, _) = workers(graph, "v3", zero__segment_mb=SMALL)
    whole, segments = program.whole, program.plan.zero.segments
    variables = [segment.variables for segment in segments]
    assert variables == [("w0", "b0"), ("w1", "b1"), ("w2", "b2"), ("w2",), ("w1",), ("w0",)]
    copies = [whole.nodes[user] for segment in segments for users in segment.users for user, _ in users]
    assert len(copies) == 9 and all(node.name.startswith("epl_offload/") for node in copies)
    products = []
    for segment, handing in ((s, name) for s in segments for name in s.nodes):
        for user, _ in whole.consumers[handing]:
            assert [node_of(t) for t in whole.nodes[user].input if t[0] != "^"] == [handing]
            products.extend((segment, c) for c, _ in whole.consumers[user] if whole.nodes[c].op == "MatMul")
    assert len(products) == 6
    for (_, product), (segment, following) in zip(products, products[1:]):
        assert segment.after in {node_of(text) for text in whole.nodes[product].input}
        assert "^" + segment.after in whole.nodes[segment.gather].input
        assert segment.gather in whole.ancestors([following])
    for (_, product), (segment, _) in zip(products, products[2:]):  # the one before it may not be in use yet
        assert product in whole.ancestors([segment.gather])


def test_what_comes_after_an_update_gets_the_new_value_from_the_host_of_the_owner():
    with capture() as graph:
        train = tf.train.AdamOptimizer(0.01).minimize(layers(2, True))
        with tf.control_dependencies([train]):
            weight = [v for v in tf.global_variables() if v.op.name == "w1"][0]
            tf.reduce_sum(2.0 * weight, name="after")
    for program in workers(graph, "v2"):
        reads = [n for n in of_op(program.graph, "ReadVariableOp") if n.input[0] == "w1"]
        assert where(reads) <= {HOST} and len(program.part.messages) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_gathers_of_what_lies_on_hosts_stay_there_where_workers_have_gpus(level):
    with capture() as graph:
        tf.train.AdamOptimizer(0.1).minimize(layers(1))
    for worker in range(3):
        config = dict(zero__level=level, offload__level="v1")
        program = compiled(graph, 3, 1, worker, device_type="GPU", on_gpu=True, **config)
        gathers = of_op(program.graph, "EplAllGather")
        assert gathers and where(gathers) == {HOST} and where(of_op(program.graph, "MatMul")) == {"GPU:0"}


def test_the_memory_plan_counts_on_devices_what_they_have_for_a_while():
    with capture() as graph:
        tf.train.AdamOptimizer(0.01).minimize(layers(8))
    whole = 8 * (16 + 4) * 4
    for index, program in enumerate(workers(graph, "v3", zero__segment_mb=SMALL)):
        devices, _ = estimate_program(program, 8)
        own = sum(u.num_bytes for u in program.plan.zero.updates if u.owner == index)
        assert devices[HOST].lasting[VARIABLES] == own
        assert devices[DEVICE].lasting[VARIABLES] == devices[DEVICE].lasting[SLOTS] == 0
        most = max(live[KINDS.index(COMMUNICATION)] for _, live in devices[DEVICE].points)
        assert 0 < most < whole / 2


def test_segments_are_tagged_by_where_their_parameters_lie():
    (program, _) = workers(training(), "v2")
    for segment in program.plan.zero.segments:
        on_host = {tags.HOST in program.whole.nodes[name].attr for name in segment.variables + segment.nodes}
        assert on_host == {True}
