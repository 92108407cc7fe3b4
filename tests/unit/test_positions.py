"""checkpoint.data_position: which data sets it is of, what is told of the rest, and the files beside checkpoints."""

import logging
import os

import pytest
import tensorflow.compat.v1 as tf

from epl.config import Config
from epl.errors import ConfigError, UnsupportedError
from epl.graph.bodies import Bodies
from epl.passes.promises import PROMISES
from epl.plan.input.streams import elements_of
from epl.plan.report.plan_table import plan_table
from epl.session import position_files
from tests.helpers import planning
from tests.unit.test_equal_steps import fed, handle, queue

KEPT = {"checkpoint__data_position": "per_worker"}


def data(name=None):
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])).repeat(), name)
    return iterator.get_next()


def planned(x, **config):
    planning.sgd(planning.layers(x=x))
    return planning.plan_of(tf.get_default_graph(), devices=1, **dict(KEPT, **config))


def test_data_sets_that_training_reads():
    with planning.capture():
        x = data("first") + data("second")
        data("of others")
        planning.sgd(planning.layers(x=x))
        plan = planning.compiled(tf.get_default_graph(), devices=1, **KEPT).plan
    first, second = plan.positions
    assert first.iterator != second.iterator and first.form == second.form and first.counted
    assert "checkpoints keep how far 2 data sets have been read" in plan_table(plan)


def test_other_data_sets_are_of_another_form():
    with planning.capture():
        other = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])).shuffle(2))
        _, plan = planned(data() + other.get_next())
    assert plan.positions[0].form != plan.positions[1].form


def test_one_that_is_fed_by_a_handle_is_any_that_has_one():
    with planning.capture():
        iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(tf.ones([8, 4])))
        iterator.string_handle()
        _, plan = planned(handle())
    assert len(plan.positions) == 1 and not any(each.counted for each in plan.positions)


@pytest.mark.parametrize(
    "make, said",
    [
        (fed, "has no effect: training reads no data set"),
        (queue, "has no effect: training reads no data set"),
        (lambda: data() + queue(), "no position is kept of "),
        (lambda: data() + tf.random_normal([8, 4], seed=1), "random numbers of 'random_normal/RandomStandardNormal'"),
    ],
)
def test_what_begins_anew_is_named(make, said, caplog):
    with planning.capture(), caplog.at_level(logging.WARNING, "epl"):
        planned(make())
    assert said in caplog.text


def test_nothing_is_read_ahead(caplog):
    with planning.capture(), caplog.at_level(logging.WARNING, "epl"):
        _, plan = planned(data(), io__prefetch_to_device=True)
    assert plan.positions and not plan.prefetched
    assert "with checkpoint.data_position data sets stand where the step has read them" in caplog.text


def test_data_that_begins_again_within_a_run_is_refused():
    with planning.capture(), pytest.raises(ConfigError, match="which of a worker's data was read for a second time"):
        planned(data(), io__equal_steps="repeat")


def test_the_pass_promises_its_nodes():
    with planning.capture() as graph:
        planning.sgd(planning.layers(x=data()))
        program = planning.compiled(graph, devices=1, **KEPT)
    (position,) = program.plan.positions
    promise, without = PROMISES["keep_positions"], program.source.graph
    assert promise.kept(program.graph, program.plan) == []
    said = ["there is no node '%s'" % name for name in (position.state, position.take_up, position.skip)]
    assert promise.kept(without, program.plan) == said


# ---------------------------------------------------------------------------------------------------------------------
# Files.


def checkpoint_in(folder):
    path = os.path.join(str(folder), "model.ckpt-3")
    open(path + ".index", "w").close()
    return path


def write(path, workers, wanted=None):
    for index in range(workers) if wanted is None else wanted:
        position_files.write(path, planning.cluster(workers, 1, index), {"data": {"count": index}})


def test_workers_read_what_all_have_written(tmp_path):
    path = checkpoint_in(tmp_path)
    write(path, 2)
    assert position_files.read(path) == ([{"data": {"count": index}} for index in range(2)], None)
    assert sorted(os.listdir(str(tmp_path))) == [
        "model.ckpt-3" + end for end in (".index", ".position-0-of-2", ".position-1-of-2")
    ]


