"""Where the plan divides data, and what it synchronises for batch normalisation."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import PlanError, UnsupportedError
from epl.graph import tags
from tests.helpers import planning
from tests.helpers.planning import capture, of_op, plan_of, rewritten, variable

NAMES = ["a", "b", "c", "d"]


def plan_of_pipeline(build, workers=2, **config):
    with capture() as graph:
        tf.data.make_initializable_iterator(build()).get_next()
        planning.sgd(variable("weight", []))
        _, plan = plan_of(graph, workers=workers, devices=1, **config)
    return plan.data


def test_workers_must_name_the_files_in_the_same_order():
    facts = [
        plan_of_pipeline(lambda names=names: tf.data.TFRecordDataset(names), io__slicing=True).facts()
        for names in (NAMES, NAMES, NAMES[::-1])
    ]
    assert len(facts[0]) == 1 and facts[0] == facts[1] != facts[2]


def test_names_that_are_not_known_yet_are_not_compared():
    def build():
        return tf.data.TFRecordDataset(tf.placeholder(tf.string, [None]))

    data = plan_of_pipeline(build, io__slicing=True)
    assert len(data.lists) == 1 and data.facts() == []


def test_constant_files_are_not_lists_of_data():
    """A vocabulary that every record looks things up in stays whole."""

    def build():
        data = tf.data.TFRecordDataset(NAMES)
        return data.map(lambda text: tf.strings.join([text, tf.read_file("vocabulary")]))

    assert [share.positions for share in plan_of_pipeline(build, io__slicing=True).lists] == [(0,)]


@pytest.mark.parametrize("workers, config", [(1, {"io__slicing": True}), (2, {})])
def test_nothing_to_divide(workers, config):
    data = plan_of_pipeline(lambda: tf.data.TFRecordDataset(NAMES), workers=workers, **config)
    assert data.lists == () and data.records == ()


@pytest.mark.parametrize("workers, told", [(1, False), (2, True), (4, False)])
def test_workers_of_one_copy_of_the_model_are_told_that_nothing_is_divided(caplog, workers, told):
    with capture() as graph:
        tf.data.make_initializable_iterator(tf.data.TFRecordDataset(NAMES)).get_next()
        with epl.split(2):
            x = tf.matmul(tf.placeholder(tf.float32, [8, 4]), variable("kernel"))
        planning.sgd(tf.reduce_mean(tf.square(x)))
    devices = 2 if workers == 1 else 1
    data = planning.compiled(graph, workers=workers, devices=devices, io__slicing=True).plan.data
    assert len(data.lists) == (workers == 4)
    assert ("io.slicing=True divides nothing here: all 2 workers" in caplog.text) == told


def test_lists_that_were_shuffled_together_are_refused():
    def build():
        order = tf.random_shuffle(tf.range(4))
        names = tf.gather(NAMES, order)
        return tf.data.Dataset.from_tensor_slices((names, order)).flat_map(lambda n, _: tf.data.TFRecordDataset(n))

    with pytest.raises(UnsupportedError, match="takes lists that .* has shuffled.*data set's shuffle"):
        plan_of_pipeline(build, io__slicing=True)


def test_a_list_is_divided_before_it_is_shuffled():
    with capture() as graph:
        planning.sgd(variable("weight", []))
        names = tf.train.string_input_producer(NAMES, seed=3)
        tf.TFRecordReader().read(names)
        _, _, after = rewritten(graph, workers=2, devices=1, io__slicing=True)
    share, shuffle = of_op(after, "EplListShare")[0], of_op(after, "RandomShuffle")[0]
    assert shuffle.input[0] == share.name and share.attr["rule"].s == b"even"


def test_names_added_to_a_queue_one_by_one_are_refused():
    with capture() as graph:
        planning.sgd(variable("weight", []))
        queue = tf.FIFOQueue(4, tf.string, shapes=[[]])
        queue.enqueue("a")
        tf.TFRecordReader().read(queue)
        with pytest.raises(UnsupportedError, match="one by one.*enqueue_many"):
            plan_of(graph, workers=2, devices=1, io__slicing=True)


@pytest.mark.parametrize("sloppy", [False, True])
def test_records_in_any_order_cannot_be_divided(sloppy):
    def build():
        names = tf.data.Dataset.from_tensor_slices(NAMES)
        read = tf.data.experimental.parallel_interleave(tf.data.TFRecordDataset, 2, sloppy=sloppy)
        return names.apply(read)

    if sloppy:
        with pytest.raises(UnsupportedError, match="come in an order that differs between workers"):
            plan_of_pipeline(build, io__shard_dataset=True)
    else:
        assert len(plan_of_pipeline(build, io__shard_dataset=True).records) == 1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("config, what", [
    ({"io__slicing": True}, "no list of file names"),
    ({"io__shard_dataset": True}, "no data set"),
    ({"io__slicing": True, "io__shard_dataset": True}, "no list of file names and no data set"),
])  # fmt: skip
def test_input_that_cannot_be_divided(caplog, training, config, what):
    with capture() as graph:
        x = tf.train.input_producer(tf.zeros([4, 2])).dequeue()
        if training:
            planning.sgd(tf.reduce_sum(x * variable("w", [2])))
            with pytest.raises(PlanError, match=what + " was found"):
                plan_of(graph, workers=2, devices=1, **config)
        else:
            tf.metrics.mean(x)
            plan_of(graph, workers=2, devices=1, **config)
            assert what + " was found" in caplog.text


def test_every_branch_of_a_zip_is_divided():
    def build():
        return tf.data.Dataset.zip((tf.data.Dataset.range(4), tf.data.Dataset.range(4).shuffle(4)))

    assert len(plan_of_pipeline(build, io__shard_dataset=True).records) == 2


def test_files_without_a_known_number():
    def build():
        numbers = tf.data.Dataset.range(4).filter(lambda number: number > 0)
        return numbers.map(tf.as_string).flat_map(tf.data.TFRecordDataset)

    with pytest.raises(PlanError, match="Set io.unbalanced_io_slicing=True"):
        plan_of_pipeline(build, io__slicing=True)
    data = plan_of_pipeline(build, io__slicing=True, io__unbalanced_io_slicing=True)
    assert data.lists == () and len(data.records) == 1


def normalised(fused):
    """A model with one batch normalisation."""
    x = tf.reshape(planning.batch(), [-1, 2, 2, 1]) * variable("scale", [])
    y = tf.layers.batch_normalization(x, training=True, fused=fused)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        planning.sgd(tf.reduce_mean(tf.square(y - 0.5)), global_step=tf.train.get_or_create_global_step())


@pytest.mark.parametrize("fused, gathers, reduces", [(True, 1, 1), (False, 0, 4)])
def test_collectives_of_batch_normalisation(fused, gathers, reduces):
    """Forward and backward once each; moments of plain operations twice each, as the variance needs the mean."""
    counts = []
    for sync in (False, True):
        with capture() as graph:
            normalised(fused)
            _, plan, after = rewritten(graph, workers=2, communication__sync_batch_norm=sync)
        counts.append((len(of_op(after, "EplAllGather")), len(of_op(after, "EplAllReduce"))))
        assert bool(of_op(after, "FusedBatchNormV3")) == (fused and not sync)
    assert counts[1][0] - counts[0][0] == gathers and counts[1][1] - counts[0][1] == reduces
    assert plan.batch_norms


def test_gradients_of_batch_normalisation_whose_statistics_wait_on_the_host():
    """They are those over all copies like others, though it is the host that gives them the mean."""
    with capture() as graph:
        x = tf.reshape(planning.batch(), [-1, 2, 2, 1]) * variable("scale", [])
        for _ in range(2):
            x = tf.tanh(tf.layers.batch_normalization(x, training=True, fused=True))
        planning.sgd(tf.reduce_mean(tf.square(x - 0.5)))
        options = dict(communication__sync_batch_norm=True, gradient_checkpoint__offload=True)
        program, plan, after = rewritten(graph, workers=2, **options)
    gradients = {node.name for node in of_op(program.graph, "FusedBatchNormGradV3")}
    assert any(tags.HOST in n.attr and n.input[0].endswith("FusedBatchNormV3:3") for n in after.nodes.values())
    assert len(gradients) == 2 and {name for norm in plan.batch_norms for name in norm.gradients} == gradients
    assert not of_op(after, "FusedBatchNormGradV3")


def test_layer_normalisation_is_left_alone(caplog):
    with capture() as graph:
        x = planning.batch()
        mean, var = tf.nn.moments(x * variable("scale", [4]), [1], keep_dims=True)
        planning.sgd(tf.reduce_mean(tf.square((x - mean) / tf.sqrt(var + 1e-3))))
        _, plan = plan_of(graph, communication__sync_batch_norm=True)
    assert plan.batch_norms == ()


def test_row_updates_of_metrics_are_gathered():
    with capture() as graph:
        x = planning.batch()
        tf.metrics.mean_per_class_accuracy(tf.cast(x[:, 0], tf.int64), tf.cast(x[:, 1], tf.int64), 3)
        model, plan = plan_of(graph)
    rows = [group for group in plan.state if group.how == "rows"]
    assert len(rows) == 2 and all(len(group.gathered) == 2 for group in rows)


def test_the_size_of_a_batch_is_summed_where_it_is_a_constant():
    with capture() as graph:
        tf.metrics.mean(planning.batch(rows=8))
        model, plan = plan_of(graph)
    assert sum(len(group.values) for group in plan.state) == 2 and {group.how for group in plan.state} == {"sum"}
