"""optimizer.lamb and .lars in programs of several optimizers: those that fit are replaced, others stay."""

import logging

import pytest
import tensorflow.compat.v1 as tf

from epl.config import Config
from epl.env import Env
from epl.errors import UnsupportedError
from tests.helpers.planning import batch, capture, plan_of, variable


def train(optimizers, **config):
    """(captured Program, Plan) of a model of which each optimizer trains a variable."""
    with capture() as graph:
        Env.get().reset(Config({key.replace("__", "."): value for key, value in config.items()}))
        for number, optimizer in enumerate(optimizers):
            loss = tf.reduce_mean(tf.matmul(batch(), variable("w%d" % number)))
            optimizer.minimize(loss, var_list=tf.trainable_variables()[-1:])
        return plan_of(graph, 2, 1, **config)


@pytest.mark.parametrize(
    "key, fitting, name",
    [
        ("optimizer__lamb", lambda: tf.train.AdamOptimizer(0.1), "LambOptimizer"),
        ("optimizer__lars", lambda: tf.train.MomentumOptimizer(0.1, 0.9), "LarsOptimizer"),
    ],
)
def test_those_that_fit_are_replaced(key, fitting, name, caplog):
    with caplog.at_level(logging.WARNING, "epl"):
        program, plan = train([tf.train.GradientDescentOptimizer(0.1), fitting()], **{key: True})
    assert [call.optimizer for call in program.apply_calls] == ["GradientDescentOptimizer", name]
    assert len(plan.aggregation.groups) == 2
    (line,) = [each.getMessage() for each in caplog.records if "stays as it is" in each.getMessage()]
    assert line.startswith(key.replace("__", ".") + "=True replaces") and "GradientDescentOptimizer stays" in line


def test_where_none_fits_the_key_is_refused():
    with pytest.raises(
        UnsupportedError, match="but the program trains with AdagradOptimizer, GradientDescent"
    ) as error:
        train([tf.train.GradientDescentOptimizer(0.1), tf.train.AdagradOptimizer(0.1)], optimizer__lamb=True)
    assert "Use one of these, or set the key to False" in str(error.value)