def test_why_positions_cannot_be_taken(tmp_path):
    path = checkpoint_in(tmp_path)
    assert "checkpoint.data_position was not set" in position_files.read(path)[1]
    write(path, 2, [0])
    assert position_files.read(path)[1] == "it has no position of the data of worker 1"
    assert position_files.problem(path) == "it has no position of the data of worker 1"
    write(path, 2)
    assert position_files.problem(path) is None
    with open(path + ".position-0-of-2", "wb") as file:
        file.write(b"nothing")
    assert "worker 0's position is damaged" in position_files.read(path)[1]


def test_one_that_is_being_written_anew_has_the_positions_of_before(tmp_path):
    path = checkpoint_in(tmp_path)
    write(path, 2)
    write(path, 3, [0, 2])
    assert position_files.problem(path) is None and len(position_files.read(path)[0]) == 2


def test_files_go_with_their_checkpoints(tmp_path):
    path = checkpoint_in(tmp_path)
    gone, newer = path.replace("-3", "-2"), path.replace("-3", "-4")
    for each in (gone, path, newer):
        write(each, 2)
    write(newer, 3)
    position_files.clean(newer, 3)
    assert {name.split(".position")[0] for name in os.listdir(str(tmp_path))} == {
        "model.ckpt-3.index",
        "model.ckpt-3",
        "model.ckpt-4",
    }
    assert position_files.problem(newer) is None and position_files.problem(path) is None


# ---------------------------------------------------------------------------------------------------------------------
# One order for all workers ("global").

GLOBAL = {"checkpoint__data_position": "global", "io__shard_dataset": True}


def stream_of(data):
    planning.sgd(planning.layers(x=tf.data.make_initializable_iterator(data).get_next()))
    program = planning.compiled(tf.get_default_graph(), 2, 1, **GLOBAL)
    (position,) = program.plan.positions
    (stream,) = position.streams
    return stream, elements_of(Bodies(program.whole), stream)


def rows(count=48):
    return tf.data.Dataset.from_tensor_slices(tf.ones([count, 4]))


@pytest.mark.parametrize(
    "make, behind, elements",
    [
        (lambda: rows().shuffle(8, seed=1).map(lambda x: x + 1.0).batch(4).prefetch(1), "Shuffle", 4),
        (lambda: rows().shuffle(8, seed=1).repeat().batch(4), "Repeat", 4),
        (lambda: rows().batch(4).repeat(2), "Repeat", 1),
        (lambda: rows().filter(lambda x: x[0] > 0.0).batch(6), "Filter", 6),
        (lambda: tf.data.Dataset.zip((rows(), rows())).map(lambda x, y: x + y).batch(5), "Zip", 5),
    ],
)
def test_shares_are_taken_where_elements_can_be_counted(make, behind, elements):
    with planning.capture():
        stream, count = stream_of(make())
        assert behind in stream.node and count == elements


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: tf.data.make_one_shot_iterator(rows().batch(4)).get_next(), "is no iterator with an initializer"),
        (lambda: initialized(rows().shuffle(8).batch(4)), "has no seed"),
        (lambda: initialized(rows().batch(tf.placeholder(tf.int64, []))), "is made of what is fed"),
        (
            lambda: initialized(rows().batch(tf.cast(tf.size(tf.ones([4])), tf.int64))),
            "does not tell how many elements",
        ),
        (handle, "is read in a loop, a branch or by a handle"),
    ],
)
def test_what_has_no_one_order_is_refused(make, said):
    with planning.capture() as graph:
        tf.data.make_one_shot_iterator(rows().batch(4)).string_handle()
        x = make()
        x.set_shape([None, 4])
        planning.sgd(planning.layers(x=x))
        with pytest.raises(UnsupportedError, match=said):
            planning.plan_of(graph, 2, 1, **GLOBAL)


def initialized(data):
    return tf.data.make_initializable_iterator(data).get_next()


@pytest.mark.parametrize("config", [{}, {"io.shard_dataset": True, "io.slicing": True}])
def test_one_order_needs_shares_of_records(config):
    with pytest.raises(ConfigError, match="is for data sets that io.shard_dataset divides"):
        Config(dict({"checkpoint.data_position": "global"}, **config))


@pytest.mark.parametrize("saved", ["per_worker", "global"])
def test_the_checkpoint_before_stays_until_all_have_written(saved):
    config = {"checkpoint.data_position": saved, "io.shard_dataset": True, "checkpoint.keep": 1}
    with pytest.raises(ConfigError, match="until all workers have written how far they have read"):
        Config(config)
    assert Config(dict(config, **{"checkpoint.keep": 2})).checkpoint.keep == 2
