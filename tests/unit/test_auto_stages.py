"""Stages chosen automatically, on models built with TensorFlow."""

import collections
import itertools

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.capture.record import make_program
from epl.cluster.machine import NOMINAL
from epl.errors import PlanError
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from epl.plan.cost.cost import forward_costs, stage_costs
from epl.plan.facts.analysis import analyse
from epl.plan.pipeline import pieces
from epl.plan.pipeline.auto_stages import choose_stages, cut
from epl.plan.pipeline.pieces import Piece
from tests.helpers.machines import simple_machine
from tests.helpers.planning import batch, capture, control_flow, sgd, variable

pytestmark = pytest.mark.either_line


def facts_of(graph, machine=NOMINAL):
    """(Graph, Costs, operations in control flow) of a tf.Graph."""
    model = make_program(graph)
    analysis = analyse(model)
    costs = forward_costs(model.graph, analysis.cloned, model.spec_of, machine)
    return model.graph, costs, analysis.in_control_flow


def stages_of(graph, num_stages, machine=NOMINAL):
    """(Graph, AutoStages), checked: data only flows forward, and every stage has work."""
    made, costs, inside = facts_of(graph, machine)
    chosen = choose_stages(made, costs, num_stages, inside)
    assert set(costs.operations) <= set(chosen.stage_of)
    for name in costs.operations:
        for text in made.nodes[name].input:
            producer = text.lstrip("^").split(":")[0]
            if producer in costs.operations and made.nodes[producer].op != "NextIteration":
                assert chosen.stage_of[producer] <= chosen.stage_of[name], (producer, name)
    assert all(cost.forward_s > 0 for cost in stage_costs(made, costs, chosen.stage_of, num_stages))
    assert sum(choice.share for choice in chosen.choices) == pytest.approx(1)
    return made, chosen


def dense(x, units, name, activation=tf.tanh, resource=False):
    with tf.variable_scope(name):
        w = variable("w", (x.shape.as_list()[-1], units), resource)
        y = tf.matmul(x, w) + variable("b", (units,), resource)
        return activation(y) if activation else y


def mlp(sizes, names="layer_%d", resource=False):
    x = batch(64, sizes[0])
    for i, units in enumerate(sizes[1:]):
        x = dense(x, units, names % i if "%" in names else names + "abcdefgh"[i], resource=resource)
    sgd(tf.reduce_mean(tf.square(x), name="loss"))


def norm(x):
    mean, var = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.rsqrt(var + 1e-6) * variable("gamma", (x.shape.as_list()[-1],))


