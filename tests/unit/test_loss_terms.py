"""What losses are sums of, as their graphs tell."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.plan.facts.analysis import analyse
from epl.plan.sync.loss_notes import loss_guesses, loss_notes
from epl.plan.sync.loss_terms import plan_losses
from tests.helpers.planning import capture, compiled, sgd

Reduction = tf.losses.Reduction
ROWS = 8


class Data(object):
    """Placeholders for a batch, of an open or of a fixed size, and what a layer makes of them."""

    def __init__(self, rows):
        self.x = tf.placeholder(tf.float32, [rows, 4])
        self.y = tf.placeholder(tf.float32, [rows, 1])
        self.weights = tf.placeholder(tf.float32, [rows, 1])
        self.groups = tf.placeholder(tf.int32, [rows])
        self.w = tf.get_variable("w", [4, 1])
        self.out = tf.matmul(self.x, self.w)
        self.errors = tf.square(self.out - self.y)

    def of_tf_losses(self, **kwargs):
        return tf.losses.mean_squared_error(self.y, self.out, **kwargs)


def recurrent(data):
    ids = tf.placeholder(tf.int64, [data.x.shape[0], 5])
    lengths = tf.placeholder(tf.int32, [data.x.shape[0]])
    inputs = tf.nn.embedding_lookup(tf.get_variable("table", [9, 4]), ids)
    cell = tf.nn.rnn_cell.BasicRNNCell(4)
    hidden, _ = tf.nn.dynamic_rnn(cell, inputs, lengths, dtype=tf.float32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=tf.layers.dense(hidden, 9))
    mask = tf.sequence_mask(lengths, 5, tf.float32)
    return tf.reduce_sum(each * mask) / tf.cast(tf.size(lengths), tf.float32), tf.reduce_sum(each * mask), mask


def two_towers(data):
    one, other = (tf.matmul(data.x, tf.get_variable(name, [4, 3])) for name in ("one", "other"))
    logits = tf.matmul(one, other, transpose_b=True)
    labels = tf.range(tf.shape(data.x)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def pairs(data, first, second):
    return tf.reduce_mean(tf.nn.relu(1.0 - (first(data.out) - second(data.out))))


def normalised(data):
    hidden = tf.layers.batch_normalization(tf.layers.dense(data.x, 4), training=True)
    return tf.reduce_mean(tf.square(hidden)) + tf.reduce_sum(hidden)


def sum_and_square(total):
    return total + tf.square(total)


def tokens(d):
    """(losses of five tokens of each row, labels)"""
    labels = tf.placeholder(tf.int64, [d.x.shape[0], 5])
    logits = tf.tensordot(tf.tile(d.x[:, None], [1, 5, 1]), tf.get_variable("kernel", [4, 3]), 1)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), labels


def of_some_tokens(d):
    each, labels = tokens(d)
    return tf.reduce_mean(tf.boolean_mask(tf.reshape(each, [-1]), tf.not_equal(tf.reshape(labels, [-1]), -100)))


def penalty_on_embeddings(d):
    """Of rows that are looked up by sparse ids, as feature columns do."""
    columns = tf.feature_column
    column = columns.embedding_column(columns.categorical_column_with_identity("id", 5), 4)
    looked_up = columns.input_layer({"id": d.groups}, [column])
    return tf.nn.l2_loss(tf.expand_dims(looked_up, 1)) + 0.5 * tf.reduce_sum(looked_up)


def by_size_of_some(d):
    some = tf.boolean_mask(d.errors, d.weights > 0)
    return tf.reduce_sum(some) / tf.cast(tf.size(some), tf.float32)


LOSSES = {
    "mean": (lambda d: tf.reduce_mean(d.errors), {"mean"}),
    "mean of means": (lambda d: tf.reduce_mean(tf.reduce_mean(d.errors, axis=-1)), {"mean"}),
    "sum": (lambda d: tf.reduce_sum(d.errors), {"sum"}),
    "sum of sums": (lambda d: 0.5 * tf.reduce_sum(tf.reduce_sum(d.errors, axis=-1)), {"sum"}),
    "l2": (lambda d: tf.nn.l2_loss(d.out - d.y), {"sum"}),
    "vector": (lambda d: tf.squeeze(d.errors), {"sum"}),
    "sum and penalty": (lambda d: d.of_tf_losses(reduction=Reduction.SUM) + tf.nn.l2_loss(d.w), {"sum", "same"}),
    "sum by rows": (lambda d: tf.reduce_sum(d.errors) / tf.cast(tf.shape(d.x)[0], tf.float32), {"mean"}),
    "by non-zero weights": (lambda d: d.of_tf_losses(), {"mean"}),
    "by weights": (lambda d: d.of_tf_losses(reduction=Reduction.MEAN), {"mean"}),
    "by elements": (lambda d: d.of_tf_losses(reduction=Reduction.SUM_OVER_BATCH_SIZE), {"mean"}),
    "by fed weights": (lambda d: d.of_tf_losses(weights=d.weights), {"ratio"}),
    "by at least 1": (lambda d: tf.reduce_sum(d.errors) / tf.maximum(tf.reduce_sum(d.weights), 1.0), {"ratio"}),
    "of some rows": (lambda d: tf.reduce_mean(tf.boolean_mask(d.errors, d.weights[:, 0] > 0)), {"ratio"}),
    "of some elements": (lambda d: tf.reduce_mean(tf.boolean_mask(d.errors, d.weights > 0)), {"ratio"}),
    "sum of some rows": (lambda d: tf.reduce_sum(tf.boolean_mask(d.errors, d.weights[:, 0] > 0)), {"sum"}),
    "of some tokens": (of_some_tokens, {"ratio"}),
    "of all tokens": (lambda d: tf.reduce_mean(tf.reshape(tokens(d)[0], [-1])), {"mean"}),
    "sum of all tokens": (lambda d: tf.reduce_sum(tf.reshape(tokens(d)[0], [-1, 1])), {"sum"}),
    "l2 of all tokens": (lambda d: tf.nn.l2_loss(tf.reshape(tokens(d)[0], [-1])), {"sum"}),
    "l2 of rows in a dimension that nobody knows": (
        lambda d: tf.nn.l2_loss(tf.reshape(tf.transpose(d.out), [-1])),
        {"sum"},
    ),
    "mean of rows in a dimension that nobody knows": (
        lambda d: tf.reduce_mean(tf.square(tf.reshape(tf.transpose(d.out), [-1]))),
        {"mean"},
    ),
    "chosen along rows": (
        lambda d: tf.reduce_sum(tf.nn.softmax(tf.reshape(tf.transpose(d.out), [1, -1]))),
        {"compared"},
    ),
    "softmax of each row": (lambda d: tf.reduce_sum(tf.nn.softmax(d.x * d.w[:, 0]) * d.x), {"sum"}),
    "penalty on embeddings": (penalty_on_embeddings, {"sum"}),
    "by the size of some": (by_size_of_some, {"ratio"}),
    "of some by index": (
        lambda d: tf.reduce_mean(tf.gather_nd(d.errors, tf.where(d.weights[:, 0] > 0))),
        {"ratio"},
    ),
    "by a fed number": (lambda d: tf.reduce_sum(d.errors) / tf.placeholder(tf.float32, []), {"unknown"}),
    "recurrent": (lambda d: recurrent(d)[0], {"mean"}),
    "recurrent sum": (lambda d: recurrent(d)[1], {"sum"}),
    "normalised": (normalised, {"mean", "sum"}),
    "root": (lambda d: tf.sqrt(tf.reduce_mean(d.errors)), {"other"}),
    "largest": (lambda d: tf.reduce_max(d.errors), {"other"}),
    "dice": (lambda d: tf.reduce_sum(d.out * d.y) / tf.reduce_sum(d.out + d.y), {"other"}),
    "covariance": (
        lambda d: tf.reduce_sum(tf.square(tf.matmul(d.x * d.out, d.x * d.out, transpose_a=True))),
        {"other"},
    ),
    "used twice": (lambda d: sum_and_square(tf.reduce_sum(d.errors)), {"unknown", "other"}),
    "two towers": (two_towers, {"compared"}),
    "transposed": (lambda d: pairs(d, lambda x: x, tf.transpose), {"compared"}),
    "expanded": (lambda d: pairs(d, lambda x: x[:, 0][:, None], lambda x: x[:, 0][None, :]), {"compared"}),
    "segments": (lambda d: tf.reduce_mean(tf.square(tf.unsorted_segment_sum(d.out, d.groups, 3))), {"compared"}),
    "over rows": (lambda d: tf.reduce_mean(tf.nn.softmax(tf.transpose(d.out)) * tf.transpose(d.y)), {"compared"}),
}


def losses_of(make, rows):
    with capture() as graph:
        loss = make(Data(rows))
        sgd(loss)
    program = make_program(graph)
    return graph, plan_losses(program, analyse(program))


@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_kinds_of_terms(name, rows):
    make, kinds = LOSSES[name]
    (loss,) = losses_of(make, rows)[1]
    assert loss.kinds == kinds
    assert len(loss.seeds) == 1


@pytest.mark.parametrize("divisor, kind", [(ROWS, "mean"), (2 * ROWS, "mean"), (3, "sum"), (0.5, "sum")])
def test_constants_that_are_the_rows(divisor, kind):
    (loss,) = losses_of(lambda d: tf.reduce_sum(d.errors) / divisor, ROWS)[1]
    assert loss.kinds == {kind}


@pytest.mark.parametrize("divisor, kind", [(6, "mean"), (7, "sum")])
def test_constants_that_are_the_rows_of_a_data_set(divisor, kind):
    def loss(data):
        rows = tf.data.Dataset.from_tensor_slices(tf.ones([20, 4])).batch(6)
        x = tf.data.make_one_shot_iterator(rows).get_next()
        return tf.reduce_sum(tf.square(tf.matmul(x, data.w))) / divisor

    assert losses_of(loss, None)[1][0].kinds == {kind}


def test_what_only_adds_up_to_a_loss_is_no_loss():
    """A gradient that is a part of the loss has terms of its own."""

    def penalised(data):
        slope = tf.gradients(tf.reduce_sum(data.out), data.x)[0]
        return tf.reduce_mean(data.errors) + tf.reduce_mean(tf.square(slope))

    (loss,) = losses_of(penalised, None)[1]
    assert "mean" in loss.kinds and not loss.kinds & {"sum", "compared", "other"}


TOLD = [
    ("two towers", "auto", r"the loss '.*' compares the rows of a batch .*'MatMul_.'.*epl.replicate\(k\).*epl.split"),
    ("root", "auto", r"in another way than by additions and constant factors \('Sqrt'\)"),
    (
        "sum and penalty",
        "mean",
        r"a sum over the rows \('.*Sum'\) plus a term that is not \('L2Loss'\).*Set it to \"auto\"",
    ),
    ("sum and penalty", "sum", r"with \"sum\" the other term for more"),
    ("sum", "mean", r"is a sum over the rows \('Sum'\), of which the mean .* Set .* to \"auto\", or to \"sum\""),
    ("sum", "sum", None),
    ("of some rows", "auto", None),
    ("of some rows", "mean", r"is a sum over the rows that is divided by what the data says \('Mean'\)"),
    ("sum and penalty", "auto", None),
    ("mean", "auto", None),
    ("recurrent", "auto", None),
    ("normalised", "auto", None),
]


@pytest.mark.parametrize("name, method, pattern", TOLD)
def test_what_people_are_told(name, method, pattern):
    graph, _ = losses_of(LOSSES[name][0], None)
    notes = loss_notes(compiled(graph, communication__gradients_reduce_method=method).losses, method)
    assert len(notes) == (pattern is not None)
    if pattern:
        assert re.search(pattern, notes[0]), notes[0]


@pytest.mark.parametrize("name, count", [("by a fed number", 1), ("sum and penalty", 0)])
def test_what_is_not_known_is_told(name, count):
    graph, _ = losses_of(LOSSES[name][0], None)
    told = loss_guesses(compiled(graph).losses)
    assert len(told) == count
    assert all("how the loss 'truediv' is made of the rows of a batch (from 'Sum' on)" in each for each in told), told


def weights(program):
    return sorted(
        node.attr["value"].tensor.float_val[0] for node in program.graph.nodes.values() if "_epl_parts" in node.attr
    )


@pytest.mark.parametrize(
    "name, found", [("mean", []), ("sum", [12.0]), ("sum and penalty", [12.0]), ("normalised", [12.0]), ("root", [])]
)
def test_nothing_is_weighed_but_sums(name, found):
    graph, _ = losses_of(LOSSES[name][0], None if found else ROWS)  # a batch that is fed has another share
    options = dict(workers=3, devices=2, pipeline__num_micro_batch=2)
    weighed = compiled(graph, **options)
    assert set(weights(weighed)) == set(found)
    as_asked = compiled(graph, communication__gradients_reduce_method="mean", **options)
    assert not weights(as_asked)
    if not found:
        assert weighed.graph.nodes.keys() == as_asked.graph.nodes.keys()


def shares(program):
    """The constants that say how much the rows that a worker is fed count."""
    return [node for node in program.graph.nodes.values() if "_epl_share" in node.attr]


@pytest.mark.parametrize(
    "rows, options, counts",
    [
        (None, dict(workers=2, devices=1), 1),
        (None, dict(workers=2, devices=2), 2),
        (None, dict(workers=2, devices=1, pipeline__num_micro_batch=2), None),
        (None, dict(workers=1, devices=2), 0),
        (ROWS, dict(workers=2, devices=1), 0),
        (None, dict(workers=2, devices=1, local_sgd__k_steps=2), 0),
        (None, dict(workers=2, devices=1, communication__gradients_reduce_method="mean"), 0),
    ],
    ids=str,
)
def test_means_of_fed_rows_have_a_share_that_is_1(rows, options, counts):
    program = compiled(losses_of(LOSSES["mean"][0], rows)[0], **options)
    found = shares(program)
    assert found if counts is None else len(found) == counts
    assert all(node.op == "Const" and node.attr["value"].tensor.float_val[:] == [1] for node in found)


def test_means_of_data_that_is_read_have_no_share_beside_what_is_fed():
    def mean(errors, x):
        return tf.reduce_mean(errors * tf.placeholder(tf.float32, [None, 1]))

    assert not shares(of_data(mean, endless, batches()))


def test_one_copy_has_nothing_to_weigh():
    graph, _ = losses_of(LOSSES["sum"][0], None)
    program = compiled(graph, workers=1, devices=1)
    assert not weights(program) and not program.losses


def data(*steps):
    """Rows of x and y, of a data set that is made by these steps."""
    rows = tf.data.Dataset.from_tensor_slices((tf.ones([20, 4]), tf.ones([20, 1])))
    for step in steps:
        rows = step(rows)
    return tf.data.make_initializable_iterator(rows).get_next()


def batches(**kwargs):
    return lambda rows: rows.batch(6, **kwargs)


def of_all(errors, x):
    return tf.reduce_mean(errors)


MEANS = {
    "of all": of_all,
    "of means": lambda errors, x: tf.reduce_mean(tf.reduce_mean(errors, axis=-1)),
    "by rows": lambda errors, x: tf.reduce_sum(errors) / tf.cast(tf.shape(x)[0], tf.float32),
    "of tf.losses": lambda errors, x: tf.losses.compute_weighted_loss(errors),
    "of each column": lambda errors, x: tf.reduce_sum(tf.reduce_mean(errors, axis=0)),
}


def of_data(mean, *steps, **options):
    """The Program of two workers that train by a mean."""
    with capture() as graph:
        x, y = data(*steps)
        errors = tf.square(tf.matmul(x, tf.get_variable("w", [4, 1])) - y)
        sgd(mean(errors, x))
    return compiled(graph, **dict(dict(workers=2, devices=1), **options))


def counts(*args, **options):
    """How many numbers copies of the model add up."""
    return len(of_data(*args, **options).counts)


@pytest.mark.parametrize("name", sorted(MEANS))
def test_means_over_rows_that_may_differ_are_weighed(name):
    assert counts(MEANS[name], batches()) == 1


def endless(rows):
    return rows.repeat()


FULL = {
    "without a rest": [batches(drop_remainder=True)],
    "without an end": [endless, batches()],
    "shuffled": [lambda rows: rows.apply(tf.data.experimental.shuffle_and_repeat(9)), batches()],
    "prepared": [endless, lambda rows: rows.shuffle(9).map(lambda x, y: (x, y)), batches(), lambda r: r.prefetch(1)],
    "of any rows": [endless, lambda rows: rows.filter(lambda x, y: x[0] > 0).skip(3), batches()],
    "taken": [endless, batches(), lambda rows: rows.map(lambda x, y: (x + 1, y)).take(4)],
}
SHORT = {
    "with an end": [batches()],
    "with a rest in each epoch": [batches(), endless],
    "twice": [lambda rows: rows.repeat(2), batches()],
    "until some row": [endless, lambda rows: rows.take(25), batches()],
    "made again": [endless, batches(), lambda rows: rows.unbatch().take(9), batches()],
}


@pytest.mark.parametrize("name", sorted(FULL))
def test_batches_that_are_always_full_cost_nothing(name):
    assert counts(of_all, *FULL[name]) == 0


@pytest.mark.parametrize("name", sorted(SHORT))
def test_batches_of_which_one_may_be_short(name):
    assert counts(of_all, *SHORT[name]) == 1


@pytest.mark.parametrize(
    "options",
    [
        dict(workers=1),
        dict(pipeline__num_micro_batch=2),
        dict(local_sgd__k_steps=2),
        dict(communication__gradients_reduce_method="mean"),
    ],
    ids=str,
)
def test_means_that_are_not_weighed(options):
    assert counts(of_all, batches(), **options) == 0


@pytest.mark.parametrize(
    "steps, options, notes",
    [
        ([batches()], dict(pipeline__num_micro_batch=2), 1),
        ([endless, batches()], dict(pipeline__num_micro_batch=2), 0),
        ([batches()], {}, 0),
    ],
)
def test_people_are_told_of_means_that_count_the_same(steps, options, notes):
    found = loss_notes(of_data(of_all, *steps, **options).losses, "auto")
    assert len(found) == notes
    assert not notes or re.search(r"the loss 'Mean:?0?' is a mean over the rows \('Mean'\) .* some .* fewer", found[0])


def test_copies_with_as_many_rows_have_a_weight_of_exactly_1():
    """The weight is rows times parts, by all rows, in this order."""
    nodes = of_data(of_all, batches(), workers=3).graph.nodes
    (share,) = [node for node in nodes.values() if node.op == "DivNoNan" and "/share/" in node.name]
    assert nodes[share.input[0]].op == "Mul"
    rows = np.arange(1, 4096, dtype=np.float32)
    assert all(np.all(rows * np.float32(parts) / (rows * np.float32(parts)) == 1) for parts in range(2, 65))
