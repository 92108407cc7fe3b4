"""How long steps waited for data: arithmetic and words; and the nodes that take the time."""

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

from epl.plan.facts.names import time_names
from epl.plan.input.waits import covered, line
from tests.helpers import planning
from tests.helpers.planning import capture, compiled

INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)).map(lambda i: (i[0], i[0] + i[1])))


@given(INTERVALS)
def test_what_is_covered(intervals):
    assert covered(intervals) == len({second for begin, end in intervals for second in range(begin, end)})


@pytest.mark.parametrize(
    "waited_s, types, text",
    [
        (0.0004, {"IteratorGetNext"}, "steps 101 to 200 took 10.0 ms each, and waited 0.4 ms of them (4 %) for data."),
        (0.0004, {"IteratorGetNext"}, "The input keeps up."),
        (0.004, {"IteratorGetNext", "MapDataset"}, "(40 %) for data. End the data set with .prefetch(1)"),
        (0.004, {"IteratorGetNext", "MapDataset", "PrefetchDataset"}, "Give .map num_parallel_calls"),
        (0.004, {"IteratorGetNext", "ParallelMapDataset", "PrefetchDataset"}, "do less for each record"),
        (0.004, {"QueueDequeueManyV2"}, "Let more threads fill the queue"),
    ],
)
def test_what_is_told(waited_s, types, text):
    assert text in line(101, 200, 0.01, waited_s, types)


def test_times_are_taken_around_each_batch_of_each_copy():
    with capture() as graph:
        batch = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(tf.ones([4, 3])).repeat()).get_next()
        planning.sgd(tf.reduce_mean(tf.square(tf.layers.dense(batch, 2))))
    program = compiled(graph, io__stats=True)
    gets = program.graph.find(lambda op: op == "IteratorGetNext")
    assert len(gets) == 2
    for name in gets:
        before, after = time_names(name)
        assert "^" + before in program.graph.nodes[name].input
        assert program.graph.nodes[after].input == ["^" + name]
