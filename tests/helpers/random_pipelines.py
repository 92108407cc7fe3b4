"""Random pipelines of tf.data, and what the workers read together that divide them."""

import collections
import os
import random
from dataclasses import replace

import numpy as np
import tensorflow.compat.v1 as tf

from epl.communicators import library
from epl.passes.model.share_data import share_data
from tests.helpers import planning

FILES, LINES = 5, (4, 3, 5, 2, 4)
_MANY = 400  # elements of a pipeline


def write_files(folder):
    """Text files with different numbers in their lines; returns their names."""
    names, number = [], 100
    for index in range(FILES):
        names.append(os.path.join(folder, "lines-%d" % index))
        with open(names[-1], "w") as file:
            for _ in range(LINES[index]):
                file.write("%d\n" % number)
                number += 1
    return names


def _pair(a, b):
    """One number for two, which tells them and their order."""
    return (a * 7919 + b * 31 + 5) % 1000003


def _of_vector(x):
    """One number for several in an order."""
    places = tf.range(1, tf.cast(tf.size(x), tf.int64) + 1, dtype=tf.int64)
    return tf.reduce_sum(x * places * places) % 1000003


class Pipelines(object):
    """Makes random pipelines of numbers.

    Args:
      seed: of the choices.
      names: of files, see write_files.
      with_files: begin with files.
      in_batches: end with batches of which each row counts by itself.
    """

    def __init__(self, seed, names, with_files=False, in_batches=False):
        self._random = random.Random(seed)
        self._names = names
        self._with_files = with_files
        self._in_batches = in_batches
        self.told = []  # what has been chosen
        self.resets = []  # functions that let what remembers forget

    def make(self):
        """A data set of int64 scalars or vectors."""
        data = self._source(self._with_files)
        for _ in range(self._random.randint(1, 5)):
            free = self._in_batches and self._random.random() < 0.8
            data = self._choose(_FREE if free else _STEPS)(self, data)
        return self._choose(_BATCHES if self._in_batches else _ENDS)(self, data)

    def _choose(self, among):
        chosen = self._random.choice(among)
        self.told.append(chosen.__name__.strip("_"))
        return chosen

    def _int(self, low, high):
        number = self._random.randint(low, high)
        self.told.append(str(number))
        return number

    def _source(self, with_files):
        return self._choose(_FILE_SOURCES if with_files else _SOURCES)(self)

    # Sources.

    def _range(self):
        return tf.data.Dataset.range(self._int(6, 24))

    def _slices(self):
        return tf.data.Dataset.from_tensor_slices(np.arange(self._int(6, 20), dtype=np.int64) * 3)

    def _single_rows(self):
        rows = tf.data.Dataset.from_tensors(np.arange(self._int(6, 20), dtype=np.int64))
        return rows.flat_map(tf.data.Dataset.from_tensor_slices)

    def _lines(self):
        return _numbers(tf.data.TextLineDataset(self._names))

    def _flat_files(self):
        return _numbers(self._file_names().flat_map(tf.data.TextLineDataset))

    def _interleaved_files(self):
        count = self._int(1, 3)
        return _numbers(self._file_names().interleave(tf.data.TextLineDataset, cycle_length=count, block_length=2))

    def _headers(self):
        count = self._int(1, 2)
        return _numbers(self._file_names().flat_map(lambda name: tf.data.TextLineDataset(name).skip(count)))

    def _numbered_files(self):
        """Lines, with the number of their file."""
        pairs = tf.data.Dataset.zip((self._file_names(), tf.data.Dataset.range(FILES)))

        def read(name, number):
            return _numbers(tf.data.TextLineDataset(name)).map(lambda line: _pair(number, line))

        return pairs.flat_map(read)

    def _file_names(self):
        names = tf.data.Dataset.from_tensor_slices(self._names)
        how = self._random.choice(["all", "all", "all", "take", "skip", "shuffle", "shard"])
        self.told.append(how)
        if how == "take":
            return names.take(self._int(2, 4))
        if how == "skip":
            return names.skip(self._int(1, 2))
        if how == "shuffle":
            return names.shuffle(FILES, seed=self._int(0, 3) or None)
        return names.shard(2, self._int(0, 1)) if how == "shard" else names

    # Steps.

    def _map(self, data):
        return data.map(lambda x: x * 3 + 1, num_parallel_calls=self._random.choice([None, 2]))

    def _filter(self, data):
        return data.filter(lambda x: tf.not_equal(x % 3, 0))

    def _filter_with_state(self, data):
        seen = []
        self.resets.append(seen.clear)

        def every_second(x):
            seen.append(x)
            return len(seen) % 2 == 1

        return data.filter(lambda x: tf.reshape(tf.py_func(every_second, [x], tf.bool), []))

    def _take(self, data):
        return data.take(self._int(2, 12))

    def _skip(self, data):
        return data.skip(self._int(0, 5))

    def _take_all(self, data):
        return data.take(-1)

    def _shard(self, data):
        return data.shard(2, self._int(0, 1))

    def _repeat(self, data):
        return data.repeat(2).take(_MANY)

    def _repeat_some(self, data):
        return data.repeat(self._int(2, 3))

    def _repeat_forever(self, data):
        return data.repeat().take(self._int(5, 30))

    def _shuffle(self, data):
        return data.shuffle(self._int(2, 30), seed=self._int(1, 9))

    def _shuffle_somehow(self, data):
        return data.shuffle(self._int(2, 30), reshuffle_each_iteration=self._random.choice([True, False]))

    def _windows(self, data):
        size = self._int(2, 3)
        windows = data.window(size, shift=self._int(1, 3), drop_remainder=self._random.choice([True, False]))
        return windows.flat_map(lambda each: each.batch(size)).map(_of_vector)

    def _sequences(self, data):
        return data.batch(self._int(2, 4), drop_remainder=self._random.choice([True, False])).map(_of_vector)

    def _unbatched(self, data):
        batches = data.batch(self._int(2, 4), drop_remainder=self._random.choice([True, False]))
        return batches.map(lambda x: x + 2).apply(tf.data.experimental.unbatch())

    def _counted_batches(self, data):
        return data.batch(self._int(1, 3)).take(self._int(1, 4)).apply(tf.data.experimental.unbatch())

    def _neighbours(self, data):
        return tf.data.Dataset.zip((data, data.skip(1))).map(_pair)

    def _same_twice(self, data):
        if "shuffle_somehow" in self.told:
            return data  # two iterations of a shuffle without a seed are in different orders on one device, too
        return tf.data.Dataset.zip((data.map(lambda x: x + 1), data.prefetch(1))).map(_pair)

    def _with_another(self, data):
        return tf.data.Dataset.zip((data, self._source(False))).map(_pair)

    def _with_constant(self, data):
        constant = tf.data.Dataset.from_tensors(np.int64(7))
        constant = constant.repeat() if self._random.random() < 0.5 else constant.repeat(self._int(3, 9))
        return tf.data.Dataset.zip((data, constant)).map(_pair)

    def _numbered(self, data):
        return data.apply(tf.data.experimental.enumerate_dataset()).map(_pair)

    def _and_another(self, data):
        return data.concatenate(self._source(False))

    def _and_itself(self, data):
        count = self._int(1, 5)
        return data.take(count).concatenate(data.skip(count + 1))

    def _spread(self, data):
        return data.flat_map(lambda x: tf.data.Dataset.range(2).map(lambda y: x * 2 + y))

    def _spread_in_turn(self, data):
        return data.interleave(lambda x: tf.data.Dataset.range(3).take(2).map(lambda y: x * 2 + y), cycle_length=2)

    def _rows_again(self, data):
        """What unbatch() does, by hand."""
        batches = data.batch(self._int(2, 4), drop_remainder=self._random.choice([True, False]))
        return batches.flat_map(tf.data.Dataset.from_tensor_slices)

    def _crossed(self, data):
        other = self._source(False)
        return other.take(2).flat_map(lambda x: data.map(lambda y: _pair(x, y))) if self._is_small() else data

    def _is_small(self):
        return len(self.told) < 6

    def _cache(self, data):
        return data.cache()

    def _prefetch(self, data):
        return data.prefetch(2)

    def _sums(self, data):
        def add(state, x):
            return state + x, state * 3 + x

        return data.apply(tf.data.experimental.scan(np.int64(0), add)).map(lambda x: x % 1000003)

    def _while_small(self, data):
        return data.apply(tf.data.experimental.take_while(lambda x: tf.not_equal(x % 11, 10)))

    def _unique(self, data):
        return data.map(lambda x: x % 7).apply(tf.data.experimental.unique())

    def _groups(self, data):
        size = self._int(2, 3)
        grouped = tf.data.experimental.group_by_window(lambda x: x % 2, lambda key, each: each.batch(size), size)
        return data.apply(grouped).map(_of_vector)

    def _sampled(self, data):
        return tf.data.experimental.sample_from_datasets([data, self._source(False)], seed=self._int(1, 9))

    def _chosen(self, data):
        order = tf.data.Dataset.from_tensor_slices(np.array([0, 1, 1, 0, 0, 1, 0, 1], np.int64))
        return tf.data.experimental.choose_from_datasets([data, self._source(False)], order)

    # Ends.

    def _as_it_is(self, data):
        return data

    def _batch(self, data):
        return data.batch(self._int(1, 4)).prefetch(1)

    def _mapped_batch(self, data):
        return data.apply(tf.data.experimental.map_and_batch(lambda x: x + 1, self._int(1, 4)))

    def _batch_by_row(self, data):
        return data.batch(self._int(1, 4)).map(lambda x: tf.cast(x, tf.int64) * 2 + 1)

    def _padded_batch(self, data):
        return data.padded_batch(self._int(1, 4), [])

    def _batch_by_all(self, data):
        return data.batch(self._int(2, 4)).map(lambda x: x - tf.reduce_min(x))


