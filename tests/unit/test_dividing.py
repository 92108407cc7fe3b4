"""Where the workers' shares of data sets are taken, so that together they read what one device reads."""

import re

import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.errors import PlanError, UnsupportedError
from epl.rules import datasets
from tests.helpers import planning, random_pipelines

RECORDS, FILES = {"io__shard_dataset": True}, {"io__slicing": True, "io__unbalanced_io_slicing": True}
KEYS = {"records": (RECORDS, False, False), "records of files": (RECORDS, True, False), "files": (FILES, True, True)}
REFUSED = {key: "has one element" if key != "files" else "together they would read something else" for key in KEYS}


@pytest.fixture(scope="module", name="names")
def names_of_files(tmp_path_factory):
    return random_pipelines.write_files(str(tmp_path_factory.mktemp("lines")))


def compare(names, key, seed):
    """The choices of a pipeline that was refused; one that is not gives the records of one device."""
    config, with_files, in_batches = KEYS[key]
    pipelines = random_pipelines.Pipelines(seed, names, with_files, in_batches)
    try:
        one, others = random_pipelines.together(pipelines, 2 + seed % 2, **config)
    except (PlanError, UnsupportedError, tf.errors.InvalidArgumentError) as error:
        assert re.search("would have no data|" + REFUSED[key], str(error)), (seed, pipelines.told, error)
        return pipelines.told
    assert one == others, (seed, pipelines.told, random_pipelines.differences(one, others))
    return None


@pytest.mark.each_line
@pytest.mark.parametrize("key", KEYS)
def test_random_pipelines(names, key):
    refused = [compare(names, key, seed) for seed in range(8)]
    assert sum(each is not None for each in refused) <= (1 if KEYS[key][0] is RECORDS else 6)


@pytest.mark.exhaustive
@pytest.mark.each_line
@pytest.mark.parametrize("first", range(100, 400, 50))
@pytest.mark.parametrize("key", KEYS)
def test_many_random_pipelines(names, key, first):
    refused = [compare(names, key, seed) for seed in range(first, first + 50)]
    assert sum(each is not None for each in refused) <= (5 if KEYS[key][0] is RECORDS else 35)


@pytest.mark.each_line
def test_all_types_of_data_sets_are_in_the_table():
    """One that is in none is like `take`, which costs time but is right."""
    types = {name for name, op in tf_compat.op_defs().items() if "Dataset" in name and _gives_a_data_set(op)}
    assert len(types) >= 90 and types - datasets.TYPES == set()
    assert datasets.kind_of("DatasetOfSomeday") == datasets.POSITION


def _gives_a_data_set(op):
    return [argument.name for argument in op.output_arg] == ["handle"] and not op.name.startswith("Anonymous")


def data_plan(*made, **config):
    """The DataPlan of a graph that trains and reads some data sets."""
    with planning.capture() as graph:
        for make in made:
            tf.data.make_initializable_iterator(make()).get_next()
        planning.sgd(planning.variable("weight", []))
        _, plan = planning.plan_of(graph, workers=2, devices=1, **config)
    return plan.data


def numbers():
    return tf.data.Dataset.range(12)


def lines(names=("a", "b", "c", "d")):
    return tf.data.TextLineDataset(list(names))


def single(value):
    return tf.data.Dataset.from_tensors(value)


def sequences(data):
    return data.batch(3).map(lambda x: (x[:-1], x[1:]))


@pytest.mark.parametrize(
    "make, places",
    [
        (lambda: numbers().map(lambda x: x + 1).shuffle(4).filter(lambda x: x > 2).repeat().batch(4), [("Range", "")]),
        (lambda: numbers().take(8).map(lambda x: x + 1), [("Take", "Take")]),
        (lambda: numbers().skip(2).take(8).batch(2), [("Take", "Take")]),
        (lambda: numbers().take(-1).skip(0), [("Range", "")]),
        (lambda: numbers().cache().prefetch(1), [("Range", "")]),
        (lambda: numbers().cache("file").prefetch(1), [("Cache", "Cache")]),
        (lambda: tf.data.Dataset.zip((numbers(), numbers().map(lambda x: x + 1))), [("Range", ""), ("Range", "")]),
        (lambda: tf.data.Dataset.zip((numbers(), numbers().shuffle(9))), [("Range", ""), ("Shuffle", "Shuffle")]),
        (lambda: sequences(numbers()).shuffle(4).batch(2), [("Batch", "Batch")]),
        (lambda: sequences(numbers()), [("Batch", "Batch")]),
        (lambda: numbers().batch(4).map(lambda x: tf.cast(x, tf.float32) * 2), [("Range", "")]),
        (lambda: single([1, 2, 3]).flat_map(tf.data.Dataset.from_tensor_slices), [("FlatMap", "FlatMap")]),
        (lambda: lines().shuffle(4).map(tf.string_to_number), [("FlatMap", "")]),
        (lambda: numbers().concatenate(single(tf.constant(0, tf.int64))), [("Range", ""), ("Tensor", "")]),
    ],
)  # fmt: skip
def test_places_of_shares(make, places):
    found = [tuple(re.match("([A-Za-z]*?)(Dataset.*)?$", text).group(1) for text in (share.node, share.after))
             for share in data_plan(make, **RECORDS).records]  # fmt: skip
    assert sorted(found) == sorted(places)


