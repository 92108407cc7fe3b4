"""Partitioned models: what the shards exchange, and steps of training against the whole model."""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.errors import PlanError, UnsupportedError
from epl.program.placement import WHOLE, sharded
from tests.helpers import shards, split_models
from tests.helpers.checks import assert_same, pairs
from tests.helpers.machines import SLOW_BETWEEN
from tests.helpers.planning import capture

pytestmark = pytest.mark.either_line

STEPS = 3


def transformer(optimizer=None, resource=False, rows=None, length=6, width=16):
    """A block behind an embedding that is whole, so that the gradient with respect to its input is wanted."""
    with capture(1) as graph, tf.variable_scope("", use_resource=resource):
        tokens = tf.placeholder(tf.int32, [rows, length], name="tokens")
        x = tf.gather(tf.get_variable("table", [11, width]), tokens)
        x = split_models.transformer_block(x, 4, "block")
        loss = tf.reduce_mean(tf.square(x - tf.one_hot(tokens, width)), name="loss")
        (optimizer or tf.train.GradientDescentOptimizer(0.1)).minimize(loss, name="train")
        tf.global_variables_initializer()
    return graph


def test_a_transformer_block_needs_two_all_reduces_forward_and_two_backward():
    graph = transformer()
    done = shards.partitioned(graph, 2, split_models.variables_under(graph, "block"))
    assert shards.counts(done, "train", "forward") == {"all_reduce": 2}
    assert shards.counts(done, "train", "backward") == {"all_reduce": 2}
    assert shards.counts(done, "train") == {"all_reduce": 4}
    activation = 32 * 6 * 16 * 4
    assert [each.num_bytes for each in done.collectives] == [activation] * 4
    assert not done.without_rule
    whole = [name for name in split_models.variables_under(graph, "block") if name not in done.placements]
    assert all(name.split("/")[1] in ("first", "second", "out", "attended") for name in whole)


def test_what_is_large_between_products_is_computed_by_rows():
    """For as many bytes: a reduce-scatter and an all-gather in the place of each all-reduce of an activation."""
    graph = transformer(rows=4, length=128, width=512)
    done = shards.partitioned(graph, 2, split_models.variables_under(graph, "block"))
    activation, found = 4 * 128 * 512 * 4, shards.exchanged(done, "train")
    large = collections.Counter((each.phase, each.kind) for each in found if each.num_bytes == activation)
    # The loss takes rows as they are; the table, which is whole, takes the gradients of all of them.
    assert large == {
        ("forward", "reduce_scatter"): 2,
        ("forward", "all_gather"): 1,
        ("backward", "reduce_scatter"): 1,
        ("backward", "all_gather"): 2,
        ("backward", "all_reduce"): 1,
    }
    # Of scales and offsets, and of biases behind sums, gradients are sums over rows now.
    rest = [each for each in found if each.num_bytes != activation]
    assert [(each.kind, each.phase, each.num_bytes) for each in rest] == [("all_reduce", "apply", 4 * 512)] * 6
    assert done.placements["block/first/add"] == sharded(0)


# 4 rows over 3 devices: where rows and places are one dimension, parts would not begin at the same elements.
@pytest.mark.parametrize("count,rows", [(2, 4), (3, 6), (3, 4)])
def test_rows_between_products_train_as_on_one_device(monkeypatch, count, rows):
    monkeypatch.setattr(shards, "MACHINE", SLOW_BETWEEN)  # so that it pays for small models too
    graph = transformer(tf.train.MomentumOptimizer(0.1, 0.9), count == 3, rows=rows)
    done = shards.partitioned(graph, count, split_models.variables_under(graph, "block"))
    kinds = shards.counts(done, "train")
    assert kinds["reduce_scatter"] and (count > 2 or kinds["reduce_scatter"] == kinds["all_gather"] == 3)
    assert_trains_alike(graph, done, {"tokens:0": np.random.RandomState(0).randint(0, 11, [STEPS, rows, 6])})