_SOURCES = [Pipelines._range, Pipelines._range, Pipelines._slices, Pipelines._single_rows]
_FILE_SOURCES = [
    Pipelines._lines,
    Pipelines._flat_files,
    Pipelines._interleaved_files,
    Pipelines._headers,
    Pipelines._numbered_files,
]
_BATCHES = [Pipelines._batch, Pipelines._mapped_batch, Pipelines._batch_by_row, Pipelines._padded_batch]
_ENDS = _BATCHES + [Pipelines._as_it_is, Pipelines._batch_by_all]
# They may come behind shares.
_FREE = [
    Pipelines._map,
    Pipelines._filter,
    Pipelines._take_all,
    Pipelines._repeat_some,
    Pipelines._shuffle,
    Pipelines._shuffle_somehow,
    Pipelines._unbatched,
    Pipelines._same_twice,
    Pipelines._and_another,
    Pipelines._spread,
    Pipelines._spread_in_turn,
    Pipelines._rows_again,
    Pipelines._cache,
    Pipelines._prefetch,
]
_STEPS = [
    function
    for name, function in sorted(vars(Pipelines).items())
    if name
    in (
        "_map _filter _filter_with_state _take _skip _take_all _shard _repeat_some _repeat_forever _shuffle "
        "_shuffle_somehow _windows _sequences _unbatched _counted_batches _neighbours _same_twice _with_another "
        "_with_constant _numbered _and_another _and_itself _spread _spread_in_turn _rows_again _crossed "
        "_cache _prefetch _sums _while_small _unique _groups _sampled _chosen"
    ).split()
]


