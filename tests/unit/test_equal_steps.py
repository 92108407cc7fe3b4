"""io.equal_steps="repeat": where data can begin again, and where it cannot."""

import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import ConfigError, UnsupportedError
from epl.plan.report.plan_table import plan_table
from tests.helpers import planning


def handle():
    data = tf.data.Dataset.from_tensors(tf.ones([8, 4]))
    return tf.data.Iterator.from_string_handle(
        tf.placeholder(tf.string, []), tf.data.get_output_types(data), tf.data.get_output_shapes(data)
    ).get_next()


def twice():
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])))
    return iterator.get_next() + iterator.get_next()


def queue():
    return tf.FIFOQueue(4, tf.float32, shapes=[[8, 4]]).dequeue()


def branch():
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])))
    return tf.cond(tf.placeholder(tf.bool, []), iterator.get_next, lambda: tf.zeros([8, 4]))


def fed():
    return tf.placeholder(tf.float32, [8, 4])


@pytest.mark.parametrize(
    "make, message",
    [
        (handle, "takes data from an iterator that is fed as a string handle"),
        (twice, "so that one could end in the middle of a step. Call get_next\\(\\) once"),
        (queue, "\\(QueueDequeueV2\\), which cannot begin again. The key is for data sets \\(tf.data\\)"),
        (branch, "which cannot begin again. The key is for data sets \\(tf.data\\)"),
        (fed, "training reads no data set \\(tf.data\\), and what is fed cannot begin again"),
    ],
)
def test_what_cannot_begin_again(make, message):
    with planning.capture() as graph:
        planning.sgd(planning.layers(x=make()))
    with pytest.raises(UnsupportedError, match=message):
        planning.plan_of(graph, workers=2, devices=1, io__equal_steps="repeat")
    for workers, value in ((1, "repeat"), (2, "drop")):
        assert planning.plan_of(graph, workers=workers, devices=1, io__equal_steps=value)[1].repeated == ()


def test_workers_that_share_a_copy_of_the_model():
    with planning.capture() as graph:
        with epl.replicate(1):
            hidden = tf.matmul(planning.batch(), planning.variable("first"))
        with epl.replicate(1):
            planning.sgd(tf.reduce_mean(tf.matmul(hidden, planning.variable("second"))))
    with pytest.raises(UnsupportedError, match="where several workers compute one copy of the model and read the same"):
        planning.plan_of(graph, workers=4, devices=1, io__equal_steps="repeat")


def test_settings_that_do_not_go_together():
    with pytest.raises(ConfigError, match='io.equal_steps="repeat" cannot be used with local_sgd.k_steps=2'):
        epl.Config({"io.equal_steps": "repeat", "local_sgd.k_steps": 2})


def test_all_micro_batches_are_read_before_the_first_is_computed():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    options = dict(io__equal_steps="repeat", pipeline__num_micro_batch=3)
    program = planning.compiled(graph, workers=2, devices=1, **options)
    (each,) = program.plan.repeated
    (end,) = planning.of_op(program.graph, "EplEndOfData")
    reads = [node.name for node in planning.of_op(program.graph, "IteratorGetNext")]
    assert len(reads) == 3 and set(reads) <= program.graph.ancestors([end.name])
    assert not [name for name in program.graph.ancestors([end.name]) if program.graph.nodes[name].op == "EplGate"]
    names = program.micro_batches.copies(each.get_next)
    gates = [[text for text in program.graph.nodes[name].input if "^epl_begin/" in text] for name in names]
    assert [len(found) for found in gates] == [0, 1, 1]


def test_only_what_training_reads_begins_again():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
        other = planning.batch() * 2.0
    program = planning.compiled(graph, workers=2, devices=1, io__equal_steps="repeat")
    (each,) = program.plan.repeated
    assert program.graph.nodes[each.get_next].op == "IdentityN"
    reads = planning.of_op(program.graph, "IteratorGetNext")
    assert sorted(len(node.attr["output_types"].list.type) for node in reads) == [1, 2]
    assert program.graph.nodes[other.op.inputs[0].op.name].op == "IteratorGetNext"


@pytest.mark.parametrize(
    "value, workers, row",
    [
        ("repeat", 2, r"\+4 bytes .* 1 data sets begin again until those of all workers have been seen"),
        ("drop", 2, "as without .* training ends with the data of the worker that has least"),
        ("repeat", 1, None),
        ("", 2, None),
    ],
)
def test_the_plan_names_it(value, workers, row):
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    text = plan_table(planning.compiled(graph, workers=workers, devices=2, io__equal_steps=value).plan)
    found = [line for line in text.splitlines() if "io.equal_steps" in line]
    assert len(found) == (row is not None)
    if row is not None:
        assert re.search("io.equal_steps=%s +%s" % (value, row), found[0]), found[0]
