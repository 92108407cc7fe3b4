"""The order of collectives and messages is one for all workers and goes against no edge, for every schedule."""

from types import SimpleNamespace

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.communicators import library
from epl.config import Config
from epl.plan.exchange.order import collective_keys
from epl.program.collective import NEXT, READY
from epl.session.rewritten import Rewritten
from tests.helpers import planning
from tests.helpers.planning import by_hand

# workers, devices of each, stages, chunks
LAYOUTS = {"in a worker": (2, 2, 2, 1), "chunks": (2, 2, 4, 2), "over workers": (4, 1, 2, 1), "mixed": (4, 2, 4, 1)}
LAYOUTS["state is divided"] = LAYOUTS["over workers"]
STRATEGIES = ("PreferBackward", "PreferForward", "Interleaved", "ZeroBubble")
FEW = {"chunks": ("PreferForward", "Interleaved"), "state is divided": ("ZeroBubble",)}
CASES = [(name, s) for name in LAYOUTS for s in FEW.get(name, STRATEGIES)]


def normalised_stages(stages):
    x = planning.batch()[:, None, None, :]
    for stage in range(stages):
        with epl.replicate(1, name="stage_%d" % stage):
            x = tf.layers.conv2d(x, 4, 1, name="conv_%d" % stage)
            x = tf.layers.batch_normalization(x, training=True, name="norm_%d" % stage)
            if stage == stages - 1:
                loss = tf.reduce_mean(tf.square(x))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_or_create_global_step())


def of_worker(layout, strategy, index, micro_batches=3):
    """(the pipeline's graph, lists of nodes that a communicator of this worker runs one after the other, its keys)"""
    workers, devices, stages, chunks = LAYOUTS[layout]
    config = Config(
        {
            "pipeline.num_micro_batch": micro_batches,
            "pipeline.strategy": strategy,
            "pipeline.num_chunks": chunks,
            "communication.sync_batch_norm": True,
            "zero.level": "v1" if layout == "state is divided" else "",
        }
    )
    library.load()
    with planning.capture() as graph:
        train_op = normalised_stages(stages)
        rewritten = Rewritten(graph, config, planning.cluster(workers, devices, index), 0)
        step = rewritten.step([], [train_op.name], [])
    tags = {key[-1]: name for name, key in rewritten.keys.items()}
    if rewritten.part is not None:
        # A message goes out when its tensor is there.
        tags.update((m.tag, m.tensor.split(":")[0]) for m in rewritten.part.messages)
    return rewritten.graph, [[tags[t] for t in order] for order in step.traffic.orders.values()], rewritten.keys


@pytest.mark.parametrize("layout, strategy", CASES)
def test_no_two_workers_can_wait_for_each_other(layout, strategy):
    """With an edge from each thing that a communicator does to its next one, the graph still has an order."""
    found = [of_worker(layout, strategy, index) for index in range(LAYOUTS[layout][0])]
    graph, _, keys = found[0]
    assert all(other == keys for _, _, other in found)
    norms = [name for name in keys if "epl_batch_norm" in name]
    assert len(norms) == 2 * LAYOUTS[layout][2] * 3  # forward and backward, for each stage and micro-batch
    edit = graph.editor()
    for _, orders, _ in found:
        for order in orders:
            for one, other in zip(order, order[1:]):
                if one != other:
                    edit.node(other).input.append("^" + one)
    assert len(edit.finish().order) == len(graph.nodes)
    run = {name for _, orders, _ in found for order in orders for name in order}
    assert set(keys) <= run


def test_stages_have_communicators_of_their_own():
    _, _, keys = of_worker("in a worker", "PreferBackward", 0)
    slots = {name.split("norm_")[-1][0]: key[2] for name, key in keys.items() if "epl_batch_norm" in name}
    assert len(set(slots.values())) == 2


def test_an_order_where_things_wait_for_others():
    graph = by_hand(("a", ["c"]), ("b", []), ("c", []), ("d", ["a", "^b"]))
    order = graph.order
    assert sorted(order, key=order.get) == ["b", "c", "a", "d"]
    more = by_hand(("z", []), ("a", ["c"]), ("y", ["z", "c"]), ("b", []), ("c", []), ("d", ["a", "^b"]))
    further = more.order
    assert [n for n in sorted(further, key=further.get) if n in order] == ["b", "c", "a", "d"]


def test_who_waits_for_the_next_of_its_kind_comes_behind_what_that_takes():
    graph = by_hand(*[(name, []) for name in "abcdefg"])

    def collective(name, after, turn, communicator):
        return SimpleNamespace(name=name, after=(after,), turn=turn, communicator=communicator, shift=0, tag=0)

    first, second, last = [collective(after + "_next", after, NEXT, 0) for after in "aef"]
    others = [collective(after + "_ready", after, READY, 0) for after in "bdg"] + [collective("far", "c", NEXT, 1)]
    keys = collective_keys(SimpleNamespace(collectives=[last, first, second] + others), graph)
    assert sorted(keys, key=keys.get) == ["b_ready", "far", "d_ready", "a_next", "e_next", "f_next", "g_ready"]


def test_a_circle_has_no_order():
    assert set(by_hand(("a", []), ("b", ["a", "^c"]), ("c", ["b"])).order) == {"a"}


def test_what_one_worker_normalises_together_needs_no_order():
    """Its collectives run as they come: that of a micro-batch's statistics may be numbered before what it needs."""
    with planning.capture() as graph:
        normalised_stages(2)
    program = planning.compiled(graph, 1, 4, communication__sync_batch_norm=True, pipeline__num_micro_batch=4)
    assert len(program.plan.mesh.instances) == 2 and program.order