def _numbers(lines):
    return lines.map(lambda line: tf.strings.to_number(line, tf.int64))


def together(pipelines, workers, **config):
    """(what one device reads of a random pipeline, what some workers read of it together), sorted numbers.

    Raises: what the plan raises.
    """
    with planning.capture() as graph:
        data = pipelines.make()
        iterator = tf.data.make_initializable_iterator(data)
        read = iterator.get_next().name
        planning.sgd(planning.variable("weight", []))
        start = iterator.initializer.name
        program, plan = planning.plan_of(graph, workers=workers, devices=1, **config)
        # Where there are shuffles without seeds, one device reads what the seed gives that they get.
        one = _shared(program, plan, 1, 0) if plan.data.alike.seeded else program.graph
        for reset in pipelines.resets:
            reset()
        return sorted(_read(one, start, read)), of_workers(program, plan, workers, start, read, pipelines.resets)


def of_workers(program, plan, workers, start, read, resets=()):
    """What some workers read together, sorted numbers.

    Args:
      program, plan: of any of them.
      workers: their number.
      start, read: names of an operation that starts an iterator, and of the tensor that gives its elements.
      resets: functions to be called before each of them reads.
    """
    numbers = []
    for worker in range(workers):
        for reset in resets:
            reset()
        numbers.extend(_read(_shared(program, plan, workers, worker), start, read))
    return sorted(numbers)


def _shared(program, plan, number, index):
    data = replace(plan.data, readers=(number, index))
    return share_data(program, replace(plan, job_seed=3, data=data)).graph


def _read(graph, start, read):
    """All numbers that an iterator gives."""
    numbers = []
    library.load()
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.to_graph_def(tf.GraphDef), name="")
        with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=2)) as session:
            session.run(start)
            get_next = session.make_callable(imported.get_tensor_by_name(read))
            while True:
                try:
                    numbers.extend(np.ravel(get_next()).tolist())
                except tf.errors.OutOfRangeError:
                    return numbers
                assert len(numbers) < 100 * _MANY


def differences(one, others):
    """What one device reads more often than the workers do together, and what less often."""
    one, others = collections.Counter(one), collections.Counter(others)
    return sorted((one - others).elements()), sorted((others - one).elements())
