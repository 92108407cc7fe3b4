"""Deep gradient compression: which gradients are compressed, and what is refused; nothing is run."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.plan.table import plan_table
from tests.helpers import planning
from tests.helpers.planning import of_op


def momentum(loss, **kwargs):
    return tf.train.MomentumOptimizer(0.1, 0.9, **kwargs).minimize(loss)


def compiled(build=momentum, workers=2, **config):
    with planning.capture() as graph:
        build(planning.layers())
    return planning.compiled(graph, workers, 1, dgc__sparsity=[0.75], **config)


def test_small_gradients_travel_whole():
    program = compiled(dgc__min_elements=16)
    (node,) = of_op(program.graph, "EplSparseAllReduce")
    assert node.attr["N"].i == 2  # the kernels; biases have 4 numbers
    assert sum(each.attr["N"].i for each in of_op(program.graph, "EplAllReduce")) == 2
    # Two kernels of 16 numbers, of which 4 are sent with their places, and two biases.
    assert program.plan.bytes_per_step() == 2 * 4 * 8 + 2 * 4 * 4
    text = plan_table(program.plan)
    assert "dgc.sparsity" in text and "of 2 gradients the largest parts are sent" in text
    kept = [variable for variable in program.plan.added if variable.is_own]
    assert sorted(variable.shape for variable in kept) == [(4, 4)] * 4


def test_one_worker_sends_nothing():
    program = compiled(workers=1, dgc__min_elements=16)
    assert not of_op(program.graph, "EplSparseAllReduce") and not program.plan.added


@pytest.mark.parametrize(
    "build, least, text",
    [
        (planning.sgd, 16, r"without Nesterov momentum, but 'w.' is updated by GradientDescentOptimizer"),
        (lambda loss: momentum(loss, use_nesterov=True), 16, "without Nesterov momentum, but"),
        (momentum, 17, "at least dgc.min_elements=17 numbers, but the largest of this program has 16"),
    ],
)
def test_what_is_refused(build, least, text):
    with pytest.raises(UnsupportedError, match=text):
        compiled(build, dgc__min_elements=least)


def test_stages_are_refused():
    with planning.capture() as graph:
        with epl.replicate(1):
            hidden = tf.layers.dense(planning.batch(), 4)
        with epl.replicate(1):
            momentum(tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1))))
    with pytest.raises(UnsupportedError, match="dgc.sparsity cannot be used with a model of several stages"):
        planning.compiled(graph, 2, 2, dgc__sparsity=[0.75], dgc__min_elements=1)