@pytest.mark.each_line
def test_two_pipelines_that_begin_alike():
    """One for training and one for validation, say."""
    with planning.capture() as graph:
        data = numbers().map(lambda x: x + 1)
        reads = [
            tf.data.make_initializable_iterator(each) for each in (data.skip(3), data.take(3), data.batch(2), data)
        ]
        found = [iterator.get_next().name for iterator in reads]
        starts = [iterator.initializer.name for iterator in reads]
        planning.sgd(planning.variable("weight", []))
        program, plan = planning.plan_of(graph, workers=2, devices=1, **RECORDS)
    together = [random_pipelines.of_workers(program, plan, 2, *each) for each in zip(starts, found)]
    assert together == [list(range(4, 13)), [1, 2, 3], list(range(1, 13)), list(range(1, 13))]


def test_what_a_function_or_another_operation_takes_is_not_divided():
    with planning.capture() as graph:
        data = numbers()
        total = data.reduce(tf.constant(0, tf.int64), lambda x, y: x + y)
        crossed = tf.data.Dataset.range(2).flat_map(lambda x: data.map(lambda y: x + y))
        tf.data.make_initializable_iterator(crossed).get_next()
        tf.data.make_initializable_iterator(data.map(lambda x: x + total)).get_next()
        planning.sgd(planning.variable("weight", []))
        _, plan = planning.plan_of(graph, workers=2, devices=1, **RECORDS)
    takers = sorted(re.sub("_.*", "", taker) for share in plan.data.records for taker, _ in share.takers)
    assert takers == ["FlatMapDataset", "MapDataset"]


def test_shuffles_before_shares_get_a_seed_that_workers_share():
    def seeded(data):
        return len(data_plan(data, **RECORDS).alike.seeded)

    assert seeded(lambda: numbers().shuffle(12).take(4)) == 1
    assert seeded(lambda: numbers().shuffle(12, seed=3).take(4)) == seeded(lambda: numbers().shuffle(12)) == 0
    assert seeded(lambda: numbers().filter(lambda x: tf.random_uniform([]) < 0.5).take(4)) == 1


def test_a_shuffle_gets_its_seed_in_the_graph_of_each_worker():
    """A number that is drawn, the same by all workers, each time that the data set is made."""
    with planning.capture() as graph:
        x = tf.data.make_initializable_iterator(numbers().shuffle(12).take(4)).get_next()
        planning.sgd(planning.variable("weight", []) * tf.cast(x, tf.float32))
        programs = [planning.compiled(graph, 2, 1, index, job_seed=5, **RECORDS) for index in range(2)]
    drawn = [planning.of_op(program.graph, "RandomUniformInt") for program in programs]
    assert [len(each) for each in drawn] == [1, 1]
    assert drawn[0][0] == drawn[1][0] and drawn[0][0].attr["seed"].i
    (shuffle,) = planning.of_op(programs[0].graph, "ShuffleDataset")
    assert shuffle.input[2] == drawn[0][0].name


@pytest.mark.parametrize("what", ["sloppy", "options", "parallel"])
def test_elements_in_any_order_are_not_counted(what):
    def make():
        data = tf.data.Dataset.range(4)
        read = tf.data.Dataset.range
        if what == "sloppy":
            data = data.apply(tf.data.experimental.parallel_interleave(read, 2, sloppy=True))
        else:
            data = data.interleave(read, cycle_length=2, num_parallel_calls=2)
        data = data.take(3)
        if what == "options":
            options = tf.data.Options()
            options.experimental_deterministic = False
            data = data.with_options(options)
        return data

    if what == "parallel":
        assert len(data_plan(make, **RECORDS).records) == 1
        return
    with pytest.raises(UnsupportedError, match="come in an order that differs between workers"):
        data_plan(make, **RECORDS)


