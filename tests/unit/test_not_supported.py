"""What this version cannot do: refusals that no other test sees, and the page that lists them all."""

import ast
import os
import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.capture.record import make_program
from epl.errors import UnsupportedError
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from epl.passes.nodes import copy_element_types
from epl.plan.pipeline import micro_batches
from epl.session.devices import passed_over
from tests.helpers import planning
from tests.unit.test_docs import ROOT, files, occurs, python_strings, read

ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CODE = re.compile(r"`([^`]+)`")


def in_micro_batches(graph):
    planning.plan_of(graph, pipeline__num_micro_batch=2)


def test_an_update_before_the_gradients_of_a_second_one():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    made = make_program(graph).graph
    update = planning.of_op(made, "ApplyGradientDescent")[0].name
    with pytest.raises(UnsupportedError, match="'%s' is needed by gradients or merged outputs of every" % update):
        micro_batches._check(made, {update})


def test_collectives_of_the_program_in_micro_batches(monkeypatch):
    with planning.capture() as graph:
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(2, 1))
        x = epl.ops.all_reduce(planning.batch(), name="mine")
        planning.sgd(planning.layers(x=x))
    with pytest.raises(UnsupportedError, match="'mine' is a collective that the program made with epl.ops"):
        in_micro_batches(graph)


@pytest.mark.skipif(tf_compat.line() == "tf1", reason="TensorFlow 1.15 has no such attribute")
def test_a_kernel_that_moves_averages_itself():
    with planning.capture() as graph:
        x, ones = tf.reshape(planning.batch(8, 4), [8, 1, 1, 4]), tf.ones([4])
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=ones, offset=ones, mean=ones, variance=ones, exponential_avg_factor=0.5, is_training=True
        )
        planning.sgd(tf.reduce_sum(y[0] * planning.variable("w", [4])))
        with pytest.raises(UnsupportedError, match="computes its moving averages by itself"):
            planning.plan_of(graph, communication__sync_batch_norm=True)


def test_files_of_a_data_set_that_a_function_is_given():
    def read_all(window):
        return window.flat_map(tf.data.TFRecordDataset)

    with planning.capture() as graph:
        data = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"]).window(2).flat_map(read_all)
        tf.data.make_initializable_iterator(data).get_next()
        planning.sgd(planning.variable("weight", []))
        with pytest.raises(UnsupportedError, match="a data set is handed to it as an argument"):
            planning.plan_of(graph, workers=2, devices=1, io__slicing=True)


def test_a_data_set_that_does_not_say_its_types():
    unknown = make_node("SomeDataset", "unknown", [])
    with pytest.raises(UnsupportedError, match="'unknown' .SomeDataset., as it does not say what its elements are"):
        copy_element_types(make_node("ShardDataset", "shard", []), unknown)


def test_a_variable_that_a_gradient_and_data_change_together():
    with planning.capture() as graph:
        x, w = planning.batch(), planning.variable("w")
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(tf.matmul(x, w))), [w])
        tf.assign(planning.variable("kept", trainable=False), gradient * tf.reduce_mean(x))
        with pytest.raises(UnsupportedError, match="on its way to a variable that what differs between micro-batches"):
            in_micro_batches(graph)


@pytest.mark.parametrize(
    "devices, found",
    [
        (["", "/device:GPU:0", "/GPU:0", "/job:localhost/task:0/device:CPU:0"], []),
        (["/gpu:0", "gpu:1", "/device:CPU:0"], ["GPU:0", "GPU:1"]),
        (["/job:ps/task:0", "/job:worker/task:1/device:CPU:0"], ["job:ps", "job:worker"]),
    ],
)
def test_devices_that_a_program_names(devices, found):
    nodes = [make_node("NoOp", "node_%d" % number, []) for number in range(len(devices))]
    for node, device in zip(nodes, devices):
        node.device = device
    graph_def = tf_compat.GraphDef()
    graph_def.node.extend(nodes)
    assert passed_over(Graph.from_graph_def(graph_def)) == found


# ---------------------------------------------------------------------------------------------------------------------
# docs/not_supported.md


def rows():
    """The cells of each row of the page's tables."""
    found = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(read("docs", "not_supported.md"))]
    return [cells for cells in found if set(cells[0]) - set("-| ") and TEST.search(cells[-1])]


def test_every_entry_has_a_test():
    pages = ROW.findall(read("docs", "not_supported.md"))
    heads = sum(1 for row in pages if not set(row) - set("-| "))
    assert len(rows()) == len(pages) - 2 * heads > 30
    for cells in rows():
        assert len(cells) == 4, cells
        for path, name in TEST.findall(cells[-1]):
            assert os.path.exists(os.path.join(ROOT, path)), cells
            assert re.search(r"^def %s\(" % name, read(path), re.MULTILINE), cells


def messages():
    """What the page quotes in its last column."""
    return [text for cells in rows() for text in CODE.findall(TEST.sub("", cells[-1]))]


def test_the_page_quotes_messages_that_exist():
    texts = [text for name in files("epl", ".py") for text in python_strings(read(name))]
    assert [message for message in messages() if not occurs(message, texts)] == []


def test_the_page_has_all_that_is_not_supported():
    """Each place of the library that raises UnsupportedError."""
    missing = []
    for name in files("epl", ".py"):
        for node in ast.walk(ast.parse(read(name))):
            if isinstance(node, ast.Raise) and getattr(getattr(node.exc, "func", None), "id", "") == "UnsupportedError":
                text = max((each.s for each in ast.walk(node.exc) if isinstance(each, ast.Str)), key=len)
                if not any(occurs(message, [text]) for message in messages()):
                    missing.append((name, text))
    assert missing == []
