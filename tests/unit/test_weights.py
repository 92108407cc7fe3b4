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


def test_what_does_not_go_together():
    with pytest.raises(
        UnsupportedError, match=r"device_weights=\(3, 1\) does not .* communication.sync_batch_norm=True"
    ):
        planning.plan_of(model(), cluster__device_weights=[3, 1], communication__sync_batch_norm=True)


def test_collectives_of_the_program(monkeypatch):
    with planning.capture() as graph, epl.replicate(2):
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(1, 2))
        x = epl.ops.all_reduce(tf.placeholder(tf.float32, [None, 4]), name="mine")
        planning.sgd(planning.layers(1, x=x))
    with pytest.raises(UnsupportedError, match="does not go together with 'mine', a collective that the program made"):
        planning.plan_of(graph, cluster__device_weights=[3, 1])
