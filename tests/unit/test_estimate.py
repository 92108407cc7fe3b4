"""Estimates of a step: seconds worked out by hand, and bytes against the memory of the compiled graph."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.plan.cost.device_memory import GRADIENTS, SLOTS, VARIABLES
from epl.plan.estimate.estimate import estimate
from epl.plan.estimate.exchanged import Exchanged
from epl.plan.estimate.prices import Prices
from epl.plan.layout.mesh import DATA, Group
from epl.program.collective import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, SEND, SPARSE_ALL_REDUCE, collective
from epl.session import estimated_program
from epl.session.estimated_program import estimate_program
from epl.session.front_ends import preview
from tests.helpers import planning
from tests.helpers.machines import simple_machine
from tests.helpers.planning import capture, variable

# A second for each floating-point operation; nothing else takes any time.
ARITHMETIC = simple_machine(flops=1.0, memory=1e30, link=1e30)
_GRADIENTS = 4 * (256 * 256 + 256)  # numbers of the model's
_AUTO = {"auto__auto_parallel": True, "pipeline__num_stages": 2}


def mlp(layers=4, width=256):
    x = tf.placeholder(tf.float32, [None, width])
    for i in range(layers):
        x = tf.tanh(tf.matmul(x, variable("w%d" % i, (width, width))) + variable("b%d" % i, (width,)))
    tf.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.square(x)))


def split_mlp():
    h = tf.placeholder(tf.float32, [None, 64])
    with epl.split(2):
        h = tf.layers.dense(h, 1024, tf.nn.relu, name="first")
        h = tf.layers.dense(h, 512, name="second")
    tf.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.square(h)))


def convolutions():
    x = tf.placeholder(tf.float32, [None, 16, 16, 3])
    for i in range(3):
        x = tf.layers.conv2d(x, 16, 3, padding="same", activation=tf.nn.relu, name="conv%d" % i)
    logits = tf.layers.dense(tf.reshape(x, [-1, 16 * 16 * 16]), 10)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.placeholder(tf.int32, [None]), logits=logits)
    )
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def estimated(build, workers=1, devices=1, machine=ARITHMETIC, batch=8, **config):
    """(the tf.Graph, its Estimate)."""
    with capture() as graph:
        build()
    program, _ = planning.plan_of(graph, workers, devices, **config)
    return graph, estimate(program, planning.cluster(workers, devices), machine, batch)


def test_a_step_of_one_device():
    """Forward products, gradients of weights, and of what comes from weights: 2 * 8 * 256 * 256 each."""
    product = 2 * 8 * 256 * 256
    _, found = estimated(mlp)
    assert found.step_s == pytest.approx((4 + 4 + 3) * product, rel=1e-6)
    assert found.slowest.communication_s == found.slowest.bubble_s == found.contention_s == 0
    _, several = estimated(mlp, pipeline__num_micro_batch=3)
    assert several.step_s == pytest.approx(3 * 11 * product, rel=1e-6)
    started = estimated(mlp, machine=simple_machine(flops=1.0, memory=1e30, link=1e30, start=1e5))[1]
    assert started.step_s > found.step_s + 40 * 1e5  # products, tanh and its gradients, updates


def test_gradients_of_micro_batches_are_added_up():
    """Two additions of three tensors each, and their mean: of all gradients, at the speed of memory."""
    slow = simple_machine(flops=1e30, memory=1.0, link=1e30, computed=1e30)
    one, three = [estimated(mlp, machine=slow, pipeline__num_micro_batch=count)[1] for count in (1, 3)]
    once = estimated(mlp, machine=slow, batch=8)[1].slowest.compute_s
    repeated = (estimated(mlp, machine=slow, pipeline__num_micro_batch=2)[1].step_s - once) - 5 * 4 * _GRADIENTS
    assert one.step_s == pytest.approx(once)
    assert three.step_s == pytest.approx(once + 2 * repeated + 8 * 4 * _GRADIENTS)


def test_gradients_travel_beside_the_backward_pass():
    """All but what is there when it ends: the last group, and what the link has not sent by then."""
    sizes = 4 * (256 * 256 + 256) * 4
    alone = estimated(mlp)[1].step_s
    slow = estimated(mlp, 2, machine=simple_machine(flops=1.0, memory=1e30, link=sizes / (100 * alone)))[1]
    assert slow.step_s == pytest.approx(100 * alone, rel=0.02) or slow.step_s > 100 * alone
    assert slow.slowest.communication_s == pytest.approx(slow.step_s - alone - slow.input_s)
    fast = estimated(mlp, 2, machine=simple_machine(flops=1.0, memory=1e30, link=sizes / (alone / 100)))[1]
    assert alone < fast.step_s < alone * 1.01
    free = estimated(mlp, 2)[1]
    assert free.step_s == pytest.approx(alone)


def test_what_an_exchange_takes():
    machine = simple_machine(link=10.0, latency=1.0)

    def seconds(operation, workers, devices):
        group = Group(range(workers), 0, devices, 0, (DATA,))
        made = collective("c", operation, "gradients", ("t",), group, 0, 60, 1, "backward")
        return Exchanged(machine, 1).seconds(made)

    assert [seconds(operation, 1, 1) for operation in (ALL_REDUCE, BROADCAST, REDUCE, SEND)] == [0] * 4
    assert seconds(ALL_REDUCE, 2, 2) == 1 + 2 * 60 / 2 / 10.0
    assert seconds(ALL_REDUCE, 4, 4) == 2 + 2 * 60 * 3 / 4 / 10.0
    assert seconds(ALL_GATHER, 3, 3) == 2 + 2 * 60 / 10.0 == seconds(SPARSE_ALL_REDUCE, 3, 3)
    assert seconds(ALL_REDUCE, 2, 4) == 2 * (1 + 60 / 10.0)  # within a worker, and then between the two


def test_a_pipeline_is_simulated():
    """Two stages of two layers each, four micro-batches, 1F1B: the first pass fills, the last drains."""
    product = 2 * 8 * 256 * 256
    _, found = estimated(mlp, 1, 2, pipeline__num_micro_batch=4, **_AUTO)
    first, second = found.stages
    assert first.compute_s == pytest.approx(4 * 5 * product, rel=1e-6)  # nobody wants the gradient of data
    assert second.compute_s == pytest.approx(4 * 6 * product, rel=1e-6)
    # The second stage begins with the third product, and the first ends with its last backward pass, of 3.
    assert found.step_s == pytest.approx((2 + 4 * 6 + 3) * product, rel=1e-6)
    assert first.bubble_s == pytest.approx(found.step_s - first.compute_s)


def test_devices_of_a_host_share_its_cores():
    shared = simple_machine(flops=1.0, memory=1e30, link=1e30, cores=2)
    alone, both = estimated(mlp, machine=shared)[1], estimated(mlp, 1, 2, machine=shared)[1]
    assert alone.contention_s == 0 and both.step_s == pytest.approx(2 * alone.step_s)
    assert both.contention_s == pytest.approx(alone.step_s)


def test_zero_divides_updates_and_state():
    """Each of two devices makes about half of the updates, and has half of the slots."""
    slow = simple_machine(flops=1e30, memory=1.0, link=1e30, computed=1e30)
    whole, divided = [estimated(mlp, 2, machine=slow, zero__level=level)[1] for level in ("", "v1")]
    assert divided.slowest.compute_s < whole.slowest.compute_s
    assert divided.fullest.bytes[VARIABLES] == whole.fullest.bytes[VARIABLES]
    assert 2 * divided.fullest.bytes[SLOTS] == pytest.approx(whole.fullest.bytes[SLOTS], rel=1e-3)
    assert divided.fullest.bytes[GRADIENTS] < whole.fullest.bytes[GRADIENTS]


@pytest.mark.parametrize("config", [{}, {"zero__level": "v1"}])
def test_more_workers_cost_no_more_to_estimate(config):
    """What is gone through, and found but for exchanges, is the same for two workers and for two thousand."""
    few, many = [estimated(mlp, workers, **config)[1] for workers in (2, 2048)]
    assert few.stages[0].bytes.keys() == many.stages[0].bytes.keys()
    assert few.stages[0].compute_s >= many.stages[0].compute_s > 0


_STRATEGIES = [
    ("one device", mlp, 1, 1, {}),
    ("two workers", mlp, 2, 1, {}),
    ("two devices", mlp, 1, 2, {}),
    ("micro-batches", mlp, 1, 1, {"pipeline__num_micro_batch": 4}),
    ("pipeline", mlp, 1, 2, dict(_AUTO, pipeline__num_micro_batch=4)),
    ("pipeline of workers", mlp, 2, 1, dict(_AUTO, pipeline__num_micro_batch=4)),
    ("ZeRO v0", mlp, 2, 1, {"zero__level": "v0"}),
    ("ZeRO v1", mlp, 2, 1, {"zero__level": "v1"}),
    ("ZeRO v3", mlp, 2, 1, {"zero__level": "v3"}),
    ("ZeRO, micro-batches", mlp, 2, 1, {"zero__level": "v1", "pipeline__num_micro_batch": 2}),
    ("recomputation", mlp, 1, 1, {"gradient_checkpoint__type": "auto"}),
    ("split", split_mlp, 1, 2, {}),
    ("split over workers", split_mlp, 2, 1, {}),
    ("convolutions", convolutions, 2, 1, {}),
]


@pytest.mark.parametrize("name,build,workers,devices,config", _STRATEGIES, ids=[each[0] for each in _STRATEGIES])
def test_bytes_of_a_device(monkeypatch, name, build, workers, devices, config):
    """Within 12 % of what goes through the compiled graph; without patches of convolutions, which kernels decide."""
    monkeypatch.setattr(estimated_program, "_patches", lambda node, op: 0)
    graph, found = estimated(build, workers, devices, batch=64, **config)
    program = planning.compiled(graph, workers, devices, **config)
    memory, unknown = estimate_program(program, 64, orders=1)
    assert all(name.endswith("/receive") for name in unknown)  # of what comes from other workers
    walked = max(each.peak_bytes for each in memory.values())
    assert found.fullest.peak_bytes == pytest.approx(walked, rel=0.12)


def test_what_lies_on_the_host_takes_none_of_the_device():
    graph, found = estimated(mlp, batch=64, offload__level="v0")
    memory, _ = estimate_program(planning.compiled(graph, 1, 1, offload__level="v0"), 64, orders=1)
    assert found.fullest.peak_bytes == pytest.approx(memory["CPU:1"].peak_bytes, rel=0.12)


def test_the_command_tells_the_estimate(monkeypatch, capsys):
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    with capture() as graph:
        mlp()
        Env.get().reset()
        assert preview.show(graph, preview.parser().parse_args(["--batch", "64", "--machine", "V100", "train.py"])) == 0
        text = capsys.readouterr().out
        assert "Estimated for V100, a micro-batch of 64 rows where the program leaves that open: " in text
        assert "on the fullest device: variables 1.0 MiB, slots 2.0 MiB" in text
        assert preview.show(graph, preview.parser().parse_args(["--json", "--batch", "64", "train.py"])) == 0
        told = json.loads(capsys.readouterr().out)["estimate"]
        assert told["machine"] == "nominal" and told["peak_bytes"] > 3 * 2**20 and told["step_s"] > 0
        assert preview.show(graph, preview.parser().parse_args(["--machine", "K80", "train.py"])) == 2
        assert "There is no machine 'K80'" in capsys.readouterr().err


def products_of_several_dimensions(x):
    return tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.dense(x, 8, tf.nn.relu), 2)))


def products_of_rows_with_rows(x):
    hidden = tf.layers.dense(x[:, 0], 5)
    return tf.reduce_mean(tf.square(tf.matmul(hidden, x[:, 1, :] @ tf.ones([4, 5]), transpose_b=True)))


@pytest.mark.parametrize("loss_of, at_least", [(products_of_several_dimensions, 20), (products_of_rows_with_rows, 8)])
def test_sizes_that_the_graph_leaves_open_are_guessed_from_those_of_the_batch(loss_of, at_least):
    """Each tensor is as large as it is when it is run."""
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [None, 6, 4])
        planning.sgd(loss_of(x))
        program, _ = planning.plan_of(graph, devices=1)
        names = program.graph.in_order(program.graph.nodes)
        prices = Prices(program, names, planning.cluster(1, 1).machine.device, batch=3)
        open_ones = [name for name, known in program.specs.items() if known and -1 in (known[0].shape or ())]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            values = session.run(["%s:0" % name for name in open_ones], {x: np.zeros([3, 6, 4])})
    found = {name: prices._specs[name, 0].shape for name in open_ones if (name, 0) in prices._specs}
    assert len(found) > at_least
    assert found == {name: value.shape for name, value in zip(open_ones, values) if name in found}