def assert_trains_alike(graph, done, feeds, names=("init", "train"), loss="loss:0"):
    """Compares losses and all variables over some steps."""
    with graph.as_default():
        kinds = {v.op.name: v.op.type for v in tf.global_variables()}
    values = {n: n + ("/Read/ReadVariableOp:0" if kind == "VarHandleOp" else ":0") for n, kind in kinds.items()}
    with shards.Shards(graph, done) as both:
        both.run_whole(names[0])
        both.run_operations([names[0]])
        for name in values:  # first values are the same numbers
            np.testing.assert_array_equal(both.run([values[name]])[0], both.run_whole(values[name]), err_msg=name)
        for step in range(STEPS):
            feed = {key: value[step] for key, value in feeds.items()}
            want = both.run_whole(loss, feed)
            np.testing.assert_allclose(both.run([loss], feed)[0], want, rtol=1e-5)
            both.run_whole(names[1], feed)
            both.run_operations([names[1]], feed)
        for name, value in values.items():
            got, want = both.run([value])[0], both.run_whole(value)
            # What is left of a sum of the largest numbers may be off by their rounding.
            rounding = np.finfo(np.float32).eps * np.max(np.abs(want), initial=0)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=max(1e-7, rounding), err_msg=name)


@pytest.mark.parametrize(
    "optimizer,resource,count",
    [
        (tf.train.GradientDescentOptimizer(0.1), False, 2),
        (tf.train.MomentumOptimizer(0.1, 0.9), True, 4),
        (tf.train.AdagradOptimizer(0.1), False, 4),
        # The keys' bias has no gradient but rounding, which Adam would divide by itself.
        (tf.train.AdamOptimizer(0.01, epsilon=1e-3), True, 2),
    ],
)
def test_a_transformer_block_trains_as_on_one_device(optimizer, resource, count):
    graph = transformer(optimizer, resource)
    done = shards.partitioned(graph, count, split_models.variables_under(graph, "block"))
    tokens = np.random.RandomState(0).randint(0, 11, [STEPS, 4, 6])
    assert_trains_alike(graph, done, {"tokens:0": tokens})


def classifier(loss, optimizer, classes=10, resource=False):
    """Features that are whole, and a classifier with its loss."""
    with capture(2) as graph, tf.variable_scope("", use_resource=resource):
        x, labels = tf.placeholder(tf.float32, [6, 5], name="x"), tf.placeholder(tf.int32, [6], name="labels")
        x = tf.tanh(split_models.dense(x, 7, "features"))
        logits = split_models.dense(x, classes, "classes")
        if loss == "sparse":
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        else:
            each = tf.nn.softmax_cross_entropy_with_logits(labels=tf.one_hot(labels, classes), logits=logits)
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))
        tf.identity(right, name="accuracy")
        total = tf.add(tf.reduce_mean(each), 0.01 * tf.nn.l2_loss(split_models.kernel("classes")), name="loss")
        gradients, variables = zip(*optimizer.compute_gradients(total))
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, variables), name="train")
        tf.global_variables_initializer()
    return graph


@pytest.mark.parametrize("loss", ["sparse", "dense"])
@pytest.mark.parametrize("count,resource", [(2, True), (4, False)])
def test_a_divided_classifier_trains_as_on_one_device(loss, count, resource):
    graph = classifier(loss, tf.train.AdamOptimizer(0.01), resource=resource)
    done = shards.partitioned(graph, count, split_models.variables_under(graph, "classes"))
    assert done.placements["classes/kernel"] == sharded(1) and done.placements["classes/bias"] == sharded(0)
    assert done.placements["classes/kernel/Adam"] == sharded(1)
    draw = np.random.RandomState(0)
    feeds = {"x:0": draw.normal(size=[STEPS, 6, 5]), "labels:0": draw.randint(0, 10, [STEPS, 6])}
    assert_trains_alike(graph, done, feeds)