def attention_block(x, rows, length, width, heads):
    """A layer of a transformer over [rows * length, width], without a scope of its own."""

    def split(name):
        y = tf.reshape(dense(x, width, name, None), [rows, length, heads, width // heads])
        return tf.transpose(y, [0, 2, 1, 3])

    weights = tf.nn.softmax(tf.matmul(split("q"), split("k"), transpose_b=True) * (width / heads) ** -0.5)
    mixed = tf.transpose(tf.matmul(tf.nn.dropout(weights, rate=0.1), split("v")), [0, 2, 1, 3])
    out = dense(tf.reshape(mixed, [rows * length, width]), width, "out", None)
    with tf.variable_scope("norm_a"):
        x = norm(x + out)
    hidden = dense(dense(x, 4 * width, "up", tf.nn.relu), width, "down", None)
    with tf.variable_scope("norm_b"):
        return norm(x + hidden)


def transformer(layers=4, scopes="layer_%d", words=100, width=16, tied=True):
    data = tf.data.Dataset.from_tensors((tf.ones([8, 12], tf.int32), tf.ones([96], tf.int32))).repeat()
    ids, labels = tf.data.make_initializable_iterator(data).get_next()
    table = variable("table", (words, width))
    x = tf.reshape(tf.nn.embedding_lookup(table, ids), [96, width])
    for i in range(layers):
        # tf.name_scope(None) would not do: without scopes the names are like x_1, MatMul_3.
        with tf.variable_scope(scopes % i if scopes else "unscoped" + "abcdefgh"[i]):
            x = attention_block(x, 8, 12, width, 2)
    out = table if tied else variable("out", (words, width))
    logits = tf.matmul(x, out, transpose_b=True, name="logits")
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    sgd(tf.reduce_mean(loss, name="loss"))


@pytest.mark.parametrize("resource", [False, True])
def test_equal_layers_are_shared_out_equally(resource):
    with capture() as graph:
        mlp([256] * 9, resource=resource)
    _, chosen = stages_of(graph, 4)
    layers = ["layer_%d" % i for i in range(8)]
    assert [choice.blocks for choice in chosen.choices] == [tuple(layers[i : i + 2]) for i in (0, 2, 4, 6)]
    assert chosen.kept_whole == tuple(layers)
    for i in range(8):
        assert {s for n, s in chosen.stage_of.items() if n.startswith("layer_%d/" % i)} == {i // 2}
    assert [choice.bytes_sent for choice in chosen.choices] == [64 * 256 * 4] * 3 + [0]
    assert chosen.stage_of["loss"] == 3 and chosen.shared == ()
    assert all(choice.share == pytest.approx(0.25, abs=0.04) for choice in chosen.choices)


def test_unequal_layers_are_balanced_by_time():
    with capture() as graph:
        mlp([512, 4096, 512, 64, 64, 64, 64, 64])
    _, chosen = stages_of(graph, 2, simple_machine(start=0.0))
    assert [choice.blocks[0] for choice in chosen.choices] == ["layer_0", "layer_1"]


def test_cut_where_few_bytes_cross():
    # By time alone the wide border in the middle would be as good as the narrow ones beside it.
    with capture() as graph:
        mlp([32, 1000, 30, 1000, 32, 1000, 34, 1000, 32], names="net")
    _, chosen = stages_of(graph, 2)
    assert chosen.choices[0].bytes_sent == 64 * 32 * 4
    assert len(chosen.choices[0].blocks) == 4
    with capture() as graph:
        mlp([400, 400, 400, 20, 400, 400, 400], names="net")
    made, costs, inside = facts_of(graph)
    assert choose_stages(made, costs, 2, inside).choices[0].bytes_sent == 64 * 20 * 4


@pytest.mark.parametrize("scopes", ["layer_%d", "encoder/block%d", None])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_layers_of_a_transformer_stay_whole(scopes, num_stages):
    with capture() as graph:
        transformer(scopes=scopes)
    _, chosen = stages_of(graph, num_stages)
    prefixes = [scopes % i if scopes else "unscoped" + "abcdefgh"[i] for i in range(4)]
    where = [{s for n, s in chosen.stage_of.items() if n.startswith(p + "/")} for p in prefixes]
    assert all(len(stages) == 1 for stages in where), where
    assert [stages.pop() for stages in where] == [i * num_stages // 4 for i in range(4)]
    assert len(chosen.kept_whole) == 4
    assert chosen.shared == ("table",)  # the embedding of the first stage, the output of the last
    assert chosen.stage_of["table"] == 0 and chosen.stage_of["logits"] == num_stages - 1
    # What crosses is the layer's output and the labels.
    assert {choice.bytes_sent for choice in chosen.choices[:-1]} == {96 * 16 * 4 + 96 * 4}


@pytest.mark.parametrize("scopes", ["layer_%d", None])
def test_more_stages_than_layers_are_refused(scopes):
    with capture() as graph:
        transformer(scopes=scopes)
    with pytest.raises(PlanError, match="cannot be cut into pipeline.num_stages=7 stages.*repeated blocks stay whole"):
        stages_of(graph, 7)


def test_table():
    with capture() as graph:
        transformer()
    _, chosen = stages_of(graph, 2)
    text = chosen.table()
    lines = text.splitlines()
    assert lines[0] == "Stages chosen by estimated time, cut where few bytes cross:"
    assert lines[1].split("  ")[1:2] == ["stage"] and "layer_0, layer_1" in lines[3] and "6.4 KiB" in lines[3]
    assert "  kept whole: 4 repeated blocks (layer_0, layer_1, layer_2, layer_3)" in lines
    assert "  used by several stages: table" in lines


def conv(x, channels, name, training=True):
    with tf.variable_scope(name):
        kernel = variable("kernel", (3, 3, x.shape.as_list()[-1], channels))
        y = tf.nn.conv2d(x, kernel, 1, "SAME")
        scale, offset = variable("scale", (channels,)), variable("offset", (channels,))
        y, mean, _ = tf.nn.fused_batch_norm(y, scale, offset, is_training=training)
        average = variable("average", (channels,), trainable=False)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(average, 0.1 * (average - mean), name="update"))
        return tf.nn.relu(y)


def test_cnn():
    with capture() as graph:
        x = tf.reshape(batch(4, 16 * 16 * 3), [4, 16, 16, 3])
        for i, channels in enumerate([8, 8, 16, 16, 16]):
            x = conv(x, channels, "conv%d" % i)
            if i in (1, 3):
                x = tf.nn.max_pool2d(x, 2, 2, "SAME")
        y = dense(tf.reshape(x, [4, -1]), 10, "out", None)
        loss = tf.reduce_mean(tf.square(y), name="loss")
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            sgd(loss)
    _, chosen = stages_of(graph, 2)
    for i in range(5):
        # With the averages of its normalisation and their updates.
        stages = {s for n, s in chosen.stage_of.items() if n.startswith("conv%d/" % i)}
        assert len(stages) == 1
        assert "conv%d/update" % i in chosen.stage_of and "conv%d/average" % i in chosen.stage_of
    assert chosen.choices[0].share == pytest.approx(0.5, abs=0.15)
    assert chosen.shared == ()


def test_averages_stay_with_their_readers():
    with capture() as graph:
        average = variable("average", (4,), trainable=False)
        x = dense(batch(), 4, "first") + average
        x = dense(x, 4, "second")
        update = tf.assign(average, tf.reduce_mean(x, 0))
        x = dense(x, 4, "third")
        with tf.control_dependencies([update]):
            sgd(tf.reduce_mean(tf.square(x)))
    _, chosen = stages_of(graph, 2)
    assert [chosen.stage_of["%s/MatMul" % n] for n in ("first", "second", "third")] == [0, 0, 1]


def test_decay_is_where_the_variable_is():
    with capture() as graph:
        x = batch(64, 64)
        for i in range(4):
            x = dense(x, 64, "layer_%d" % i)
        decay = [tf.nn.l2_loss(v, name="decay") for v in tf.trainable_variables() if v.op.name.endswith("w")]
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.add_n(decay, name="decays"))
        loss = tf.reduce_mean(tf.square(x)) + 0.1 * tf.get_collection(tf.GraphKeys.LOSSES)[0]
        sgd(loss)
        tf.add_to_collection("out", loss)
    made, costs, inside = facts_of(graph)
    chosen = choose_stages(made, costs, 2, inside)
    assert [chosen.stage_of["layer_%d/w" % i] for i in range(4)] == [0, 0, 1, 1]
    assert chosen.shared == ()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_loops_stay_whole(version):
    with control_flow(version), capture() as graph:
        x = dense(batch(16, 64), 64, "before")
        w = variable("loop/w", (64, 64))
        x = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))), [0, x])[1]
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: tf.matmul(x, 2 * w))
        sgd(tf.reduce_mean(tf.square(dense(dense(x, 64, "after"), 64, "last"))))
    made, chosen = stages_of(graph, 2)
    made_of = {made.nodes[n].op for n in chosen.stage_of}
    assert made_of & {"While", "StatelessWhile"} if version == "v2" else "Enter" in made_of
    if version == "v1":
        loop = [n for n in chosen.stage_of if n.startswith("while/")]
        assert len(loop) > 8 and len({chosen.stage_of[n] for n in loop if "Const" not in n}) == 1
        branches = [n for n in chosen.stage_of if n.startswith("cond/") and made.nodes[n].op != "Const"]
        assert len({chosen.stage_of[n] for n in branches}) == 1


