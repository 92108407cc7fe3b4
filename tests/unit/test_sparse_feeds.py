"""The three arrays of a sparse tensor that is fed, divided over copies of the model."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.plan.facts.analysis import batch_placeholder
from epl.session.sparse_feeds import sparse_feeds
from tests.helpers.planning import capture

FED = {
    "x/indices:0": np.array([[0, 0], [0, 2], [2, 1], [3, 0]]),
    "x/values:0": np.array([4.0, 5.0, 6.0, 7.0]),
    "x/shape:0": np.array([4, 3]),
}
NAMES = tuple(sorted(FED))


def feeds_of(build):
    with capture() as graph:
        build()
    graph = make_program(graph).graph
    return graph, sparse_feeds(graph, [name for name in NAMES if name[:-2] in graph.nodes])


@pytest.mark.parametrize("shape", [None, [None, 3]])
def test_entries_go_with_their_rows(shape):
    graph, found = feeds_of(lambda: tf.sparse_placeholder(tf.float32, shape, name="x"))
    assert sorted(found) == list(NAMES) and all(batch_placeholder(graph, name[:-2]) for name in NAMES)
    assert {each.rows(FED, 2) for each in found.values()} == {4}
    first, second = [{name: each.part(FED, *rows) for name, each in found.items()} for rows in ((0, 2), (2, 4))]
    np.testing.assert_array_equal(first["x/indices:0"], [[0, 0], [0, 2]])
    np.testing.assert_array_equal(second["x/indices:0"], [[0, 1], [1, 0]])
    np.testing.assert_array_equal(first["x/values:0"], [4, 5])
    np.testing.assert_array_equal(second["x/values:0"], [6, 7])
    assert all(part["x/shape:0"].tolist() == [2, 3] for part in (first, second))
    assert FED["x/indices:0"].max() == 3  # the program's own array stays as it is


def test_entries_without_their_shape_are_refused():
    def build():
        values, rows = tf.placeholder(tf.float32, [None], name="x/values"), tf.placeholder(tf.int64, [], name="rows")
        tf.SparseTensor(tf.placeholder(tf.int64, [None, 2], name="x/indices"), values, tf.stack([rows, 3]))

    _, found = feeds_of(build)
    assert len(found) == 2
    for each in found.values():
        with pytest.raises(UnsupportedError, match="is fed entries of a sparse tensor, .* but its shape is not fed"):
            each.rows(FED, 2)


def test_entries_in_a_fixed_number_are_no_batch():
    def build():
        values, shape = tf.placeholder(tf.float32, [4], name="x/values"), tf.placeholder(tf.int64, [2], name="x/shape")
        tf.SparseTensor(tf.placeholder(tf.int64, [4, 2], name="x/indices"), values, shape)

    graph, found = feeds_of(build)
    assert not found and not any(tags.SPARSE in node.attr for node in graph.nodes.values())


@pytest.mark.parametrize("is_placeholder", [False, True])
def test_a_fixed_number_of_rows_is_no_batch(is_placeholder):
    def build():
        if is_placeholder:
            tf.sparse_placeholder(tf.float32, [4, 3], name="x")
        else:
            values = tf.placeholder(tf.float32, [None], name="x/values")
            tf.SparseTensor(tf.placeholder(tf.int64, [None, 2], name="x/indices"), values, [4, 3])

    graph, found = feeds_of(build)
    assert not found
    assert not any(batch_placeholder(graph, name) for name in ("x/values", "x/indices"))


def test_a_sparse_placeholder_of_a_fixed_shape_can_be_fed():
    with capture() as graph:
        x = tf.sparse_placeholder(tf.float32, [4, 3], name="x")
    assert all(graph.is_feedable(tensor) for tensor in (x.indices, x.values, x.dense_shape))