@pytest.mark.parametrize("loss,numbers", [("sparse", 3)])
def test_logits_of_a_divided_classifier_are_never_gathered(loss, numbers):
    graph = classifier(loss, tf.train.GradientDescentOptimizer(0.1), classes=1000)
    done = shards.partitioned(graph, 4, split_models.variables_under(graph, "classes"))
    found = shards.exchanged(done, "train")
    assert {each.kind for each in found} == {"all_reduce"}
    rows, features = 6 * 4, 6 * 7 * 4
    in_loss = [each.num_bytes for each in found if each.phase == "forward" and "entropy" in each.node.lower()]
    assert sum(in_loss) == numbers * rows
    others = sorted(each.num_bytes for each in found if "entropy" not in each.node.lower())
    assert others == [4, features]  # the norm for clipping, the gradient of the features


@pytest.mark.parametrize(
    "optimizer,count",
    [
        (tf.train.GradientDescentOptimizer(0.1), 3),
        (tf.train.AdagradOptimizer(0.1), 2),
        (tf.train.AdamOptimizer(0.01), 4),
    ],
)
@pytest.mark.parametrize("resource", [False, True])
def test_rows_of_a_table_are_divided_with_their_sparse_gradients(optimizer, count, resource):
    with capture(3) as graph, tf.variable_scope("", use_resource=resource):
        ids = tf.placeholder(tf.int32, [4, 3], name="ids")
        rows = tf.nn.embedding_lookup(tf.get_variable("table", [11, 5]), ids)
        loss = tf.reduce_mean(tf.square(split_models.dense(rows, 2, "dense") - 1.0), name="loss")
        optimizer.minimize(loss, name="train")
        tf.global_variables_initializer()
    done = shards.partitioned(graph, count, ["table"])
    assert done.placements["table"] == sharded(0)
    assert shards.counts(done, "train", "forward") == {"all_reduce": 1}
    assert "all_gather" not in shards.counts(done, "train")
    assert_trains_alike(graph, done, {"ids:0": np.random.RandomState(0).randint(0, 11, [STEPS, 4, 3])})


def test_devices_that_divide_the_batch_and_the_classes():
    """Features of parts of the batch are gathered for the classifier; their gradient is scattered again."""
    with capture(4) as graph:
        x, labels = tf.placeholder(tf.float32, [8, 5], name="x"), tf.placeholder(tf.int32, [8], name="labels")
        mine = tf.identity(x, name="mine")
        features = tf.tanh(split_models.dense(mine, 6, "features"))
        logits = split_models.dense(features, 1000, "classes")
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        tf.reduce_mean(each, name="loss")
        tf.train.GradientDescentOptimizer(0.1).minimize(graph.get_tensor_by_name("loss:0"), name="train")
        tf.global_variables_initializer()
    done = shards.partitioned(graph, 2, split_models.variables_under(graph, "classes"), {"mine": sharded(0)})
    activations = 8 * 6 * 4
    along = [(c.kind, c.phase) for c in shards.exchanged(done, "train") if c.num_bytes == activations]
    assert along == [("all_gather", "forward"), ("reduce_scatter", "backward")]
    draw = np.random.RandomState(0)
    assert_trains_alike(
        graph, done, {"x:0": draw.normal(size=[STEPS, 8, 5]), "labels:0": draw.randint(0, 1000, [STEPS, 8])}
    )


