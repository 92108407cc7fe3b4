"""Deep gradient compression: which gradients are compressed, and what is refused; nothing is run."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.graph.index import node_of
from epl.plan.report.plan_table import plan_table
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


def test_sums_over_micro_batches_are_compressed():
    program = compiled(dgc__min_elements=16, pipeline__num_micro_batch=2)
    (node,) = of_op(program.graph, "EplSparseAllReduce")
    assert node.attr["N"].i == 2 and all("epl_accumulate/" in text for text in node.input[:2])
    taken = [program.graph.nodes[each.update].input[3] for each in program.plan.dgc.gradients.values()]
    assert {node_of(text) for text in taken} == {node.name}


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


def test_checkpoints_of_what_is_kept_back():
    """One gather for each variable of a worker's own, whatever number of files; another worker than the first writes
    none of them, but its own files. A worker's part counts by its share of the aggregate."""
    with planning.capture() as graph:
        momentum(planning.layers())
        tf.train.Saver()
        tf.train.Saver(name="another")
        tf.io.write_file("own", "text")
    options = dict(dgc__sparsity=[0.75], dgc__min_elements=16, dgc__save_residuals=True)
    chief, other = (planning.compiled(graph, 2, 2, index, **options) for index in range(2))
    for program, saves in ((chief, 2), (other, 0)):
        nodes = program.graph.nodes
        gathers = of_op(program.graph, "EplAllGather")
        assert sorted(each.name for each in gathers) == sorted("epl_gather/" + v for v in program.plan.gathered)
        assert len(gathers) == 4 and len(of_op(program.graph, "SaveV2")) == saves
        assert len(of_op(program.graph, "WriteFile")) == 1
        for name in ("save/SaveV2", "another/SaveV2"):
            assert {each.name for each in gathers} <= {text.split("^")[-1] for text in nodes[name].input}
    assert program.plan.gathered_scale == 0.5  # a mean of 4, in 2 workers
    assert "in checkpoints too" in plan_table(program.plan)
    without = planning.compiled(graph, 2, 2, 1, **dict(options, dgc__save_residuals=False))
    assert not of_op(without.graph, "EplAllGather") and len(of_op(without.graph, "SaveV2")) == 2
