"""Lookups and gradients whose rows travel between shards that divide both a table's rows and the batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.program.placement import ROUTED, sharded
from tests.helpers import shards, split_models
from tests.helpers.machines import FREE_COLLECTIVES
from tests.helpers.planning import capture
from tests.helpers.programs.tables import LazyMomentum
from tests.unit.test_partition_models import STEPS, assert_trains_alike

OPTIMIZERS = [
    lambda: tf.train.GradientDescentOptimizer(0.1),
    lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    lambda: tf.train.AdagradOptimizer(0.1),
    lambda: tf.train.AdamOptimizer(0.01),
    lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    lambda: tf.train.FtrlOptimizer(0.1),
    LazyMomentum,
]


@pytest.fixture
def free_collectives(monkeypatch):
    """Small examples are divided as large ones are; what lies between products stays whole, to be counted."""
    monkeypatch.setattr(shards, "MACHINE", FREE_COLLECTIVES)


def model(ids, rows, width, optimizer, times=1, clip=None, combined=False):
    """Trains a table that is looked up `times` times by ids of a part of the batch."""
    table, mine = tf.get_variable("table", [rows, width]), tf.identity(ids, name="mine")
    found = tf.nn.embedding_lookup(table, mine)
    for _ in range(times - 1):
        found = found * tf.gather(table, tf.reverse(mine, [-1]))
    if combined and found.shape.ndims > 2:
        found = tf.reduce_sum(found, 1)
    found = tf.reshape(found, [-1, int(np.prod(found.shape.as_list()[1:]))])
    split_models.trains_a_layer_on(found, optimizer, clip)


def check(graph, count, given, fed, rows, apart=False):
    done = shards.partitioned(graph, count, ["table"], {"mine": sharded(0)})
    assert done.placements["table"] == sharded(0)
    kinds = {c.kind for c in shards.exchanged(done, "train") if c.num_bytes > 4 and "dense" not in c.node}
    assert kinds == {"all_to_all"}
    unique = {n.attr["unique"].b for n in done.graph.nodes.values() if n.op == "EplRouteIds"}
    assert unique == {not apart}
    drawn = np.random.RandomState(1)
    assert_trains_alike(graph, done, {given: drawn.randint(0, rows, [STEPS] + fed)})


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("optimizer", range(len(OPTIMIZERS)))
def test_trains_as_one_device(free_collectives, optimizer, resource):
    with capture(3) as graph, tf.variable_scope("", use_resource=resource):
        ids = tf.placeholder(tf.int64 if resource else tf.int32, [None, 5], name="ids")
        clip = 0.1 if optimizer % 2 else None
        model(ids, 11, 6, OPTIMIZERS[optimizer](), 1 + optimizer % 3 // 2, clip)
    check(graph, 2 + optimizer % 3, "ids:0", [7, 5], 11, apart=clip is not None)


def random_case(seed):
    """The arguments of `check` for one of many cases: shapes, shards, optimizers, what rows go through."""
    draw = np.random.RandomState(seed)
    count, dims = draw.randint(2, 5), draw.randint(1, 4)
    shape = [int(size) for size in draw.randint(count, 9, 1)] + [int(size) for size in draw.randint(1, 5, dims - 1)]
    rows, known, clip = int(draw.randint(count, 20)), draw.rand() < 0.5, draw.rand() < 0.3
    with capture(seed) as graph, tf.variable_scope("", use_resource=bool(draw.randint(2))):
        dtype = [tf.int32, tf.int64][draw.randint(2)]
        ids = tf.placeholder(dtype, shape if known else [None] + shape[1:], name="ids")
        optimizer = OPTIMIZERS[draw.randint(len(OPTIMIZERS))]()
        model(ids, rows, 8, optimizer, 1 + (dims > 1 and draw.rand() < 0.3), 0.1 if clip else None, draw.rand() < 0.5)
    return graph, count, "ids:0", shape, rows, clip


@pytest.mark.parametrize("seed", range(3))
def test_random_cases(free_collectives, seed):
    check(*random_case(seed))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3, 103))
def test_more_random_cases(free_collectives, seed):
    check(*random_case(seed))


def sparse(optimizer=None, between=lambda pairs: pairs, shape=(64, 40)):
    with capture() as graph:
        mine = tf.identity(tf.placeholder(tf.int32, shape, name="ids"), name="mine")
        rows = tf.nn.embedding_lookup(tf.get_variable("table", [100, 32]), mine)
        rows = tf.reshape(rows, [-1, shape[1] * 32])
        loss = tf.reduce_mean(tf.square(split_models.dense(rows, 2, "dense")))
        made = optimizer or tf.train.GradientDescentOptimizer(0.1)
        made.apply_gradients(between(made.compute_gradients(loss)), name="train")
    return shards.partitioned(graph, 2, ["table"], {"mine": sharded(0)})


def exchanges(done):
    found = [c for c in shards.exchanged(done, "train") if c.num_bytes > 4 and "dense" not in c.node]
    return [(c.kind, c.phase, c.num_bytes) for c in found]


def test_each_row_travels_once_to_the_batch_and_once_to_the_owner():
    ids, rows = 64 * 40 * 4, 64 * 40 * 32 * 4
    want = [("all_to_all", "forward", ids), ("all_to_all", "forward", rows), ("all_to_all", "backward", rows)]
    done = sparse(tf.train.AdagradOptimizer(0.1))
    assert exchanges(done) == want
    assert not done.without_rule
    routed = {name for name, place in done.placements.items() if place == ROUTED}
    assert any("Unique" in name for name in routed) and any("UnsortedSegmentSum" in name for name in routed)


def test_rows_do_not_travel_where_something_needs_them_in_order():
    def reversed_rows(pairs):
        return [
            (tf.IndexedSlices(tf.reverse(g.values, [0]), g.indices) if isinstance(g, tf.IndexedSlices) else g, v)
            for g, v in pairs
        ]

    phases = [(kind, phase) for kind, phase, _ in exchanges(sparse(between=reversed_rows))]
    assert phases[:2] == [("all_to_all", "forward")] * 2
    assert ROUTED not in sparse(between=reversed_rows).placements.values()


@pytest.mark.parametrize("wrong", [-1, 11])
@pytest.mark.parametrize("batch", [{"mine": sharded(0)}, {}])
def test_an_id_outside_of_the_table_is_named(free_collectives, wrong, batch):
    """Where rows travel, and where each shard looks up those that it has."""
    with capture() as graph:
        model(tf.placeholder(tf.int32, [4, 3], name="ids"), 11, 8, tf.train.GradientDescentOptimizer(0.1))
    done = shards.partitioned(graph, 2, ["table"], batch)
    with shards.Shards(graph, done) as both:
        both.run_operations(["init"])
        ids = np.zeros([4, 3], np.int32)
        ids[1, 2] = wrong
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1,2\] = %d is not in \[0, 11\)" % wrong):
            both.run_operations(["train"], {"ids:0": ids})