def test_experts_on_the_devices_that_divide_the_tokens():
    """Two all-to-alls forward and two backward."""
    with capture(5) as graph:
        # Group, place in the group, expert, place at the expert, width: "gsecm" in the equations.
        tokens = tf.identity(tf.placeholder(tf.float32, [4, 6, 16], name="x"), name="tokens")
        chosen = tf.identity(tf.placeholder(tf.float32, [4, 6, 4, 2], name="chosen"), name="routes")
        hidden = tf.get_variable("experts/hidden", [4, 16, 32])
        out = tf.get_variable("experts/out", [4, 32, 16])
        before = tokens * tf.get_variable("gain", [16], initializer=tf.ones_initializer())
        y = tf.einsum("gecm,emh->egch", tf.einsum("gsec,gsm->gecm", chosen, before), hidden)
        y = tf.einsum("egch,ehm->gecm", tf.nn.relu(y), out)
        y = tf.einsum("gsec,gecm->gsm", chosen, y)
        loss = tf.reduce_mean(tf.square(tf.tanh(y + before) - 1.0), name="loss")
        tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        tf.global_variables_initializer()
    done = shards.partitioned(graph, 2, ["experts/hidden", "experts/out"], {"tokens": sharded(0), "routes": sharded(0)})
    assert done.placements["experts/hidden"] == done.placements["experts/out"] == sharded(0)
    assert shards.counts(done, "train", "forward") == {"all_to_all": 2}
    backward = [each.kind for each in done.collectives if each.phase == "backward" and each.num_bytes > 64]
    assert backward == ["all_to_all"] * 2
    draw = np.random.RandomState(0)
    assert_trains_alike(
        graph, done, {"x:0": draw.normal(size=[STEPS, 4, 6, 16]), "chosen:0": draw.randint(0, 2, [STEPS, 4, 6, 4, 2])}
    )


def test_shapes_that_follow_from_a_batch_of_unknown_size():
    """The static sizes are not those of a part either: targets of reshapes, what a mean divides by, masks."""
    with capture(6) as graph:
        x = tf.identity(tf.placeholder(tf.float32, [None, 6], name="x"), name="mine")
        rows = tf.shape(x)[0]
        y = tf.reshape(split_models.dense(x, 6, "dense"), [rows, 2, 3]) + tf.fill([rows, 1, 1], 0.5)
        y = tf.reduce_sum(tf.square(y)) / tf.cast(rows, tf.float32) + tf.reduce_mean(y)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.identity(y, name="loss"), name="train")
        tf.global_variables_initializer()
    done = shards.partitioned(graph, 2, tensors={"mine": sharded(0)})
    assert not done.without_rule
    for size in (8, 5):
        assert_trains_alike(graph, done, {"x:0": np.random.RandomState(0).normal(size=[STEPS, size, 6])})


def test_a_batch_that_does_not_divide_loses_no_row():
    with capture(6) as graph:
        x = tf.identity(tf.placeholder(tf.float32, [None, 6], name="x"), name="mine")
        tf.reduce_mean(tf.tanh(x), name="mean")
    done = shards.partitioned(graph, 2, tensors={"mine": sharded(0)})
    with shards.Shards(graph, done) as both:
        for count in (8, 7, 1):
            rows = np.random.RandomState(count).normal(size=[count, 6])
            assert_same(both.run(["mean:0"], {"x:0": rows})[0], both.run_whole("mean:0", {"x:0": rows}))


@pytest.mark.parametrize("rows", [8, 5, 1])
def test_dimensions_of_unknown_size_that_parts_would_have_to_count(rows):
    """Where a part begins among so many rows is not known: what asks for it gets them whole."""
    with capture(8) as graph:
        x = tf.identity(tf.placeholder(tf.float64, [None, 3], name="x"), name="mine")
        y = tf.transpose(x, name="columns")  # a row for each class, of which the batch is to say how many there are
        labels = tf.argmax(y, 1, name="largest")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=y)
        found = tf.gather(x, labels) + tf.one_hot(labels, tf.shape(x)[0], dtype=tf.float64)[:, :1]
        total = tf.reduce_sum(found) + tf.reduce_mean(loss)
        tf.identity(tf.gradients(total, x)[0], name="gradient")
        tf.identity(total, name="total")
    done = shards.partitioned(graph, 3, tensors={"mine": sharded(0)})
    names, fed = ["largest:0", "total:0", "gradient:0"], {"x:0": np.random.RandomState(0).normal(size=[rows, 3])}
    with shards.Shards(graph, done, 1e-12) as both:
        for got, want in pairs(both.run(names, fed), both.run_whole(names, fed)):
            np.testing.assert_allclose(got, want, rtol=1e-12)  # of float64: a third in float32 would not do


