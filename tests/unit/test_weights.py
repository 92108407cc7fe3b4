"""Parts of a batch of different size: what the rewritten graph has for them, and what is refused."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.plan.report.plan_table import plan_table
from tests.helpers import planning
from tests.helpers.planning import of_op


def model():
    """Its placeholder takes any number of rows."""
    with planning.capture(seed=1) as graph, epl.replicate(2):
        loss = planning.layers(1, x=tf.placeholder(tf.float32, [None, 4]))
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        planning.sgd(loss)
    return graph


def test_equal_weights_change_nothing():
    graph = model()
    one, other = (planning.compiled(graph, 1, 4, cluster__device_weights=w).graph for w in ([], [2, 2]))
    assert one.to_graph_def(tf.GraphDef) == other.to_graph_def(tf.GraphDef)
    assert not [name for name in one.nodes if "weighed" in name]


@pytest.mark.parametrize("workers, devices", [(1, 4), (4, 1)])
def test_each_gradient_and_merged_mean_is_weighed_once(workers, devices):
    found = []
    for worker in range(workers):
        done = planning.compiled(model(), workers, devices, worker, cluster__device_weights=[3, 1])
        nodes = [n for n in of_op(done.graph, "Mul") if "epl_weighed" in n.name]
        assert len(nodes) == 3 * devices  # two gradients and the loss
        found += [done.graph.nodes[n.input[1]].attr["value"].tensor.float_val[0] for n in nodes]
        reduces = of_op(done.graph, "EplAllReduce")
        assert reduces and all(node.attr["scale"].f == 0.25 for node in reduces)
    assert sorted(found) == 6 * [0.5] + 6 * [1.5]
    assert "1 to 3 of 4" in plan_table(done.plan) and "4 of 4" in plan_table(done.plan)


@pytest.mark.parametrize("fused", [True, False])
def test_statistics_are_weighed(fused):
    with planning.capture(seed=1) as graph, epl.replicate(2):
        x = tf.reshape(tf.placeholder(tf.float32, [None, 4]) * planning.variable("scale", [4]), [-1, 1, 1, 4])
        planning.sgd(tf.reduce_mean(tf.square(tf.layers.batch_normalization(x, training=True, fused=fused) - 0.5)))
    keys = dict(cluster__device_weights=[3, 1], communication__sync_batch_norm=True)
    done = planning.compiled(graph, 2, 2, **keys)
    if fused:
        (factors,) = {
            tuple(n.attr["value"].tensor.float_val) for n in of_op(done.graph, "Const") if n.name.endswith("_factors")
        }
        assert factors == (1.5, 0.5, 1.5, 0.5)
    else:
        means = [norm.tensor for norm in done.plan.batch_norms]
        assert len(means) == 4 and all("epl_weighed/" in tensor for tensor in means)


def test_collectives_of_the_program(monkeypatch):
    with planning.capture() as graph, epl.replicate(2):
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(1, 2))
        x = epl.ops.all_reduce(tf.placeholder(tf.float32, [None, 4]), name="mine")
        planning.sgd(planning.layers(1, x=x))
    with pytest.raises(UnsupportedError, match="does not go together with 'mine', a collective that the program made"):
        planning.plan_of(graph, cluster__device_weights=[3, 1])
