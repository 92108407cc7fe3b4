"""How tensors come to a stage with another number of devices."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.tags import BACKWARD, FORWARD
from epl.plan.pipeline.borders import GRADIENT_ROWS, MEAN, ROWS, SAME
from tests.helpers import planning
from tests.helpers.planning import of_op


def two_stages(cross, counts=(2, 1), rows=None):
    """A graph whose first stage gives what `cross` makes of a layer [rows, 4] and its kernel to the second."""
    with planning.capture(seed=3) as graph:
        x = tf.placeholder(tf.float32, [rows, 4], "x")
        with epl.replicate(counts[0], name="one"):
            w = planning.variable("w0")
            given = cross(tf.nn.dropout(tf.tanh(tf.matmul(x, w)), rate=0.5, name="dropout"), w)
        with epl.replicate(counts[1], name="two"):
            loss = tf.reduce_mean(tf.square(tf.matmul(given[0], planning.variable("w1"))))
            planning.sgd(loss * (1.0 + sum(given[1:])))
    return graph


def layer(h, w):
    return [h]


def regularised(h, w):
    """Besides, a number that follows from variables alone, and a mean over the rows."""
    return [h, tf.nn.l2_loss(w, name="penalty"), tf.reduce_mean(tf.reduce_sum(h * h, [1]), [0], name="power")]


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_ways(counts):
    _, plan = planning.plan_of(two_stages(regularised, counts), 1, 3)
    assert plan.borders.pop("penalty") == SAME and plan.borders.pop("power") == MEAN
    forward = [tensor for tensor in plan.borders if not tensor.startswith("gradients/")]
    assert ROWS in [plan.borders.pop(tensor) for tensor in forward]
    assert GRADIENT_ROWS in plan.borders.values() and set(plan.borders.values()) <= {GRADIENT_ROWS, MEAN, SAME}


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_each_stage_has_a_copy_for_each_of_its_devices(counts):
    program = planning.compiled(two_stages(layer, counts), 1, 3)
    graph = program.graph
    assert tuple(sum(node.name.endswith(v) for node in of_op(graph, "VariableV2")) for v in ("w0", "w1")) == counts
    assert len(of_op(graph, "EplBatchShare")) == 2
    joins = [node for node in of_op(graph, "ConcatV2") if node.name.startswith("epl")]
    factors = [node.attr["value"].tensor.float_val[0] for node in of_op(graph, "Const") if "/factor" in node.name]
    assert len(joins) == 1 and set(factors) == {2.0 if counts == (2, 1) else 0.5}
    scales = {node.attr["R"].i: node.attr["scale"].f for node in of_op(graph, "EplAllReduce")}
    assert scales == {1: 1.0, 2: 0.5}
    masks = {node.attr["seed"].i for node in of_op(graph, "RandomUniform")}
    assert len(masks) == counts[0]


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_what_workers_send_each_other(counts):
    """Rows go straight to who computes with them: a replica over three workers, which all know the same messages."""
    graph = two_stages(layer, counts)
    programs = [planning.compiled(graph, 3, 1, index=worker) for worker in range(3)]
    parts = [program.part for program in programs]
    assert all(part.messages == parts[0].messages for part in parts)
    found = {(m.source, m.target, of_phase(parts[0], m)) for m in parts[0].messages}
    there = {(0, 2, FORWARD), (1, 2, FORWARD), (2, 0, BACKWARD), (2, 1, BACKWARD)}
    if counts == (1, 2):
        there = {(0, 1, FORWARD), (0, 2, FORWARD), (1, 0, BACKWARD), (2, 0, BACKWARD)}
    # Worker 0 reads for all that have the first stage.
    assert found == there | ({(0, 1, FORWARD)} if counts == (2, 1) else set())
    assert len(parts[0].messages) == len(found)
    wide = [0, 1] if counts == (2, 1) else [1, 2]
    one = 3 - sum(wide)
    for worker, program in enumerate(programs):
        (reduces,) = of_op(program.graph, "EplAllReduce") or [None]
        assert (reduces is not None) and (reduces.attr["R"].i, reduces.attr["num_inputs"].i) == (1, 1)
        assert (reduces.attr["workers"].i, reduces.attr["scale"].f) == ((2, 0.5) if worker in wide else (1, 1.0))
        joins = [node for node in of_op(program.graph, "ConcatV2") if node.name.startswith("epl")]
        shares = of_op(program.graph, "EplBatchShare")
        assert (len(joins), len([s for s in shares if "border" in s.name])) == ((1, 2) if worker == one else (0, 0))
        variables = {name.split("/")[-1] for name in program.graph.find(lambda op: op == "VariableV2")}
        assert variables == {"w0" if (worker in wide) == (counts == (2, 1)) else "w1"}


def test_a_variable_that_nothing_changes():
    """All workers with copies of its stage have it, so that who gives it its first value and who takes it agree."""
    graph = two_stages(lambda h, w: [h] if planning.variable("kept", trainable=False) is not None else [])
    for worker in range(3):
        found = planning.compiled(graph, 3, 1, index=worker).graph
        there = [name.split("/")[-1] for name in found.nodes if name.startswith("epl_broadcast/kept/")]
        assert ("send" in there, "receive" in there) == (worker == 0, worker == 1)
        assert any(node.name.endswith("kept") for node in of_op(found, "VariableV2")) == (worker < 2)


def of_phase(part, message):
    return tags.phase(part.whole.nodes[message.tensor.split(":")[0]])


@pytest.mark.parametrize("cross", [lambda h, w: [h, tf.reduce_sum(h)], lambda h, w: [h, tf.reduce_max(h)]])
@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_what_cannot_cross(cross, counts):
    words = "of the scope 'one', device_count %d, is used by .*nothing tells how it is joined or divided" % counts[0]
    with pytest.raises(UnsupportedError, match=words):
        planning.plan_of(two_stages(cross, counts), 1, 3)


def test_places_of_rows_cannot_cross():
    with pytest.raises(UnsupportedError, match="'Cast.*nothing tells how it is joined or divided"):
        planning.plan_of(two_stages(lambda h, w: [h, tf.cast(tf.where(h[:, 0] > 0), tf.float32)]), 1, 3)


def test_batches_of_fixed_size():
    """In one worker devices divide each operation by rows, and one of the smaller stage has two parts."""
    for counts in [2, 1], [1, 2]:
        _, plan = planning.plan_of(two_stages(layer, counts, rows=8), 1, 3)
        assert plan.mesh.split and plan.mesh.stacked and plan.mesh.num_shards == 2 and not plan.borders
    with pytest.raises(UnsupportedError, match="'x' gives batches of a fixed number of rows .8."):
        planning.plan_of(two_stages(layer, rows=8), 3, 1)


@pytest.mark.parametrize("counts, places", [([2, 1], [[0, 1], [2]]), ([1, 2], [[0], [1, 2]])])
def test_what_needs_copies_of_all_variables(counts, places):
    """A device of the smaller stage has a copy of it for each part of the batch; gradients come together unclipped."""
    config = {"zero__level": "v1", "communication__sync_batch_norm": True}
    program = planning.compiled(two_stages(layer, counts), 1, 3, **config)
    mesh = program.plan.mesh
    assert mesh.stacked and mesh.is_even and mesh.clips_whole and mesh.copies.size == 2
    for stage, devices in enumerate(places):
        assert sorted({instance.devices[stage] for instance in mesh.instances}) == devices
        holders = [node.device[-1] for node in of_op(program.graph, "VariableV2") if node.name.endswith("w%d" % stage)]
        assert len(holders) == 2 and set(holders) == set(map(str, devices))
    _, plan = planning.plan_of(two_stages(layer, counts), 1, 3)
    assert not plan.mesh.stacked and not plan.mesh.is_even


def test_a_scope_inside_of_a_branch():
    def branch():
        with epl.replicate(1, name="two"):
            return tf.tanh(h * 2)

    with planning.control_flow("v1"), planning.capture() as graph:
        with epl.replicate(2, name="one"):
            h = tf.matmul(tf.placeholder(tf.float32, [None, 4]), planning.variable("w"))
        chosen = tf.cond(tf.reduce_mean(planning.variable("v")) > 0, branch, lambda: h)
        with epl.replicate(1, name="two"):
            planning.sgd(tf.reduce_mean(tf.square(tf.matmul(chosen, planning.variable("w1")))))
        with pytest.raises(
            UnsupportedError, match="stands in a loop or a branch. Put the whole loop or branch into one"
        ):
            planning.plan_of(graph, 1, 4)


def test_resources_cannot_cross():
    with planning.control_flow("v1"), planning.capture() as graph:
        with epl.replicate(2, name="one"):
            h = tf.matmul(tf.placeholder(tf.float32, [None, 4]), planning.variable("w"))
            array = tf.TensorArray(tf.float32, 1).write(0, h)
        with epl.replicate(1, name="two"):
            planning.sgd(tf.reduce_mean(tf.square(tf.matmul(array.read(0), planning.variable("w1", [4, 4])))))
        with pytest.raises(UnsupportedError, match="which cannot take a resource of another device. Put both into one"):
            planning.plan_of(graph, 1, 3)


def test_collectives_of_the_program(monkeypatch):
    def cross(h, w):
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(1, 3))
        return [epl.ops.all_reduce(h, name="mine")]

    graph = two_stages(cross)
    with pytest.raises(
        UnsupportedError, match="'mine' is a collective .* in this version: stages have different numbers"
    ):
        planning.plan_of(graph, 1, 3)


@pytest.mark.parametrize(
    "config",
    [
        {"zero__level": "v0"},
        {"offload__level": "v0"},
        {"gradient_checkpoint__offload": True, "gradient_checkpoint__type": "auto"},
        {"communication__sync_batch_norm": True},
        {"optimizer__num_apply_group": 2},
    ],
)
def test_settings_that_do_not_go_together_over_several_workers(config):
    words = "does not go together with scopes of different device counts .one: 2, two: 1. whose copies lie in several"
    with pytest.raises(UnsupportedError, match=words):
        planning.plan_of(two_stages(layer), 3, 1, **config)