def test_one_row_that_is_broadcast():
    """The gradient of broadcasting then sums over the rows too, of which all shards but one have none."""
    with capture(8) as graph:
        x = tf.identity(tf.placeholder(tf.float32, [None, 4], name="x"), name="mine")
        total = tf.reduce_sum(tf.square(x + tf.reduce_max(x, 1, keepdims=True)))
        tf.identity(tf.gradients(total, x)[0], name="gradient")
    done = shards.partitioned(graph, 2, tensors={"mine": sharded(0)})
    with shards.Shards(graph, done) as both:
        for rows in (1, 3):
            fed = {"x:0": np.random.RandomState(0).normal(size=[rows, 4])}
            assert_same(both.run(["gradient:0"], fed)[0], both.run_whole("gradient:0", fed))


def test_operations_without_a_rule_get_whole_inputs_and_are_listed():
    with capture(7) as graph:
        x = tf.identity(tf.constant(np.arange(12.0).reshape([3, 4]), tf.float32), name="x")
        tf.linalg.qr(x, name="qr")
        tf.identity(tf.matrix_band_part(x, 1, 1, name="band"), name="out")
    done = shards.partitioned(graph, 2, tensors={"x": sharded(1)})
    assert [(each.node, each.op, each.num_bytes) for each in done.without_rule] == [
        ("qr", "Qr", 48),
        ("band", "MatrixBandPart", 48),
    ]
    with shards.Shards(graph, done) as both:
        np.testing.assert_array_equal(both.run(["out:0"])[0], both.run_whole("out:0"))


def test_the_same_graph_gives_the_same_program():
    graph = transformer()
    marked = split_models.variables_under(graph, "block")
    one, other = [shards.partitioned(graph, 2, marked) for _ in range(2)]
    assert one.collectives == other.collectives and one.placements == other.placements
    assert [n.SerializeToString(deterministic=True) for n in one.graph.nodes.values()] == [
        n.SerializeToString(deterministic=True) for n in other.graph.nodes.values()
    ]


def test_a_mark_that_cannot_be_is_refused():
    with capture() as graph:
        tf.nn.softmax(tf.ones([4, 3]), name="x")
    with pytest.raises(
        PlanError, match=r"'x' is marked to be sharded\(1\) over 4 devices, but it is of shape \(4, 3\)"
    ):
        shards.partitioned(graph, 4, tensors={"x": sharded(1)})


def test_unknown_operations_with_state_are_refused_by_name(monkeypatch):
    from epl.rules import effects

    with capture() as graph:
        x = tf.identity(tf.ones([4, 3]), name="x")
        tf.py_func(lambda a: a, [x], tf.float32, name="mine")
    monkeypatch.setattr(effects, "kind_of", lambda op: None)
    with pytest.raises(UnsupportedError, match="'mine' takes 'x', which is divided over 2 devices, and its operation"):
        shards.partitioned(graph, 2, tensors={"x": sharded(0)})


def test_nothing_is_divided_where_nothing_is_marked():
    graph = transformer()
    done = shards.partitioned(graph, 2)
    assert not done.placements and not done.collectives
    assert all(
        node is done.graph.nodes[name] or node == done.graph.nodes[name] for name, node in done.graph.nodes.items()
    )
    assert WHOLE not in done.placements.values()


def test_a_variable_that_cannot_be_updated_in_parts(monkeypatch):
    from epl.partition import propagate

    with capture() as graph:
        kernel = tf.get_variable("kernel", [4, 6], use_resource=False)
        loss = tf.reduce_sum(tf.matmul(tf.ones([2, 4]), kernel))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    fits = propagate._Propagation._fits_variables

    def no_update(self, strategy, name, inputs):
        return "Apply" not in name and fits(self, strategy, name, inputs)

    monkeypatch.setattr(propagate._Propagation, "_fits_variables", no_update)
    with pytest.raises(UnsupportedError, match="takes the variable 'kernel', which lies sharded.1. over 2"):
        shards.partitioned(graph, 2, ["kernel"])
