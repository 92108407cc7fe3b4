"""execution.fetch_every: which values are those of earlier steps, and how old they may be."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.session.every_nth import EveryNth, made_of_data
from tests.helpers import planning


def test_values_are_at_most_so_many_steps_old():
    every_nth, asked = EveryNth(3), []

    def call(wanted):
        asked.append(wanted)
        return [np.array([len(asked)]) for _ in wanted]

    found = []
    for fetches in [("loss", "step"), ("loss",), ("step", "loss"), ("loss",), ("other",), ("loss", "other"), ("loss",)]:
        values = every_nth.run(call, fetches, frozenset(["loss", "other"]))
        found.append([int(value[0]) for value in values])
        values[0] += 99  # the program's own
    assert asked == [("loss", "step"), (), ("step",), ("loss",), ("other",), (), ("loss",)]
    assert found == [[1, 1], [1], [3, 1], [4], [5], [4, 5], [7]]


def test_what_an_earlier_value_will_do_for():
    with planning.capture() as graph:
        x, fed = planning.batch(), tf.placeholder(tf.float32, [], name="fed")
        step = tf.train.get_or_create_global_step()
        loss = planning.layers(x=x)
        tf.multiply(fed, 2.0, name="doubled")
        train = planning.sgd(loss, global_step=step)
        with tf.control_dependencies([train]):
            tf.identity(loss, name="trained")
        tf.multiply(tf.cast(step, tf.float32), 0.1, name="rate")
    program = planning.compiled(graph, 1, 2).source
    names = ("loss:0", "doubled:0", "trained:0", "rate:0", "global_step:0")
    assert made_of_data(program, names, ("fed:0",)) == {"loss:0", "doubled:0"}
