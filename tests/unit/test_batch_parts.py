"""Which rows of a batch workers read that compute one copy of the model together (io.slicing, io.shard_dataset)."""

import re

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import UnsupportedError
from tests.helpers import planning

NAMES = ["a", "b", "c", "d"]
BATCHES = ("BatchDataset", "BatchDatasetV2", "MapAndBatchDataset", "ExperimentalMapAndBatchDataset")


def rows():
    return tf.data.Dataset.from_tensor_slices(tf.ones([16, 4]))


def batches(size=8, **options):
    return rows().batch(size, **options)


def lines_of(texts):
    return texts.map(lambda text: tf.strings.to_number(text) * tf.ones([4])).batch(8)


def lines(names=NAMES):
    return lines_of(tf.data.TextLineDataset(names))


def initializable(data):
    return tf.data.make_initializable_iterator(data).get_next()


def one_shot(data):
    return tf.data.make_one_shot_iterator(data).get_next()


def graph_of(make, count=2, read=initializable):
    """A model that `count` devices divide by the rows of its batch."""
    with planning.capture() as graph, epl.replicate(count):
        x = make()
        x = x if isinstance(x, tf.Tensor) else read(x)
        x = x[0] if isinstance(x, tuple) else x
        planning.sgd(planning.layers(1, x=tf.reshape(x, [-1, 4])))
    return graph


def done(graph, workers, devices=1, index=0, **config):
    """What a worker reads: sizes of batches, (number of shares, own one) of records, and the (own one, all) of the
    shares of each batch that its devices take."""
    program = planning.compiled(graph, workers, devices, index, **config)
    functions = [function.node_def for function in program.graph.library.function]
    used = program.graph.ancestors([node.name for node in planning.of_op(program.graph, "MakeIterator")])
    sizes, shards = [], []
    for nodes in [[program.graph.nodes[name] for name in used]] + functions:
        known = {node.name: node for node in nodes}

        def value(text, known=known):
            return known[text.split(":")[0]].attr["value"].tensor.int64_val[0]

        sizes += [value(node.input[1]) for node in nodes if node.op in BATCHES]
        shards += [tuple(map(value, node.input[1:3])) for node in nodes if node.op == "ShardDataset"]
    shares = planning.of_op(program.graph, "EplBatchShare")
    return sizes, shards, sorted((node.attr["index"].i, len(node.attr["weights"].list.i)) for node in shares)


@pytest.mark.parametrize("read", [initializable, one_shot])
@pytest.mark.parametrize(
    "workers, devices, count, shares",
    [(2, 1, 2, []), (4, 1, 2, []), (2, 2, 4, [(0, 2), (1, 2)])],
)
def test_workers_read_their_own_rows(read, workers, devices, count, shares):
    graph = graph_of(batches, count, read)
    for index in range(workers):
        found = done(graph, workers, devices, index, io__shard_dataset=True)
        assert found == ([4], [(workers, index)], shares)


def test_without_a_key_each_reads_whole_batches_and_takes_its_rows():
    graph = graph_of(batches)
    for index in range(2):
        assert done(graph, 2, index=index) == ([8], [], [(index, 2)])


def test_files_of_which_each_worker_reads_its_own():
    graph = graph_of(lines)
    assert done(graph, 2, io__slicing=True) == ([4], [], [])
    graph = graph_of(lambda: lines(NAMES[:3]))
    assert done(graph, 2, io__slicing=True, io__unbalanced_io_slicing=True) == ([4], [], [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: batches().shuffle(2).repeat().prefetch(1),
        lambda: batches().map(lambda x: tf.cast(x, tf.float32) / 255.0 - 0.5),
        lambda: batches().take(1).concatenate(batches().skip(1)),
        lambda: tf.data.Dataset.zip((batches(), batches())),
        lambda: rows().apply(tf.data.experimental.map_and_batch(lambda x: x + 1.0, 8)),
    ],
    ids=["as they are", "by element", "one after the other", "side by side", "mapped"],
)
def test_what_comes_after_a_batch(make):
    graph = graph_of(make)
    sizes, shards, shares = done(graph, 2, index=1, io__shard_dataset=True)
    assert set(sizes) == {4} and set(shards) == {(2, 1)} and shares == []


def split_graph(make, read=initializable):
    """A classifier that two devices divide, and its get_next()."""
    with planning.capture() as graph:
        x = read(make())
        with epl.split(2):
            planning.sgd(tf.reduce_mean(tf.square(tf.matmul(x, planning.variable("kernel")))))
    return graph, x


@pytest.mark.parametrize("read", [initializable, one_shot])
@pytest.mark.parametrize("fixed", [False, True])
def test_workers_that_divide_tensors_hand_each_other_their_rows(read, fixed):
    graph, x = split_graph(lambda: batches(drop_remainder=fixed).prefetch(1), read)
    program = planning.compiled(graph, 4, 1, 2, io__shard_dataset=True)
    nodes = program.graph.nodes
    assert done(graph, 4, 1, 2, io__shard_dataset=True)[:2] == ([4], [(4, 2)])
    assert nodes[x.op.name].op == "IdentityN"  # who fetches a batch, or feeds it, does so for all
    gathers = [node for node in planning.of_op(program.graph, "EplAllGather") if "whole_batch" in node.name]
    assert len(gathers) == 2 and {node.attr["workers"].i for node in gathers} == {2}
    (read,) = [node for node in nodes.values() if node.op.startswith("IteratorGetNext")]
    assert [shape.dim[0].size for shape in read.attr["output_shapes"].list.shape] == [-1]
    assert not [name for name in nodes if "same_batch" in name]


