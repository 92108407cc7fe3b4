"""Division of a step into micro-batches: what is copied, what is added up, what waits for what."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.capture import collections
from epl.config import Config
from epl.errors import ConfigError, PlanError, UnsupportedError
from epl.graph.index import node_of, parse_input
from epl.graph.lazy import Lazy
from epl.graph.lint import lint
from epl.passes.copies.add_micro_batches import copy_micro_batches
from epl.plan.facts.names import micro_batch_name
from epl.session.rewritten import Rewritten
from tests.helpers import planning


def unrolled(graph, count=3, **config):
    program, plan = planning.plan_of(graph, 1, 1, pipeline__num_micro_batch=count, **config)
    return program, copy_micro_batches(program, plan)


def test_one_micro_batch_changes_nothing():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    model, same = unrolled(graph, 1)
    division = same.micro_batches
    assert same.graph is model.graph and division.count == 1 and not division.nodes


@pytest.mark.parametrize("resource", [False, True])
def test_copies_of_what_differs_and_one_of_all_else(resource):
    with planning.capture() as graph:
        planning.sgd(planning.layers(resource=resource))
    model, made = unrolled(graph)
    division = made.micro_batches
    nodes = made.graph.nodes
    assert not lint(made.graph, tf_compat.op_def)  # which looks at the copies too that are left out later
    pairs = [[nodes[micro_batch_name(name, m)] for m in (1, 2)] for name in division.nodes]
    lazy = [pair for pair in pairs if {type(node) for node in pair} == {Lazy}]
    assert lazy and all(first.like is second.like for first, second in lazy)
    assert {division.original(nodes[micro_batch_name(name, 2)]) for name in division.nodes} == division.nodes
    assert made.graph.inputs == {name: tuple(map(parse_input, node.input)) for name, node in nodes.items()}
    for name, node in model.graph.nodes.items():
        copies = [micro_batch_name(name, m) in nodes for m in (1, 2)]
        assert copies == [name in division.nodes] * 2
        if node.op in ("VariableV2", "VarHandleOp", "ReadVariableOp") or "ApplyGradientDescent" in node.op:
            assert name not in division.nodes
        if node.op in ("MatMul", "IteratorGetNext", "TanhGrad"):
            assert name in division.nodes


@pytest.mark.parametrize("method", ["mean", "sum"])
def test_rows_are_put_end_to_end_with_their_ids(method):
    """The mean over micro-batches divides what is in the rows, and ids stay what they are."""
    with planning.capture() as graph:
        ids = tf.placeholder(tf.int64, [None])
        table = tf.get_variable("table", [9, 4], use_resource=False)
        planning.sgd(tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids))))
    made = unrolled(graph, communication__gradients_reduce_method=method)[1]
    ((gradient, _),) = [pair for call in made.apply_calls for pair in call.gradients]
    (update,) = planning.of_op(made.graph, "ScatterSub")
    behind = {
        word: [made.graph.nodes[name] for name in made.graph.ancestors([node_of(text)], data_only=True)]
        for word, text in (("ids", update.input[1]), ("rows", update.input[2]))
    }
    added = {word: {n.op for n in nodes if n.name.startswith("epl_")} for word, nodes in behind.items()}
    assert gradient.indices is not None and "ConcatV2" in added["ids"] and not {"Mul", "Cast"} & added["ids"]
    scaled = {n.name for n in behind["rows"] if n.name.endswith("/mean/scale")}
    assert bool(scaled) == (method == "mean")


def test_gradients_are_added_up_and_applied_once():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    model, made = unrolled(graph)
    for call in model.apply_calls:
        for old, variable in call.gradients:
            (applied,) = [n for n in planning.of_op(made.graph, "ApplyGradientDescent") if n.input[0] == variable]
            mean = made.graph.nodes[applied.input[2]]
            assert mean.op == "Mul"
            last = made.graph.nodes[mean.input[0]]
            first = made.graph.nodes[last.input[0]]
            ends = [first.input[0], first.input[1], last.input[1]]
            assert [node_of(t) for t in ends] == [micro_batch_name(node_of(old.values), m) for m in range(3)]


def test_seeded_random_operations_get_other_seeds():
    with planning.capture(seed=3) as graph:
        planning.sgd(planning.layers(x=tf.nn.dropout(planning.batch(), rate=0.5, seed=7)))
    _, made = unrolled(graph)
    seeds = [(n.attr["seed"].i, n.attr["seed2"].i) for n in planning.of_op(made.graph, "RandomUniform")]
    assert len(seeds) == 3 and len(set(seeds)) == 3


def test_an_evaluation_waits_for_no_training():
    """A merged loss needs all micro-batches, but neither their backward passes nor what moves averages."""
    with planning.capture() as graph:
        loss = planning.layers()
        average = planning.variable("average", [])
        update = tf.assign_sub(average, 0.1 * (average - loss))
        tf.add_to_collection("unused", average)
        with tf.control_dependencies([update]):
            train = planning.sgd(loss)
        collections.add_to_collection(loss, collections.GraphKeys.GLOBAL_MEAN_OBJECTS)
    config = Config({"pipeline.num_micro_batch": 3})
    rewritten = Rewritten(graph, config, planning.cluster(1, 1), 0)
    evaluation = rewritten.step((loss.name,), (), ())
    stop = {node_of(gate) for gate in evaluation.run.open_gates}
    needed = rewritten.graph.ancestors([node_of(t) for t in evaluation.run.fetches], stop=stop)
    ops = {rewritten.graph.nodes[n].op for n in needed}
    assert not evaluation.targets and "TanhGrad" not in ops and "AssignSub" not in ops
    assert len([n for n in needed if rewritten.graph.nodes[n].op == "IteratorGetNext"]) == 3
    training = rewritten.step((), (train.name,), ())
    assert training.run.open_gates == ()
    assert {micro_batch_name(update.op.name, m) for m in (1, 2)} <= set(training.targets)


def test_a_later_micro_batch_reads_what_the_earlier_one_changed():
    with planning.capture() as graph:
        loss = planning.layers()
        average = planning.variable("average", [])
        with tf.control_dependencies([tf.assign_sub(average, 0.1 * (average - loss), name="move")]):
            planning.sgd(loss)
    _, made = unrolled(graph)
    for micro_batch in (1, 2):
        read = micro_batch_name("average/read", micro_batch)
        assert micro_batch_name("move", micro_batch - 1) in made.graph.ancestors([read])


def test_what_cannot_be_divided_is_refused():
    with planning.capture() as graph:
        with tf.control_dependencies([planning.sgd(planning.layers())]):
            staged = tf.raw_ops.Unstage(dtypes=[tf.float32])[0]
        weight = planning.variable("w", [])
        planning.sgd(tf.reduce_sum(staged * weight))
    with pytest.raises(UnsupportedError, match="staging area"):
        unrolled(graph)


def test_number_of_chunks():
    with planning.capture() as graph:
        with epl.replicate(1):
            x = planning.batch() * planning.variable("first", [])
        with epl.replicate(1):
            planning.sgd(tf.reduce_sum(x * planning.variable("second", [])))
    with pytest.raises(ConfigError, match="num_devices|chunks|stage"):
        unrolled(graph, pipeline__num_chunks=2, pipeline__strategy="PreferBackward")
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    with pytest.raises(PlanError, match="does not divide the 1 scopes"):
        planning.plan_of(graph, pipeline__num_chunks=2, pipeline__strategy="Interleaved")