def test_each_recurrent_network_is_one_piece():
    with control_flow("v1"), capture() as graph:
        x = tf.reshape(dense(batch(8, 40), 40, "before"), [8, 5, 8])
        for name in ("rnna", "rnnb"):
            # Its number of steps comes from the data, the counters of its loop do not.
            x = tf.keras.layers.SimpleRNN(8, return_sequences=True, name=name)(x)
        sgd(tf.reduce_mean(tf.square(dense(tf.reshape(x, [8, 40]), 40, "after"))))
    made, chosen = stages_of(graph, 2)
    for name in ("rnna", "rnnb"):
        held = [n for n in chosen.stage_of if n.startswith(name + "/") and "TensorArray" in made.nodes[n].op]
        loop = [n for n in chosen.stage_of if n.startswith(name + "/while/") and made.nodes[n].op != "Const"]
        assert len(held) > 3 and len(loop) > 20
        assert len({chosen.stage_of[n] for n in held + loop}) == 1


def test_the_first_block_may_differ():
    with capture() as graph:
        x = tf.reshape(batch(4, 16 * 16 * 8), [4, 16, 16, 8])
        for i in range(4):
            with tf.variable_scope("unit_%d" % i):
                y = conv(conv(x, 8, "one"), 8, "two")
                x = conv(x, 8, "shortcut") if i == 0 else x
            x = tf.nn.relu(x + y)
        sgd(tf.reduce_mean(tf.square(dense(tf.reshape(x, [4, -1]), 10, "out"))))
    _, chosen = stages_of(graph, 2)
    assert chosen.kept_whole == tuple("unit_%d" % i for i in range(4))


