"""Parameters divided over workers: who holds which, when the others get them, and what stays whole."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import ConfigError, PlanError
from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.cost import device_memory
from epl.plan.exchange.order import collective_keys, settle
from epl.rules import effects
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import batch, capture, compiled, control_flow, layers, of_op, plan_of, sgd, variable

pytestmark = pytest.mark.either_line

SMALL = 1e-4  # MiB: more than one layer of those that are built here
LEVELS = ["v2", "v3"]


def training(count=3, resource=False):
    with capture() as graph:
        tf.train.AdamOptimizer(0.01).minimize(layers(count, resource))
        tf.train.Saver()
    return graph


def workers(graph, level, count=2, devices=1, **config):
    return [compiled(graph, count, devices, index, zero__level=level, **config) for index in range(count)]


def held(program):
    return set(program.graph.find(effects.VARIABLES.__contains__))


def trained(graph):
    return {v.op.name for v in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)}


def gathers(program):
    """The collectives that bring parameters, in the order in which they run."""
    plan, whole = program.plan, program.whole
    keys = settle(collective_keys(plan, whole), whole, plan)
    return [name for _, name, _, _ in sorted(keys.values()) if name.endswith("/gather")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("resource", [False, True])
def test_each_parameter_is_in_one_worker_with_its_slots(level, resource):
    graph = training(4, resource)
    programs = workers(graph, level)
    first, second = map(held, programs)
    assert not first & second & trained(graph) and trained(graph) <= first | second
    zero = programs[0].plan.zero
    assert zero == programs[1].plan.zero and zero.parameters == trained(graph)
    for update in zero.updates:
        own = (first, second)[update.owner]
        assert {update.variable}.union(update.slots) <= own
    assert max(zero.state_bytes) <= 1.05 * sum(zero.state_bytes) / 2
    for program in programs:
        takers = {program.part.whole.nodes[c].op for m in program.part.messages for c in m.consumers}
        assert takers == {"SaveV2"}
        (strategy,) = program.plan.strategies
        assert "others get these in %d segment" % len(zero.segments) in strategy.effect
        assert strategy.kept_bytes == zero.state_bytes[program.plan.mesh.worker_index] - sum(zero.state_bytes)


def test_parameters_of_an_optimizer_without_state_are_divided_too():
    with capture() as graph:
        sgd(layers(4))
    first, second = map(held, workers(graph, "v2"))
    assert not first & second and trained(graph) == first | second


def test_a_parameter_is_on_one_device_of_its_worker():
    for worker, program in enumerate(workers(training(4), "v2", devices=2)):
        zero, graph = program.plan.zero, program.graph
        for name in zero.parameters:
            copies = [graph.nodes[n] for n in held(program) if n.rpartition("/")[2] == name]
            where = ["CPU:%d" % (zero.owners[name] % 2)] if zero.owners[name] // 2 == worker else []
            assert [node.device[-5:] for node in copies] == where


def test_what_travels_in_a_step():
    for level, size, brought in (("v2", 32.0, 1), ("v2", SMALL, 3), ("v3", SMALL, 6)):
        graph = training()
        for program in workers(graph, level, zero__segment_mb=size):
            plan, zero = program.plan, program.plan.zero
            assert len(of_op(program.graph, "EplAllGather")) == len(gathers(program)) == brought
            assert len(of_op(program.graph, "EplReduceScatter")) == len(plan.aggregation.groups)
            own = [u for u in zero.updates if u.owner == plan.mesh.worker_index]
            times = {u.variable: 2 if level == "v3" and u.variable[0] == "w" else 1 for u in own}
            gradients = sum(g.num_bytes for g in plan.aggregation.groups)
            assert plan.bytes_per_step() == gradients + sum(times[u.variable] * u.num_bytes for u in own)


def test_a_segment_waits_until_the_one_before_is_used():
    (program, _) = workers(training(), "v3", zero__segment_mb=SMALL)
    whole, segments = program.whole, program.plan.zero.segments
    variables = [segment.variables for segment in segments]
    assert variables == [("w0", "b0"), ("w1", "b1"), ("w2", "b2"), ("w2",), ("w1",), ("w0",)]
    assert gathers(program) == [segment.gather for segment in segments]
    for before, segment in zip(segments, segments[1:]):
        assert segment.after in {node_of(text) for text in whole.nodes[before.users[0][0][0]].input}
        assert "^" + segment.after in whole.nodes[segment.gather].input
        for users in segment.users:
            assert all(segment.gather in whole.ancestors([user]) for user, _ in users)
    for before, segment in zip(segments, segments[2:]):  # the one before it may not be in use yet
        assert before.users[0][0][0] in whole.ancestors([segment.gather])
    taken = {c for name in trained_reads(program) for c, _ in whole.consumers.get(name, ())}
    ops = {whole.nodes[name].op for name in taken if tags.phase(whole.nodes[name]) != tags.SAVE}
    assert "MatMul" not in ops and "Add" not in ops and "AddV2" not in ops


@pytest.mark.parametrize("level, count", [("v2", 2), ("v3", 4)])
@pytest.mark.parametrize("names", [["Tanh"], ["Tanh:0"], ["Tanh", "Tanh_2:0"]])
def test_segments_end_at_anchors(level, count, names):
    """The backward pass has the same parameters together as the forward pass; nothing comes after the last layer."""
    (program, _) = workers(training(), level, zero__segment_anchors=names)
    first, second = [("w0", "b0")], [("w1", "b1", "w2", "b2")]
    backward = [("w2", "w1"), ("w0",)] if level == "v3" else []
    variables = [segment.variables for segment in program.plan.zero.segments]
    assert variables == first + second + backward and len(gathers(program)) == count
    assert gathers(program) == [segment.gather for segment in program.plan.zero.segments]


def test_sizes_count_between_anchors():
    (program, _) = workers(training(4), "v2", zero__segment_anchors="Tanh", zero__segment_mb=2e-4)
    variables = [segment.variables for segment in program.plan.zero.segments]
    assert variables == [("w0", "b0"), ("w1", "b1", "w2", "b2"), ("w3", "b3")]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "name, message",
    [
        ("Tahn_1:0", "names 'Tahn_1:0', but the graph has no operation 'Tahn_1'. Did you mean 'Tanh_1'"),
        ("w1", "names 'w1' .VariableV2., which is not computed of a batch in the forward pass of the training"),
        ("gradients/Tanh_1_grad/TanhGrad", "which is not computed of a batch in the forward pass"),
    ],
)
def test_names_that_are_no_anchors(devices, name, message):
    with pytest.raises(PlanError, match=message):
        plan_of(training(), 1, devices, zero__level="v3", zero__segment_anchors=["Tanh", name])


def trained_reads(program):
    return {read for segment in program.plan.zero.segments for read in segment.reads}


@pytest.mark.parametrize("level", LEVELS)
def test_collectives_come_in_an_order_that_no_edge_goes_against(level):
    with capture() as graph:
        with tf.variable_scope("all", use_resource=True):
            x = batch()
            table = tf.get_variable("table", [8, 4], initializer=tf.zeros_initializer())
            x += tf.gather(table, tf.cast(x[:, 0], tf.int32))
            loss = layers(4, True, x) + 0.1 * tf.nn.l2_loss(table)
        tf.train.AdamOptimizer(0.01).minimize(loss)
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    config = {"zero__segment_mb": SMALL, "gradient_checkpoint__type": "auto", "communication__fuse_size_mb": SMALL}
    for micro_batches in (1, 3):
        for program in workers(graph, level, pipeline__num_micro_batch=micro_batches, **config):
            plan, whole = program.plan, program.whole
            keys = settle(collective_keys(plan, whole), whole, plan, micro_batches > 1)
            for name, key in keys.items():
                needed = whole.ancestors([name]).intersection(keys) - {name}
                assert all(keys[other] < key for other in needed)


def test_a_part_of_the_model_needs_no_data_of_another():
    with capture() as graph:
        one, other = (tf.placeholder(tf.float32, [None, 4], name=name) for name in ("one", "other"))
        towers = [tf.reduce_sum(tf.matmul(x, variable("w_%s" % x.op.name)), name="tower") for x in (one, other)]
        norm = tf.nn.l2_loss(graph.get_tensor_by_name("w_other:0"), name="norm")
        tf.train.AdamOptimizer(0.01).minimize(tf.add_n(towers + [norm]))
    (program, _) = workers(graph, "v3", zero__segment_mb=1e-5)
    needs = {name: program.whole.ancestors([name]) for name in ("tower", "tower_1", "norm")}
    assert "one" in needs["tower"] and "other" not in needs["tower"]
    assert "other" in needs["tower_1"] and "one" not in needs["tower_1"]
    assert not needs["norm"] & {"one", "other"}


def test_rows_and_shapes_are_taken_of_what_a_segment_brings():
    with capture() as graph:
        with tf.variable_scope("all", use_resource=True):
            table = tf.get_variable("table", [16, 4], initializer=tf.zeros_initializer())
            rows = tf.nn.embedding_lookup(table, tf.cast(batch()[:, 0], tf.int32))
        tf.train.AdamOptimizer(0.01).minimize(layers(1, True, rows))
    for program in workers(graph, "v2"):
        assert "all/table" in program.plan.zero.parameters
        looked_up = [n for n in program.graph.nodes.values() if n.name.endswith("embedding_lookup")]
        assert [node.op for node in looked_up] == ["GatherV2"]
        assert node_of(looked_up[0].input[0]).startswith("epl_zero/segment_")
        shapes = [n for n in of_op(program.part.whole, "VariableShape") if tags.phase(n) != tags.APPLY]
        assert not shapes and not [m for m in program.part.messages if any(c != "save" for c in m.consumers)]


@pytest.mark.parametrize("resource", [False, True])
def test_what_comes_after_an_update_gets_the_new_value_from_the_owner(resource):
    with capture() as graph:
        train = tf.train.AdamOptimizer(0.01).minimize(layers(2, resource))
        with tf.control_dependencies([train]):
            weight = [v for v in tf.global_variables() if v.op.name == "w1"][0]
            tf.reduce_sum(2.0 * weight, name="after")
    for program in workers(graph, "v2"):
        owner = program.plan.zero.owners["w1"]
        (message,) = program.part.messages
        assert (message.source, message.target) == (owner, 1 - owner)
        update = next(u for u in program.plan.zero.updates if u.variable == "w1")
        assert set(update.writes) <= program.whole.ancestors([node_of(message.tensor)])


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_a_branch_takes_stays_whole(version, caplog):
    with control_flow(version), capture() as graph:
        x = batch()
        inner = variable("inner", use_resource=True)
        x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.matmul(x, inner.read_value()), lambda: x)
        tf.train.AdamOptimizer(0.01).minimize(layers(2, True, x))
    programs = workers(graph, "v2")
    assert (
        all("inner" in held(program) for program in programs) and "'inner' stays whole on every device" in caplog.text
    )
    zero = programs[0].plan.zero
    assert zero.parameters == trained(graph) - {"inner"}
    assert not held(programs[0]) & held(programs[1]) & {"inner/Adam", "inner/Adam_1"}


@pytest.mark.parametrize("level", LEVELS)
def test_one_device_is_as_without(level):
    graph = training()
    want, got = compiled(graph, 1, 1), compiled(graph, 1, 1, zero__level=level)
    assert want.graph.to_graph_def(tf.GraphDef) == got.graph.to_graph_def(tf.GraphDef)


def test_segments_have_a_size_only_where_there_are_any():
    with pytest.raises(ConfigError, match="zero.segment_mb=4.0 has no effect while zero.level='v1'"):
        epl.Config({"zero.level": "v1", "zero.segment_mb": 4.0})
    with pytest.raises(ConfigError, match="zero.segment_anchors='Tanh' has no effect while zero.level='v1'"):
        epl.Config({"zero.level": "v1", "zero.segment_anchors": ["Tanh"]})


def test_the_memory_plan_counts_the_parameters_that_each_worker_holds():
    graph = training()
    for index, program in enumerate(workers(graph, "v3")):
        devices, _ = estimate_program(program, 8)
        own = sum(u.num_bytes for u in program.plan.zero.updates if u.owner == index)
        assert devices["CPU:0"].lasting[device_memory.VARIABLES] == own