def test_workers_compare_what_they_divide():
    def facts(data):
        return data_plan(lambda: data(), **RECORDS).facts()

    shards = [facts(lambda index=index: numbers().shard(2, index)) for index in range(2)]
    assert "shard(2, 0) of the program gives (a program that divides its data by worker sets nei" in shards[0][0]
    assert shards[0] != shards[1]
    lists = [facts(lambda x=x: tf.data.Dataset.from_tensor_slices(x)) for x in ([1, 2, 3], [4, 5, 6], [1, 2, 3])]
    assert lists[0] == lists[2] != lists[1] and "all workers have to name all data" in lists[0][0]
    # Other machines may round otherwise.
    assert facts(lambda: tf.data.Dataset.from_tensor_slices([0.1, 0.2])) == facts(
        lambda: tf.data.Dataset.from_tensor_slices([0.1, 0.3])
    )


@pytest.mark.parametrize(
    "after, op",
    [
        (lambda data: data.take(4), "TakeDataset"),
        (lambda data: data.window(2).flat_map(lambda x: x), "WindowDataset"),
        (lambda data: sequences(data.map(tf.string_to_number)).batch(2), "BatchDataset"),
        (lambda data: tf.data.Dataset.zip((data, numbers())), "ZipDataset"),
        (lambda data: data.shard(2, 0), "ShardDataset"),
    ],
)
def test_positions_of_records_of_divided_files(after, op):
    def of_one_file(name):
        return after(tf.data.TextLineDataset(name))

    text = r"io.slicing: what '.*' \(%s.*\) makes of the records of '.*' depends on their positions" % op
    for make in (
        lambda: after(lines()),
        lambda: after(tf.data.Dataset.from_tensor_slices(["a", "b"]).interleave(tf.data.TextLineDataset, 2)),
        lambda: tf.data.Dataset.range(1).flat_map(lambda _: after(lines())),
    ):
        with pytest.raises(UnsupportedError, match=text):
            data_plan(make, **FILES)
    assert (
        len(data_plan(lambda: tf.data.Dataset.from_tensor_slices(["a", "b"]).flat_map(of_one_file), **FILES).lists) == 1
    )


def test_records_beside_those_of_files_are_divided_too():
    data = data_plan(
        lambda: lines().map(lambda line: tf.strings.to_number(line, tf.int64)).concatenate(numbers()), **FILES
    )
    assert len(data.lists) == 1 and [share.node for share in data.records] == ["RangeDataset"]


def test_file_names_beside_numbers():
    def make(count, chosen=lambda names: names):
        names = chosen(tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"]))
        pairs = tf.data.Dataset.zip((names, tf.data.Dataset.range(count)))
        return pairs.flat_map(lambda name, _: tf.data.TextLineDataset(name))

    data = data_plan(lambda: make(4), io__slicing=True)
    assert len(data.lists) == len(data.records) == 1
    with pytest.raises(PlanError, match="'ZipDataset' has 3 files, which do not divide evenly over 2 workers"):
        data_plan(lambda: make(3), io__slicing=True)
    assert len(data_plan(lambda: make(3, lambda names: names.skip(1)), **FILES).records) == 2
    with pytest.raises(PlanError, match="the file names of 'ZipDataset' come out of a data set"):
        data_plan(lambda: make(4, lambda names: names.filter(lambda name: tf.not_equal(name, "b"))), io__slicing=True)


def test_the_plan_tells_what_is_divided():
    told = data_plan(lambda: numbers().shuffle(3).take(4), lines, **RECORDS).told()
    assert told == [
        "records of 'FlatMapDataset': each of 2 readers takes every 2nd, at their source",
        "records of 'TakeDataset': each of 2 readers takes every 2nd, behind TakeDataset",
        "1 shuffles or random numbers before shares have a seed that all workers share",
    ]
    with planning.capture() as graph:
        tf.data.make_initializable_iterator(numbers()).get_next()
        _, plan = planning.plan_of(graph, workers=2, devices=1, **RECORDS)
        assert plan.data.told() == [
            "nothing: this graph neither trains nor evaluates, so every worker reads everything"
        ]
        assert plan.summary()["data"] == plan.data.told()
        tf.metrics.mean(tf.zeros([2]))
        _, plan = planning.plan_of(graph, workers=2, devices=1, **RECORDS)
        assert len(plan.data.records) == 1