def test_one_large_operation_is_refused():
    with capture() as graph:
        mlp([8, 8, 4096, 4096, 8], names="net")
    with pytest.raises(PlanError, match=r"would not pay: 'netc' alone takes \d\d % of the estimated time"):
        stages_of(graph, 3, simple_machine(start=0.0))


@pytest.mark.parametrize("names, pieces", [("layer_%d", "layer_0, layer_1"), ("net", "neta, netb")])
def test_too_few_pieces_are_refused(names, pieces):
    with capture() as graph:
        mlp([8, 8, 8], names)
    with pytest.raises(PlanError, match=r"it has only 2 pieces that can be told apart \(%s\)" % pieces):
        stages_of(graph, 3)


def test_no_data_is_refused():
    with capture() as graph:
        sgd(tf.reduce_sum(tf.square(variable("w"))))
    with pytest.raises(PlanError, match="nothing to cut into stages"):
        stages_of(graph, 2)


def test_models_without_matrix_products_are_cut_anywhere():
    with capture() as graph:
        x = batch(64, 64)
        for i in range(4):
            x = tf.sin(x * variable("w%d" % i, (64,)))
        sgd(tf.reduce_mean(x))
    _, chosen = stages_of(graph, 2)
    assert [chosen.stage_of["w%d" % i] for i in range(4)] == [0, 0, 1, 1]


def test_same_choice_every_time():
    answers = []
    for _ in range(2):
        with capture() as graph:
            transformer(scopes=None)
        _, chosen = stages_of(graph, 3)
        answers.append((chosen.choices, sorted(chosen.stage_of.items())))
    assert answers[0] == answers[1]


def typed_blocks(*kinds):
    """Of pieces with such operation types: the blocks, in pieces."""
    nodes = [make_node(op, "%d_%d" % (i, j)) for i, piece in enumerate(kinds) for j, op in enumerate(piece)]
    begins = list(itertools.accumulate([0] + [len(piece) for piece in kinds]))
    graph, order = Graph.from_graph_def(tf.GraphDef(node=nodes)), [node.name for node in nodes]
    found, repeats = pieces._typed_blocks(graph, order, begins[1:-1], [0] * (len(nodes) + 1))
    assert len(found) == repeats
    return [(begins.index(begin), begins.index(end)) for begin, end in found]


def test_the_last_block_ends_where_the_others_do():
    """Its last piece has what comes behind all blocks besides, so that it begins like theirs and is longer."""
    one, other = ("MatMul", "Tanh"), ("MatMul", "Relu", "Add")
    pairs = [(0, 2), (2, 4), (4, 6)]
    assert typed_blocks(one, other, one, other, one, other + ("Mean", "Square")) == pairs
    assert typed_blocks(one, other, one, other, one, ("MatMul", "Relu", "Mean")) == pairs[:2]
    assert typed_blocks(one, other, one, other, one, one) == pairs[:2]
    assert typed_blocks(one, other, one, other, one, other) == pairs
    assert typed_blocks(one, one, one) == []


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), max_size=6))
def test_what_stays_together_is_in_one_interval(groups):
    names = [[str(place) for place in group] for group in groups]
    costs = collections.namedtuple("Costs", "operations")({})
    found = pieces._intervals(None, costs, {str(place): place for place in range(21)}, names)
    assert all(end <= begin for (_, end), (begin, _) in zip(found, found[1:]))
    spans = [set(range(min(group), max(group) + 1)) for group in groups if len(set(group)) > 1]
    assert all(any(span <= set(range(*interval)) for interval in found) for span in spans)
    assert {place for interval in found for place in range(*interval)} == set().union(*spans)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=9), st.data())
def test_no_other_cut_is_better(drawn, data):
    row = [Piece(str(i), (), float(seconds), size) for i, (seconds, size) in enumerate(drawn)]
    num_stages = data.draw(st.integers(1, len(row)))
    facts = {}
    for inner in itertools.combinations(range(1, len(row)), num_stages - 1):
        borders = (0,) + inner + (len(row),)
        times = [sum(piece.seconds for piece in row[b:e]) for b, e in zip(borders, borders[1:])]
        facts[borders[1:]] = (max(times), sum(row[i].bytes_before for i in inner), sum(t * t for t in times))
    ends = tuple(cut(row, num_stages))
    least = min(slowest for slowest, _, _ in facts.values())
    near = [fact for fact in facts.values() if fact[0] <= least * 1.1 - 1e-9]
    assert facts[ends][0] <= least * 1.1 + 1e-9
    assert facts[ends][1:] <= min(fact[1:] for fact in near)