def test_batches_that_such_workers_read_whole(caplog):
    graph, x = split_graph(lambda: batches(7))
    program = planning.compiled(graph, 2, 1, 0, io__shard_dataset=True)
    assert program.graph.nodes[x.op.name].op.startswith("IteratorGetNext")
    assert [name for name in program.graph.nodes if "same_batch" in name]
    assert re.search(
        "together, and each reads all of its data, .*: 7 rows, .* do not divide over 2 workers", caplog.text
    )


@pytest.mark.parametrize(
    "where, reason", [("outside", "that the model does not take"), ("branch", "in a loop or a branch|takes batches")]
)
def test_batches_that_are_not_taken_by_the_model_alone(caplog, where, reason):
    # Functions that read data are refused beside a split.
    with planning.control_flow("v1"), planning.capture() as graph, epl.split(2):
        data = initializable(batches())
        other = tf.data.make_initializable_iterator(batches())
        if where == "branch":
            data += tf.cond(tf.placeholder(tf.bool, []), other.get_next, lambda: tf.zeros([8, 4]))
        else:
            other.get_next()
        planning.sgd(tf.reduce_mean(tf.square(tf.matmul(data, planning.variable("kernel")))))
    _, plan = planning.plan_of(graph, workers=4, devices=1, io__shard_dataset=True)
    assert plan.data.parts == () and plan.data.readers == (2, 0)
    assert re.search(reason, caplog.text)


def queue():
    text = tf.TFRecordReader().read(tf.train.string_input_producer(NAMES)).value
    return tf.train.batch([tf.decode_raw(text, tf.float32)], 8, shapes=[[4]])


def files_and_rows():
    return initializable(lines()) + initializable(batches())


RECORDS, FILES = {"io__shard_dataset": True}, {"io__slicing": True}
WEIGHTS = dict(RECORDS, cluster__device_weights=[3, 1])
ANY_NUMBER = dict(FILES, io__unbalanced_io_slicing=True)
UNKNOWN = "it is not known which data set makes their batches: of '.*' "


@pytest.mark.parametrize(
    "make, config, reason",
    [
        (lambda: batches(7, drop_remainder=True), RECORDS, r"7 rows, the batch of '.*' \(Batch.*\), do not divide"),
        (lambda: batches(tf.placeholder(tf.int64, [])), RECORDS, "the size of the batches of '.*' .* is no constant"),
        (lambda: batches(7), RECORDS, r"7 rows, the batch of '.*' \(Batch.*\), do not divide over 2 devices"),
        (lambda: rows().padded_batch(8, [None]), RECORDS, UNKNOWN + r"\(PaddedBatch"),
        (lambda: rows().window(8).flat_map(lambda x: x.batch(8)), RECORDS, UNKNOWN + r"\(FlatMapDataset\)"),
        (lambda: batches().map(lambda x: x - tf.reduce_mean(x, 0)), RECORDS, UNKNOWN + r"\(MapDataset\)"),
        (lambda: batches().map(lambda x: x * tf.ones([4])), RECORDS, UNKNOWN + r"\(MapDataset\)"),
        (batches, WEIGHTS, "cluster.device_weights gives them parts of different size"),
        (queue, FILES, r"'.*' \(QueueDequeueMany.*\) gives batches that do not come from a data set"),
        (files_and_rows, FILES, "nothing is divided of what the data set '.*' reads"),
        (lambda: lines(NAMES[:2]), FILES, "the 2 files of '.*' do not divide over 4 workers"),
        (lambda: lines(NAMES[:2]), ANY_NUMBER, "the 2 files of '.*' do not divide over 4 workers"),
        (lambda: lines(NAMES + NAMES[:2]), FILES, "the 6 files of '.*' do not divide over 4 workers"),
    ],
)
def test_why_workers_read_whole_batches(caplog, make, config, reason):
    """Those of a copy then read the same, so that nothing is lost, and say so."""
    _, plan = planning.plan_of(graph_of(make), workers=4, devices=1, index=3, **config)
    assert plan.data.readers == (2, 1) and plan.data.parts == () and plan.data.lists + plan.data.records
    text = "of the 2 workers of a copy each reads all of its data, in the same order.*: "
    assert re.search(text + reason, caplog.text)


def test_one_copy_whose_records_cannot_be_divided(caplog):
    names = tf.data.experimental.parallel_interleave(tf.data.TextLineDataset, 2, sloppy=True)
    graph = graph_of(lambda: lines_of(tf.data.Dataset.from_tensor_slices(NAMES).apply(names)))
    assert done(graph, 2, index=1, io__shard_dataset=True) == ([8], [], [(1, 2)])
    assert re.search("takes its rows of each batch: io.shard_dataset: .* order that differs between w", caplog.text)
    with pytest.raises(UnsupportedError, match="come in an order that differs between workers"):
        planning.plan_of(graph, workers=4, devices=1, io__shard_dataset=True)


def test_one_copy_of_which_each_worker_reads_everything(caplog):
    graph = graph_of(lambda: batches(7))
    assert done(graph, 2, index=1, io__shard_dataset=True) == ([7], [], [(1, 2)])
    assert "io.shard_dataset=True divides nothing here: all 2 workers compute one copy of the model" in caplog.text


@pytest.mark.parametrize("devices, count", [(3, 2), (2, 3)])
def test_a_copy_that_ends_in_the_middle_of_a_worker(devices, count):
    graph = graph_of(batches, count)
    text = "%d devices divide the batch of a copy of the model, and a worker has %d such devices" % (count, devices)
    with pytest.raises(UnsupportedError, match=text):
        planning.plan_of(graph, workers=6, devices=devices, io__shard_dataset=True)
