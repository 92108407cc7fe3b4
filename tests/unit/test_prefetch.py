"""io.prefetch_to_device: what is read before a step and where it lies then; what is read in the step as without it."""

import logging
import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.plan.report.plan_table import plan_table
from tests.helpers import planning
from tests.unit.test_equal_steps import branch, fed, handle, queue, twice

AHEAD = {"io__prefetch_to_device": True}
HOST, DEVICE = "/device:CPU:0", "/device:CPU:1"


def strings():
    data = tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.constant("name")))
    return tf.data.make_initializable_iterator(data).get_next()[0]


def saved():
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])))
    tf.data.experimental.make_saveable_from_iterator(iterator)
    return iterator.get_next()


def late():
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])))
    with tf.control_dependencies([tf.ones([2]) * 2.0]):
        return iterator.get_next()


@pytest.mark.parametrize(
    "make, why",
    [
        (handle, "takes data from an iterator that is fed as a string handle"),
        (twice, "is not the only get_next\\(\\) of its iterator"),
        (branch, "numbers that get_next\\(\\) gives outside of functions, branches and loops"),
        (strings, "gives strings or other things that are no numbers"),
        (saved, "whose place is saved in checkpoints, which would be a batch ahead"),
        (late, "waits for other operations"),
        (queue, "what is fed and what queues give comes with the step"),
        (fed, "what is fed and what queues give comes with the step"),
    ],
)
def test_what_is_read_in_the_step(make, why, caplog):
    with planning.capture() as graph:
        planning.sgd(planning.layers(x=make()))
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = planning.plan_of(graph, devices=1, **AHEAD)
    assert plan.prefetched == () and re.search(why, " ".join(each.getMessage() for each in caplog.records))
    if make in (fed, queue, branch):  # no node of the graph itself reads a data set
        return
    with planning.capture() as graph:
        planning.sgd(planning.layers(x=make() + planning.batch()))
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = planning.plan_of(graph, devices=1, **AHEAD)
    assert len(plan.prefetched) == 1
    assert any("it is read in the step, as without the key" in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize("shared", ["stages", "devices"])
def test_models_whose_devices_share_batches(shared, caplog):
    with planning.capture() as graph:
        with epl.replicate(2 if shared == "devices" else 1):
            hidden = tf.matmul(planning.batch(), planning.variable("first"))
        if shared == "stages":
            with epl.replicate(1):
                hidden = tf.matmul(hidden, planning.variable("second"))
        planning.sgd(tf.reduce_mean(hidden))
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = planning.plan_of(graph, devices=2, **AHEAD)
    assert plan.prefetched == () and [each.getMessage() for each in caplog.records] == [
        "io.prefetch_to_device has no effect: the model has several stages, or one copy of it computes on several "
        "devices (replicate or split with a device_count above 1), and these share batches."
    ]


def test_batches_on_which_workers_agree_come_with_the_step(caplog):
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    with caplog.at_level(logging.WARNING, "epl"):
        _, plan = planning.plan_of(graph, 2, 1, io__equal_steps="repeat", **AHEAD)
    assert plan.prefetched == () and plan.repeated
    assert 'has no effect: with io.equal_steps="repeat"' in caplog.text


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_copies_no_batch(ahead):
    """On a host without GPUs, offload.level makes CPU:1 the device that computes."""
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    options = dict(AHEAD if ahead else {}, offload__level="v0")
    program = planning.compiled(graph, devices=1, **options)
    nodes = program.graph.nodes
    (step,) = [node for node in planning.of_op(program.graph, "ApplyGradientDescent") if "w0" in node.input[0]]
    needed = program.graph.ancestors([step.name])
    copied = [
        name
        for name in needed
        for text in nodes[name].input
        if text[0] != "^" and nodes[name].device.endswith(DEVICE)
        if nodes[text.split(":")[0]].op in ("IteratorGetNext", "Unstage")
        if nodes[text.split(":")[0]].device.endswith(HOST)
    ]
    assert bool(copied) == (not ahead)
    reads = [name for name in needed if nodes[name].op == "IteratorGetNext"]
    assert len(reads) == (not ahead)
    if not ahead:
        return
    (each,) = program.plan.prefetched
    assert nodes[each.get_next].op == "Unstage" and nodes[each.get_next].device.endswith(DEVICE)
    (stage,) = planning.of_op(program.graph, "Stage")
    assert stage.device.endswith(DEVICE) and stage.attr["shared_name"].s.decode() == each.get_next
    assert step.name not in program.graph.ancestors([each.load])
    assert "batches of 1 data sets are on their devices before the steps" in plan_table(program.plan)
