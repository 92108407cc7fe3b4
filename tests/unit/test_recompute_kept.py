"""What is kept where the program says it: a collection, or a last TaskGraph; with stages and several losses."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.graph import tags
from epl.plan.facts.names import recomputed_name
from tests.helpers.planning import capture, compiled
from tests.unit.test_recompute import AUTO, check, data, dense, minimize

COLLECTION = {"gradient_checkpoint.type": "collection"}
STAGES, LAYERS = 3, 4


def stages(keep=()):
    """Three stages of four layers; the outputs of those in `keep` are in the collection."""
    x = data()
    for stage in range(STAGES):
        with epl.replicate(1):
            for i in range(LAYERS * stage, LAYERS * (stage + 1)):
                x = dense(x, 8, i)
                if i in keep:
                    tf.add_to_collection("checkpoints", x)
            if stage == STAGES - 1:
                loss = tf.reduce_mean(tf.square(x))
    return loss


def computed_again(model, plan):
    """dict of TaskGraph to the numbers of the layers whose results are computed again, for each group."""
    found = {}
    for group in plan.groups:
        layers = {n.split("/")[0] for n in group.nodes if n.endswith("/Tanh")}
        numbers = sorted(int(name.partition("_")[2] or 0) for name in layers)
        places = {tags.get_int(model.graph.nodes[name], tags.TASKGRAPH) for name in group.nodes}
        assert len(places) == 1, "a group of several stages"
        found.setdefault(places.pop(), []).extend(numbers)
    return found


@pytest.mark.parametrize("last", range(STAGES - 1))
def test_the_last_taskgraph(last):
    model, plan, _ = check(stages, dict(AUTO, **{"gradient_checkpoint.end_taskgraph": last}))
    assert sorted(computed_again(model, plan)) == list(range(last + 1))


def test_a_collection_in_stages():
    """Besides its tensors what crosses to another stage is kept, and of the rest each stage computes its own again."""
    model, plan, _ = check(lambda: stages(keep=(1, 5, 9)), COLLECTION)
    again = computed_again(model, plan)
    # Of stages 0 and 1 the last layer's output is kept as it crosses the border.
    assert again[0] == [0, 2] and again[1] == [4, 6] and 9 not in again[2] and 8 in again[2]


def test_a_collection_and_several_losses():
    """A head in the middle and one at the end, on one trunk of which two tensors are kept."""

    def build():
        x, losses = data(), []
        for i in range(8):
            x = dense(x, 8, i)
            if i in (2, 5):
                tf.add_to_collection("checkpoints", x)
            if i in (3, 7):
                losses.append(tf.reduce_mean(tf.square(tf.layers.dense(x, 2 + i, name="head_%d" % i))))
        tf.losses.add_loss(0.5 * losses[0])
        return tf.losses.get_total_loss() + losses[1]

    model, plan, _ = check(build, COLLECTION)
    again = {name for group in plan.groups for name in group.nodes}
    kept = {"dense_2/Tanh", "dense_5/Tanh"}
    assert {tensor.partition(":")[0] for tensor in model.checkpoints} == kept
    assert not kept & again and {"dense/Tanh", "dense_1/Tanh", "dense_3/Tanh", "dense_4/Tanh"} <= again


def test_micro_batches_of_stages_each_keep_their_own():
    values = {"pipeline__num_micro_batch": 3, "gradient_checkpoint__type": "collection"}
    with capture(seed=5) as graph:
        minimize(stages(keep=(1, 5, 9)))
        program = compiled(graph, 1, STAGES, **values)
    copies = [n for n in program.graph.nodes if "epl_recompute/" in n and n.endswith("dense_4/Tanh")]
    assert len(copies) == 3 and not any(n.endswith("epl_recompute/dense_5/Tanh") for n in program.graph.nodes)


@pytest.mark.parametrize("synchronised", [True, False])
def test_statistics_of_data_that_are_synchronised_are_not_taken_again(synchronised):
    """No gradient goes to what only data is made of, but what is made of it is computed again."""
    with capture() as graph:
        x = tf.layers.batch_normalization(data(), training=True, fused=False, name="norm")
        for i in range(6):
            x = dense(x, 8, i)
        minimize(tf.reduce_mean(tf.square(x)))
    program = compiled(graph, 2, 1, communication__sync_batch_norm=synchronised, **AUTO)
    again = [name for name in program.graph.nodes if name.startswith(recomputed_name("norm"))]
    assert any("batchnorm" in name for name in again)
    assert any("moments" in name for name in again) == (not synchronised)
