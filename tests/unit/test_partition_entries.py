"""Lookups of batches with any number of ids in each row, and of ids that were flattened: rows travel as others do."""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.program.placement import RAGGED, WHOLE, sharded
from tests.helpers import shards, split_models
from tests.helpers.planning import capture
from tests.unit.test_partition_models import STEPS, assert_trains_alike
from tests.unit.test_partition_routes import OPTIMIZERS, free_collectives  # noqa: F401 (a fixture)

ROWS, WIDTH, BATCH, FIELDS = 13, 8, 7, 3


def looked_up(kind, combiner, table):
    """What is looked up of a sparse batch, or of ids that are flattened."""
    if kind == "flattened":
        ids = tf.placeholder(tf.int64, [None, FIELDS], name="ids")
        return tf.reshape(tf.gather(table, tf.reshape(ids, [-1])), [-1, FIELDS * WIDTH])
    if kind == "two flattened":
        ids = tf.reshape(tf.placeholder(tf.int64, [None, FIELDS], name="ids"), [-1])
        linear = tf.reshape(tf.gather(tf.get_variable("linear", [ROWS, 1]), ids), [-1, FIELDS, 1])
        return tf.reshape(tf.gather(table, ids), [-1, FIELDS * WIDTH]) + tf.reduce_sum(linear, 1)
    values = tf.placeholder(tf.int64, [None], name="ids")
    where, shape = tf.placeholder(tf.int64, [None, 2], name="where"), tf.constant([BATCH, FIELDS], tf.int64)
    ids = tf.SparseTensor(where, values, shape)
    weights = tf.SparseTensor(where, tf.placeholder(tf.float32, [None], name="weights"), shape)
    if kind.endswith("learnt"):
        weights = tf.SparseTensor(where, tf.gather(tf.get_variable("weights_of_ids", [ROWS]), values), shape)
    look_up = tf.nn.safe_embedding_lookup_sparse if kind.startswith("safe") else tf.nn.embedding_lookup_sparse
    found = look_up(table, ids, weights if kind.endswith(("weighted", "learnt")) else None, combiner=combiner)
    return tf.reshape(found, [-1, WIDTH])


def model(kind, combiner, optimizer, clip=None, resource=True):
    with tf.variable_scope(tf.get_variable_scope(), use_resource=resource):
        found = looked_up(kind, combiner, tf.get_variable("table", [ROWS, WIDTH]))
    split_models.trains_a_layer_on(found, optimizer, clip)


def fed(kind):
    """The batches of some steps."""
    draw, found = np.random.RandomState(1), {}
    if "flattened" in kind:
        return {"ids:0": draw.randint(0, ROWS, [STEPS, BATCH, FIELDS])}
    is_safe = kind.startswith("safe")
    least = -1 if is_safe and "learnt" not in kind else 0
    for _ in range(STEPS):
        rows = sorted(list(range(BATCH)) + list(draw.randint(0, BATCH, 8)))
        if is_safe:
            rows = [row for row in rows if row not in (2, BATCH - 1)]
        place = [rows[:i].count(row) for i, row in enumerate(rows)]
        found.setdefault("where:0", []).append(np.stack([rows, place], 1))
        found.setdefault("ids:0", []).append(draw.randint(least, ROWS, len(rows)))
        found.setdefault("weights:0", []).append(draw.rand(len(rows)) + (-0.2 if is_safe else 0.1))
    return found


CASES = [
    ("flattened", None, 2, 2, False),
    ("two flattened", None, 0, 3, False),
    ("sparse", "mean", 0, 2, False),
    ("sparse", "sum", 1, 3, True),
    ("sparse", "sqrtn", 2, 4, False),
    ("weighted", "mean", 3, 2, True),
    ("weighted", "sum", 2, 3, False),
    ("safe", "mean", 2, 2, False),
    ("safe weighted", "sqrtn", 3, 3, True),
    ("safe weighted", "sum", 0, 2, False),
]


@pytest.mark.parametrize("kind, combiner, optimizer, count, clipped", CASES)
@pytest.mark.parametrize("resource", [False, True])
def test_trains_as_one_device(free_collectives, kind, combiner, optimizer, count, clipped, resource):  # noqa: F811
    with capture(3) as graph:
        model(kind, combiner, OPTIMIZERS[optimizer](), 0.1 if clipped else None, resource)
    tables = ["table", "linear"] if kind == "two flattened" else ["table"]
    done = shards.partitioned(graph, count, tables, by_rows=True)
    assert all(done.placements[table] == sharded(0) for table in tables)
    assert_trains_alike(graph, done, fed(kind))
    found = collections.Counter((c.kind, c.phase) for c in shards.exchanged(done, "train"))
    lookups = 2 if kind == "two flattened" else 1
    travels = {("all_to_all", "forward"): 1 + lookups, ("all_to_all", "backward"): lookups}
    assert {key: count for key, count in found.items() if key[0] == "all_to_all"} == travels
    if not clipped:  # but for what the dense layer adds up, that is all
        travels["all_reduce", "backward"] = 2
        assert found == travels


@pytest.mark.parametrize("kind", ["learnt", "safe learnt"])
def test_rows_of_learnt_weights_are_added_up(free_collectives, kind):  # noqa: F811
    with capture(3) as graph:
        model(kind, "sum", OPTIMIZERS[2]())
    done = shards.partitioned(graph, 2, ["table"], by_rows=True)
    assert done.placements["table"] == sharded(0)
    assert RAGGED not in {placement.kind for placement in done.placements.values()}
    assert_trains_alike(graph, done, fed(kind))


def test_what_is_marked_to_be_whole_is_not_divided_by_row(free_collectives):  # noqa: F811
    with capture(3) as graph:
        model("flattened", None, OPTIMIZERS[2]())
    marked = {op.name: WHOLE for op in graph.get_operations() if op.type == "Reshape" and op.inputs[0].name == "ids:0"}
    assert shards.partitioned(graph, 2, ["table"], by_rows=True).placements.keys() >= marked.keys()
    done = shards.partitioned(graph, 2, ["table"], marked, by_rows=True)
    assert done.placements.keys().isdisjoint(marked)
    assert_trains_alike(graph, done, fed("flattened"))
