"""Random small graphs with their gradients, and steps of training, in parts against the whole: rules put together."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import random_graphs, shards
from tests.helpers.checks import pairs
from tests.helpers.machines import SLOW_BETWEEN
from tests.helpers.planning import capture

_ROUNDING = 1e-8  # in float64, of numbers around 1


def _value_of(variable):
    return variable.op.name + ("/Read/ReadVariableOp:0" if variable.op.type == "VarHandleOp" else ":0")


def check(seed, count, graphs, batches=(8, 5, 1)):
    """Draws graphs, and trains them on batches of different sizes: more rows than shards, an odd number, one row."""
    with capture(1) as graph:
        drawn, _ = random_graphs.draw_graphs(seed, count, graphs)
        tf.global_variables_initializer()
    marks = {name: place for each in drawn for name, place in each.marks.items()}
    variables = [name for each in drawn for name in each.variables]
    done = shards.partitioned(graph, count, variables, marks)
    assert done.placements and done.collectives
    names = [tensor.name for each in drawn for tensor in each.outputs + [each.loss]]
    names += [_value_of(v) for each in drawn for v in each.sources if isinstance(v, tf.Variable)]
    with shards.Shards(graph, done, _ROUNDING, names + ["init", "train"]) as both:
        both.run_whole("init")
        both.run_operations(["init"])
        for number, rows in enumerate(batches):
            if number:
                fed = random_graphs.feeds(batches[number - 1], seed + batches[number - 1])
                both.run_whole("train", fed)
                both.run_operations(["train"], fed)
            fed = random_graphs.feeds(rows, seed + rows)
            for name, got, want in pairs(names, both.run(names, fed), both.run_whole(names, fed)):
                what = "%s: seed %d, %d shards, %d rows" % (name, seed, count, rows)
                np.testing.assert_allclose(got, want, rtol=_ROUNDING, atol=_ROUNDING, err_msg=what)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("count", [2, 3, 4])
def test_random_graphs(count, part):
    """300 graphs in all, each on one line."""
    check(10 * count + part, count, 25, (5, 1))


def test_random_graphs_with_rows_between_products(monkeypatch):
    monkeypatch.setattr(shards, "MACHINE", SLOW_BETWEEN)  # so that it pays for few numbers too
    check(77, 2, 25, (5, 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(120))
@pytest.mark.once
def test_many_random_graphs(seed):
    check(1000 + seed, 2 + seed % 3, 25)
