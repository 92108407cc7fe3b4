"""How many elements data sets have, against what TensorFlow says."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.graph.bodies import Bodies
from epl.plan.input.cardinality import ENDLESS, Cardinality
from tests.helpers.planning import capture

pytestmark = pytest.mark.either_line


def sources():
    """{what it is: data set}; with numbers on both sides of 0."""
    found = {"one": tf.data.Dataset.from_tensors(np.int64(0))}
    for stop, step in ((0, 1), (7, 1), (7, 3), (-7, -3), (7, -1), (6, 3)):
        found["range(0, %d, %d)" % (stop, step)] = tf.data.Dataset.range(0, stop, step)
    for count in (0, 1, 6):
        found["%d slices" % count] = tf.data.Dataset.from_tensor_slices(np.zeros(count, np.int64))
    return found


def changed(found):
    """The same of what comes of each, with numbers below, among and above those of its elements."""
    for name, each in found.items():
        for change, counts in (("take", (0, 1, 2, 9)), ("skip", (0, 1, 2, 9)), ("repeat", (-1, 0, 1, 2, 9))):
            for count in counts:
                yield "%s.%s(%d)" % (name, change, count), getattr(each, change)(count)
        for number in (1, 2, 3):
            yield "%s.batch(%d)" % (name, number), each.batch(number)
            for index in range(number):
                yield "%s.shard(%d, %d)" % (name, number, index), each.shard(number, index)


def joined(name, each):
    yield "%s after 2" % name, tf.data.Dataset.range(2).concatenate(each)
    yield "%s beside 2" % name, tf.data.Dataset.zip((tf.data.Dataset.range(2), each))
    yield "%s beside one without end" % name, tf.data.Dataset.zip((each, tf.data.Dataset.range(5).repeat()))
    yield "%s shuffled" % name, each.shuffle(2).prefetch(1)


def test_as_many_as_tensorflow_says():
    with capture() as graph:
        made = sources()
        made.update(list(changed(made)))
        for name in ("one", "6 slices", "0 slices", "range(0, 7, 1).repeat(-1)", "range(0, 7, 1).take(0)"):
            made.update(joined(name, made[name]))
        asked = {name: tf.data.experimental.cardinality(each) for name, each in made.items()}
        with tf.Session() as session:
            said = session.run(asked)
    numbers = Cardinality(Bodies(make_program(graph).graph).main)
    found = {name: numbers.of_node(number.op.inputs[0].op.name) for name, number in asked.items()}
    endless = tf.data.experimental.INFINITE_CARDINALITY
    expected = {name: ENDLESS if number == endless else number for name, number in said.items()}

    assert found == expected


def test_below_0_is_everything():
    """Which TensorFlow 1.15 says otherwise than it does."""
    with capture() as graph:
        some, endless = tf.data.Dataset.range(7), tf.data.Dataset.range(7).repeat(-1)
        made = [some.take(-1), endless.take(-1), some.skip(-1), endless.skip(-1)]
        asked = [tf.data.experimental.cardinality(each) for each in made]
        with tf.Session() as session:
            read = session.run([tf.data.experimental.get_single_element(each.take(9).batch(9)) for each in made[:1]])
            nothing = made[2].concatenate(tf.data.Dataset.from_tensors(np.int64(-5))).batch(9)
            none = session.run(tf.data.experimental.get_single_element(nothing))
    numbers = Cardinality(Bodies(make_program(graph).graph).main)
    assert [numbers.of_node(each.op.inputs[0].op.name) for each in asked] == [7, ENDLESS, 0, 0]
    assert [list(each) for each in read] == [list(range(7))] and list(none) == [-5]


def test_what_is_not_known():
    with capture() as graph:
        some = tf.data.Dataset.range(7).filter(lambda number: number > 3)
        number = tf.placeholder(tf.int64, [])
        made = [some, some.take(2), tf.data.Dataset.range(7).skip(number), tf.data.Dataset.range(7).concatenate(some)]
        made.append(tf.data.Dataset.zip((tf.data.Dataset.range(7).take(0), some)))
        asked = [tf.data.experimental.cardinality(each) for each in made]
    numbers = Cardinality(Bodies(make_program(graph).graph).main)
    assert [numbers.of_node(each.op.inputs[0].op.name) for each in asked] == [None, None, None, None, 0]
