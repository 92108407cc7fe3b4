"""Optimizers' state divided over the copies of a pipeline over workers: who has what, and what travels."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.plan.exchange.exchanges import exchanges_of
from epl.plan.layout.mesh import DATA, STAGE
from epl.rules import effects
from tests.helpers.planning import batch, capture, compiled, of_op, variable

# Workers, devices of each, whether stages of a copy are near each other, zero.degree.
LAYOUTS = {
    "a copy in two workers": (4, 1, True, 0),
    "copies in the same workers": (2, 2, False, 0),
    "two copies in two workers": (4, 2, False, 0),
    "each worker by itself": (4, 2, False, 2),
}


def training(layers=4):
    """Two stages with as many layers each, Adam, and a checkpoint; layers get larger."""
    with capture() as graph:
        x = batch()
        for stage in range(2):
            with epl.replicate(1, name="stage_%d" % stage):
                for layer in range(layers):
                    width = 4 * (1 + layer)
                    kernel = variable("w%d_%d" % (stage, layer), (int(x.shape[-1]), width))
                    x = tf.tanh(tf.matmul(x, kernel))
                loss = tf.reduce_mean(tf.square(x))
        tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        tf.train.Saver()
    return graph


def programs(graph, layout, level="v1"):
    workers, devices, near, degree = LAYOUTS[layout]
    keys = {"cluster__device_place_prefer_intra_node": near, "zero__level": level, "zero__degree": degree}
    return [compiled(graph, workers, devices, index, **keys) for index in range(workers)]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_each_slot_is_with_one_copy_of_its_stage(layout):
    found = programs(training(), layout)
    plan, workers = found[0].plan, len(found)
    held = [set(program.graph.find(effects.VARIABLES.__contains__)) for program in found]
    blocks = 1 if LAYOUTS[layout][3] else plan.mesh.num_pipelines
    for update in plan.zero.updates:
        stage = int(update.variable[1])
        owner = stage + update.owner // plan.zero.shard_group.local * 2 if blocks > 1 else stage
        for slot in update.slots:
            has = [worker for worker in range(workers) if slot in held[worker]]
            assert has == ([owner] if not LAYOUTS[layout][3] else [stage, stage + 2])
            assert plan.only_holder(slot) == owner
        assert [w for w in range(workers) if update.variable in held[w]] == list(range(stage, workers, 2))
    for index, program in enumerate(found):
        zero = program.plan.zero  # what it says of sizes is that of the worker's own stages
        largest = max(2 * u.num_bytes for u in zero.updates if int(u.variable[1]) == index % 2)
        assert sum(zero.state_bytes) == sum(2 * u.num_bytes for u in zero.updates if int(u.variable[1]) == index % 2)
        assert max(zero.state_bytes) - min(zero.state_bytes) <= largest
        assert bool(of_op(program.graph, "SaveV2")) == (index == 0 if blocks > 1 else index % 2 == 0)


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_what_travels_between_copies_and_between_stages(level):
    found = programs(training(), "a copy in two workers", level)
    assert all(program.part.messages == found[0].part.messages for program in found)
    for index, program in enumerate(found):
        rows = exchanges_of(program, lambda node, output: 4)
        assert {row.axis for row in rows if row.operation == "send"} == {STAGE}
        assert {row.operation for row in rows if row.axis == DATA} == {"reduce_scatter", "all_gather"}
        for node in of_op(program.graph, "EplReduceScatter") + of_op(program.graph, "EplAllGather"):
            assert node.attr["workers"].i == 2
        own = [u for u in program.plan.zero.updates if int(u.variable[1]) == index % 2]
        assert len(of_op(program.graph, "ApplyAdam")) == sum(u.owner == index // 2 for u in own) > 0
        assert program.plan.bytes_per_step() > sum(u.num_bytes for u in own)
