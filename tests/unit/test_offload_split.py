"""What devices have parts of (epl.split) in host memory: what lies where, and what devices get of it."""

import collections

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.graph import tags
from epl.plan.cost.device_memory import ACTIVATIONS, COMMUNICATION, KINDS, SLOTS, VARIABLES
from epl.plan.cost.own_bytes import own_part, own_sizes
from epl.session.estimated_program import estimate_program
from tests.helpers import planning

pytestmark = pytest.mark.either_line

LAYERS, WIDTH, ROWS = 8, 32, 4
HOST = "CPU:0"


def layers():
    """The loss of some equal layers, of which devices have columns and rows by turns."""
    x = hidden = tf.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    with epl.split(2):
        for i in range(LAYERS):
            hidden = tf.tanh(tf.matmul(hidden, tf.get_variable("kernel_%d" % i, [WIDTH, WIDTH])))
        return tf.reduce_mean(tf.square(hidden - x))


def compiled(build=layers, workers=1, devices=2, optimizer=None, **config):
    with planning.capture(seed=3) as graph:
        (optimizer or tf.train.AdamOptimizer(0.01)).minimize(build())
        return planning.compiled(graph, workers, devices, **config)


def device(program, name):
    return program.graph.nodes[name].device.partition("/device:")[2]


def of_op(program, *ops):
    return [name for name, node in program.graph.nodes.items() if node.op in ops]


@pytest.mark.parametrize("level", ["v0", "v1"])
@pytest.mark.parametrize("workers", [1, 2])
def test_each_part_lies_on_the_host_of_its_worker(workers, level):
    program = compiled(workers=workers, devices=2 // workers, offload__level=level)
    graph, places = program.graph, {"CPU:1", "CPU:2"} if workers == 1 else {"CPU:1"}
    parts = [name for name in of_op(program, "VariableV2", "VarHandleOp") if "kernel" in name]
    assert len(parts) == 3 * LAYERS * len(places)  # with two slots each
    assert {device(program, name) for name in parts} == {HOST}
    shapes = {tuple(sorted(d.size for d in graph.nodes[name].attr["shape"].shape.dim)) for name in parts}
    assert shapes == {(WIDTH // 2, WIDTH)}
    assert {device(program, name) for name in of_op(program, "ApplyAdam", "ResourceApplyAdam")} == {HOST}
    products = of_op(program, "MatMul")
    assert collections.Counter(device(program, name) for name in products) == dict.fromkeys(places, 3 * LAYERS)
    copies = [p for name in products for p, _ in graph.inputs[name] if "epl_offload/" in p]
    # Each device has copies of its own parts, for the forward and for the backward pass.
    assert len(copies) == len(set(copies)) == 2 * LAYERS * len(places)
    assert {device(program, name) for name in copies} == {HOST}
    waiting = [name for name in copies if any(index < 0 for _, index in graph.inputs[name])]
    assert len(waiting) == len(copies) - len(places)  # all but those of the first layer


@pytest.mark.parametrize("workers", [1, 2])
def test_what_devices_exchange_is_joined_on_them(workers):
    program = compiled(workers=workers, devices=2 // workers, offload__level="v0")
    nodes = program.graph.nodes
    joined = [n for n in of_op(program, "AddN", "ConcatV2", "SplitV") if tags.get_str(nodes[n], tags.ROLE) == "join"]
    assert bool(joined) == (workers == 1)
    assert {device(program, name) for name in joined} <= {"CPU:1"}


def test_norms_of_parts_are_joined_on_the_host():
    """LAMB makes them of what lies there, in plain operations."""
    program = compiled(optimizer=epl.optimizers.LambOptimizer(0.01), offload__level="v1")
    norms = [c for c in program.partitioned.collectives if c.phase == tags.APPLY]
    assert len(norms) >= LAYERS and all(tags.HOST in program.graph.nodes[c.node].attr for c in norms)
    joins = [p for c in norms for p, _ in program.graph.inputs[c.node]]
    assert {program.graph.nodes[name].op for name in joins} == {"AddN"}
    assert {device(program, name) for name in joins} == {HOST}


def test_the_memory_plan_counts_parts():
    devices, _ = estimate_program(compiled(offload__level="v1"), ROWS)
    host = devices[HOST]
    assert host.lasting[VARIABLES] == LAYERS * WIDTH * WIDTH * 4 and host.lasting[SLOTS] >= 2 * host.lasting[VARIABLES]
    for own in (devices["CPU:1"], devices["CPU:2"]):
        assert own.lasting[VARIABLES] == own.lasting[SLOTS] == 0
        most = max(live[KINDS.index(COMMUNICATION)] for _, live in own.points)
        assert WIDTH * WIDTH * 2 <= most < 0.5 * host.lasting[VARIABLES]


@pytest.mark.parametrize("workers", [1, 2])
def test_activations_of_each_device_wait_on_the_host(workers):
    config = {"workers": workers, "devices": 2 // workers}
    program = compiled(gradient_checkpoint__offload=True, **config)
    graph, kept = program.graph, collections.Counter()
    for name in graph.nodes:
        if "epl_kept/" in name:
            (took,) = [producer for producer, index in graph.inputs[name] if index >= 0]
            users = [graph.nodes[user] for user, _ in graph.consumers[took] if user != name]
            assert all(tags.phase(node) == tags.FORWARD for node in users)  # nothing else holds it
            assert device(program, name) == HOST
            kept[device(program, took)] += 1
    assert sorted(kept) == ["CPU:1", "CPU:2"][: 2 // workers]
    assert len(set(kept.values())) == 1 and kept["CPU:1"] >= LAYERS - 1
    peaks = []
    for options in ({}, {"gradient_checkpoint__offload": True}):
        devices, _ = estimate_program(compiled(**dict(config, **options)), 1000)
        points = devices["CPU:1" if options else "CPU:0"].points
        peaks.append(max(sum(live[KINDS.index(kind)] for kind in (ACTIVATIONS, COMMUNICATION)) for _, live in points))
    assert peaks[1] < 0.6 * peaks[0]


def gathered():
    """A layer of whole rows whose kernel devices have parts of, and whose product each has whole."""
    x = tf.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    with epl.split(2):
        kernel = epl.shard(tf.get_variable("kernel", [WIDTH, WIDTH]), 1)
        return tf.reduce_mean(tf.square(epl.whole(tf.tanh(tf.matmul(x, epl.whole(tf.identity(kernel)))))))


def test_what_is_made_whole_of_parts_is_made_on_the_host():
    program = compiled(gathered, offload__level="v0")
    (each,) = [c for c in program.partitioned.collectives if c.kind == "all_gather" and c.phase == tags.FORWARD]
    done, whole = program.partitioned, 4 * WIDTH * WIDTH
    assert done.brought[each.node] == (each.tensor, epl.program.placement.WHOLE)
    assert own_sizes(program.source)(each.node) == whole
    assert own_part(program, "kernel", whole) == whole // 2
    (join,) = [p for p, index in program.graph.inputs[each.node] if index >= 0]
    assert device(program, join) == device(program, each.node) == HOST
    (product,) = [n for n in of_op(program, "MatMul") if tags.phase(program.graph.nodes[n]) == tags.FORWARD][:1]
    (copy,) = [p for p, _ in program.graph.inputs[product] if "epl_offload/" in p]
    assert each.node in program.graph.ancestors([copy])
