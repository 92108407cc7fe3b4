"""`epl.shard` and `epl.whole`: what users decide about where tensors lie."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import CaptureError, PlanError
from epl.graph import tags
from epl.program.placement import sharded
from tests.helpers import planning


def model(hint=lambda x, kernel, logits: None, resource=False):
    """A graph that trains two layers inside of epl.split(2), with what `hint` says of them."""
    with planning.capture(3) as graph, tf.variable_scope("", use_resource=resource):
        x = tf.placeholder(tf.float32, [8, 4], name="x")
        with epl.split(2):
            kernel = tf.get_variable("kernel", [4, 6])
            logits = tf.matmul(x, kernel, name="logits")
            hint(x, kernel, logits)
            out = tf.matmul(tf.tanh(logits, name="hidden"), tf.get_variable("out", [6, 5]), name="result")
            loss = tf.reduce_mean(tf.square(out - 1.0), name="loss")
        tf.train.AdamOptimizer(0.1).minimize(loss, name="train")
        tf.global_variables_initializer()
    return graph


def places(graph, **layout):
    return planning.compiled(graph, **layout).plan.partitioned.placements


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_variable_lies_as_was_said_with_its_slots(resource, dim):
    found = places(model(lambda x, kernel, logits: epl.shard(kernel, dim), resource))
    for name in ("kernel", "kernel/Adam", "kernel/Adam_1"):
        assert found[name] == sharded(dim)


def test_what_is_said_to_be_whole_stays_whole():
    assert places(model())["kernel"] == sharded(1)
    found = places(model(lambda x, kernel, logits: epl.whole(kernel)))
    assert "kernel" not in found and "kernel/Adam" not in found and found["out"] == sharded(1)


def test_tensors_lie_as_was_said():
    assert places(model())["hidden"] == sharded(1)
    found = places(model(lambda x, kernel, logits: epl.shard(logits, 0)))
    assert found["hidden"] == sharded(0)
    assert "hidden" not in places(model(lambda x, kernel, logits: epl.whole(logits)))
    # Data, which no operation makes in parts, is divided where it is taken.
    found = places(model(lambda x, kernel, logits: epl.shard(x, -1)))
    assert found["epl_placed/0/x"] == sharded(1) and "x" not in found


def test_tags_of_outputs():
    with planning.capture() as graph, epl.split(2):
        first, second = tf.split(tf.ones([4, 4]), 2, name="both")
        assert epl.shard(first, 0) is first and epl.whole(second) is second
    node = planning.make_program(graph).graph.nodes["both"]
    assert tags.places_of(node) == {0: 0, 1: None}


def test_where_hints_may_not_stand():
    with planning.capture():
        x = tf.ones([4, 3])
        with pytest.raises(CaptureError, match="epl.shard at test_hints.py:.* stands outside of an epl.split scope"):
            epl.shard(x, 0)
        with epl.replicate(2), pytest.raises(CaptureError, match="epl.whole at .* stands outside of an epl.split"):
            epl.whole(x)
        with epl.split(2), pytest.raises(CaptureError, match="takes a tensor or a variable, not 'x'"):
            epl.shard("x", 0)

        @tf.function(autograph=False)
        def inside(y):
            return epl.shard(y, 0)

        with epl.split(2), pytest.raises(CaptureError, match="stands inside of a function"):
            inside(x)


@pytest.mark.parametrize(
    "dim, message",
    [
        (2, r"is of shape \(4, 1\) and has no dimension 2"),
        (-3, r"is of shape \(4, 1\) and has no dimension -3"),
        (1, "dimension 1 of 'x' has 1 elements, too few to give each of 2 devices one"),
        ("0", "dim is the number of a dimension, such as 0, not '0'"),
    ],
)
def test_dimensions_that_cannot_be_divided(dim, message):
    with planning.capture(), epl.split(2):
        with pytest.raises(PlanError, match=message):
            epl.shard(tf.ones([4, 1], name="x"), dim)


def test_hints_that_contradict():
    with planning.capture(), epl.split(2):
        x = tf.ones([4, 3], name="x")
        epl.shard(x, 0)
        epl.shard(x, -2)  # the same
        with pytest.raises(
            PlanError,
            match="wants 'x' to be divided along dimension 1, but epl.shard at test_hints.py:[0-9]+ wants it to be "
            "divided along dimension 0. Leave one of the two out",
        ):
            epl.shard(x, 1)
        with pytest.raises(PlanError, match="epl.whole at .* wants 'x' to be whole, but epl.shard"):
            epl.whole(x)


def test_a_variable_that_is_changed_by_something_without_a_rule():
    with planning.capture() as graph, epl.split(2):
        table = tf.get_variable("table", [4, 3], use_resource=False)
        epl.shard(table, 0)
        tf.scatter_nd_update(table, [[1]], tf.ones([1, 3]))
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(table)))
    with pytest.raises(PlanError, match="'table' is marked to be sharded.0. over 2 devices, but something that"):
        planning.compiled(graph)
