"""Programs that read files and data sets; each returns what every worker has read."""

import os

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def write(epl, folder, files=4, rows=3):
    """Text files, TFRecord files and fixed-length records with the numbers 0 .. files * rows - 1."""
    for index in range(files):
        numbers = ["%04d" % (index * rows + row) for row in range(rows)]
        stem = os.path.join(folder, "part-%02d" % index)
        with open(stem + ".txt", "w") as file:
            file.write("".join(number + "\n" for number in numbers))
        with open(stem + ".bin", "w") as file:
            file.write("".join(numbers))
        with open(stem + ".one", "w") as file:
            file.write(numbers[0])
        with tf.python_io.TFRecordWriter(stem + ".tfrecord") as writer:
            for number in numbers:
                writer.write(number.encode())


def paths(folder, kind, files=4):
    return [os.path.join(folder, "part-%02d.%s" % (index, kind)) for index in range(files)]


def number_of(text):
    return tf.strings.to_number(text, tf.int64)


def tfrecord(folder, files):
    return tf.data.TFRecordDataset(paths(folder, "tfrecord", files)).map(number_of)


def tfrecord_parallel(folder, files):
    names = tf.constant(paths(folder, "tfrecord", files))
    return tf.data.TFRecordDataset(names, num_parallel_reads=2).map(number_of)


def text_lines(folder, files):
    return tf.data.TextLineDataset(paths(folder, "txt", files)).map(number_of).shuffle(5)


def fixed_length(folder, files):
    return tf.data.FixedLengthRecordDataset(paths(folder, "bin", files), 4).map(number_of)


def csv(folder, files):
    return tf.data.experimental.CsvDataset(paths(folder, "txt", files), [tf.int64]).map(lambda number: number)


def listed(folder, files):
    names = tf.data.Dataset.list_files(os.path.join(folder, "*.txt"))
    return names.interleave(tf.data.TextLineDataset, cycle_length=2, block_length=1).map(number_of)


def interleaved(folder, files):
    names = tf.data.Dataset.from_tensor_slices(paths(folder, "tfrecord", files)).shuffle(10)
    return names.apply(tf.data.experimental.parallel_interleave(tf.data.TFRecordDataset, 2)).map(number_of)


def with_labels(folder, files):
    """Names and labels side by side, each file read whole."""
    names = paths(folder, "one", files)
    labels = tf.constant([3 * index for index in range(files)], tf.int64)
    pairs = tf.data.Dataset.from_tensor_slices((names, labels)).shuffle(10)
    return pairs.map(lambda name, label: (number_of(tf.read_file(name)), label)).map(
        lambda number, label: tf.where(tf.equal(number, label), number, -number)
    )


def captured(folder, files):
    """A list that the function of a data set takes from outside."""
    names = tf.constant(paths(folder, "txt", files))
    return tf.data.Dataset.range(1).flat_map(lambda _: tf.data.TextLineDataset(names)).map(number_of)


def inside(folder, files):
    """A list inside of the function of a data set."""
    return (
        tf.data.Dataset.range(1).flat_map(lambda _: tf.data.TextLineDataset(paths(folder, "txt", files))).map(number_of)
    )


def zipped(folder, files):
    return tf.data.Dataset.zip((tfrecord(folder, files), tfrecord_parallel(folder, files))).map(lambda one, other: one)


def names_in_a_file(folder, files):
    """File names that stand in a file."""
    path = os.path.join(folder, "names")
    with open(path, "w") as file:
        file.write("".join(name + "\n" for name in paths(folder, "txt", files)))
    return tf.data.TextLineDataset(path).flat_map(tf.data.TextLineDataset).map(number_of)


def taken(folder, files):
    return tf.data.Dataset.range(12).take(8)


def skipped(folder, files):
    return tf.data.Dataset.range(12).skip(8)


def header(folder, files):
    """Lines of one file, of which the first is no record."""
    path = os.path.join(folder, "with-header")
    with open(path + str(os.getpid()), "w") as file:
        file.write("number\n" + "".join("%d\n" % number for number in range(4)))
    os.replace(path + str(os.getpid()), path)
    return tf.data.TextLineDataset(path).skip(1).map(number_of)


def headers(folder, files):
    """The lines after the first of each file."""
    names = tf.data.Dataset.from_tensor_slices(paths(folder, "txt", files))
    return names.flat_map(lambda name: tf.data.TextLineDataset(name).skip(1)).map(number_of)


def windows(folder, files):
    sliding = tf.data.Dataset.range(8).window(3, shift=1, drop_remainder=True)
    return sliding.flat_map(lambda each: each.batch(3)).map(lambda x: x[0] * 10000 + x[1] * 100 + x[2])


def neighbours(folder, files):
    data = tf.data.Dataset.range(8)
    return tf.data.Dataset.zip((data, data.skip(1))).map(lambda one, other: one * 100 + other)


def repeated(folder, files):
    return tf.data.Dataset.range(4).repeat().take(6)


def by_hand(folder, files):
    """Every second number, as the program says; not by worker."""
    return tf.data.Dataset.range(12).shard(2, 1)


def shuffled_and_taken(folder, files):
    return tf.data.Dataset.range(100).shuffle(100).take(10)


def taken_files(folder, files):
    names = tf.data.Dataset.from_tensor_slices(paths(folder, "txt", files)).skip(1).take(2)
    return names.flat_map(tf.data.TextLineDataset).map(number_of)


def numbered_files(folder, files):
    """Lines with the number of their file, which is their number divided by 3."""
    names = tf.data.Dataset.from_tensor_slices(paths(folder, "txt", files))
    lines = tf.data.Dataset.zip((names, tf.data.Dataset.range(files))).flat_map(
        lambda name, number: tf.data.TextLineDataset(name).map(lambda line: (number_of(line), number))
    )
    return lines.map(lambda line, number: tf.where(tf.equal(line // 3, number), line, -line))


def taken_lines(folder, files):
    return tf.data.TextLineDataset(paths(folder, "txt", files)).take(7).map(number_of)


def numbers(folder, files):
    return tf.data.Dataset.range(files).shuffle(files)


def slices(folder, files):
    rows = tf.data.Dataset.from_tensor_slices(tf.range(files, dtype=tf.int64))
    constant = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
    return tf.data.Dataset.zip((rows, constant)).map(lambda row, zero: row + zero)


def generated(folder, files):
    return (
        tf.data.Dataset.from_generator(lambda: iter(range(files)), tf.int64, [])
        .batch(2)
        .apply(tf.data.experimental.unbatch())
    )


def one_element(folder, files):
    return tf.data.Dataset.from_tensors(tf.constant(1, tf.int64)).repeat(files)


def few_rows(folder, files):
    return tf.data.Dataset.from_tensor_slices(tf.constant([1], tf.int64))


def read_many(epl, folder, cases, config=None, files=4):
    """A list of what this worker reads of each (data set, iterator)."""
    common.init(epl, config)
    results = []
    for make, iterator in cases:
        with tf.Graph().as_default():
            results.append(_read(folder, make, files, iterator))
    return results


def epochs(epl, make, config=None, count=3):
    """What this worker reads of a data set each time that its iterator is initialised."""
    common.init(epl, config)
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(globals()[make](None, None))
        number = iterator.get_next()
        _train()
        with common.session() as sess:
            return [_rest(sess, number, sess.run(iterator.initializer)) for _ in range(count)]


def beside_training(epl, config=None):
    """Rows that a session of a graph without training gives, and that one with a metric counts, in all epochs."""
    common.init(epl, config)
    with tf.Graph().as_default():
        rows = tf.placeholder(tf.int64, [None])
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(1))
        row = iterator.get_next()[0] * 2
        with common.session() as sess:
            decoded = [_rest(sess, row, sess.run(iterator.initializer, {rows: fed})) for fed in ([3], [1, 2, 3])]
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(8))
        value, update = tf.metrics.mean(iterator.get_next())
        with common.session() as sess:
            sess.run([iterator.initializer, tf.local_variables_initializer()])
            while True:
                try:
                    sess.run(update)
                except tf.errors.OutOfRangeError:
                    break
            return decoded, float(sess.run(value))


def refusals(epl, folder, cases):
    """A list of what each (data set, configuration, number of files) is answered with: class and message."""
    answers = []
    for make, config, files in cases:
        common.init(epl, config)
        with tf.Graph().as_default():
            try:
                trains = (config or {}).get("io.equal_steps") == "repeat"  # which is for what training reads
                answers.append(("read", _read(folder, make, files, "initializable", trains)))
            except (tf.errors.InvalidArgumentError, ValueError, NotImplementedError) as error:
                answers.append((type(error).__name__, str(error)))
    return answers


def _read(folder, make, files, iterator, trains_on_it=False):
    data = globals()[make](folder, files)
    if iterator == "one_shot":
        number = tf.data.make_one_shot_iterator(data).get_next()
        start = tf.no_op()
    elif iterator == "handle":
        handle = tf.placeholder(tf.string, [])
        concrete = tf.data.make_initializable_iterator(data)
        number = tf.data.Iterator.from_string_handle(handle, tf.int64, []).get_next()
        start = concrete.initializer
    else:
        concrete = tf.data.make_initializable_iterator(data)
        number, start = concrete.get_next(), concrete.initializer
    _train(number if trains_on_it else 1)
    with common.session() as sess:
        sess.run(start)
        return _rest(sess, number, {handle: sess.run(concrete.string_handle())} if iterator == "handle" else None)


def _rest(sess, number, feed=None):
    """All numbers that come until data ends."""
    read = []
    while True:
        try:
            read.append(int(sess.run(number, feed)))
        except tf.errors.OutOfRangeError:
            return read


def _train(number=1):
    """Lets a graph be one that trains: of what others read, every worker has all."""
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(weight) * tf.cast(number, tf.float32))


def queues(epl, folder, kinds, config=None):
    """A list of what this worker reads through each kind of queue of file names."""
    common.init(epl, config)
    results = []
    for kind in kinds:
        with tf.Graph().as_default():
            results.append(_read_queue(folder, kind))
    return results


def _read_queue(folder, kind, files=4, shuffle=True):
    if kind == "reader":
        names = tf.train.string_input_producer(paths(folder, "tfrecord", files), num_epochs=1, shuffle=shuffle)
        text = tf.TFRecordReader().read(names)[1]
    elif kind == "whole files":
        names = tf.train.string_input_producer(paths(folder, "one", files), num_epochs=1, shuffle=shuffle)
        text = tf.read_file(names.dequeue())
    else:
        name, _ = tf.train.slice_input_producer([paths(folder, "one", files), list(range(files))], num_epochs=1)
        text = tf.read_file(name)
    number = number_of(text)
    read = []
    _train()
    with common.session() as sess:
        common.initialize(sess)
        coordinator = tf.train.Coordinator()
        runners = tf.train.start_queue_runners(sess, coordinator)
        try:
            while True:
                read.append(int(sess.run(number)))
        except tf.errors.OutOfRangeError:
            coordinator.request_stop()
        coordinator.join(runners, stop_grace_period_secs=10)
    return read


def train(epl, folder, config=None, steps=3):
    """Trains on files divided over workers; losses, and the weights."""
    common.init(epl, config)
    rows = common.BATCH // common.replicas(epl)
    data = tf.data.TextLineDataset(paths(folder, "txt"))
    if not epl:  # one device reads the workers' files in turn, as their shares come together in a step
        data = tf.data.Dataset.zip(
            tuple(tf.data.TextLineDataset(paths(folder, "txt")[index::2]) for index in range(2))
        ).flat_map(lambda one, other: tf.data.Dataset.from_tensor_slices(tf.stack([one, other])))
    x = tf.data.make_one_shot_iterator(data.repeat().map(number_of).batch(rows, drop_remainder=True)).get_next()
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.cast(x, tf.float32) * weight - 1.0)) * 1e-3
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    loss = common.mean_everywhere(epl, loss)
    with common.session() as sess:
        common.initialize(sess)
        losses = [sess.run([loss, train_op])[0] for _ in range(steps)]
        return {"losses": losses, "weight": sess.run(weight)}


def some_worker_without(epl):
    """A job of which worker 1 has no data."""
    common.init(epl)
    index, _ = common.workers(epl)
    data = tf.data.Dataset.range(4 if index == 0 else 0).batch(2)
    x = tf.data.make_one_shot_iterator(data).get_next()
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.cast(x, tf.float32) * weight))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.train.MonitoredTrainingSession(config=common.threads()) as sess:
        while not sess.should_stop():
            sess.run(train_op)


def unequal(epl, config, count, batch, kind="initializable", epochs=1, devices=1, split=False):
    """Trains on the rows 1 .. count, divided over the workers by io.shard_dataset, until data ends.

    Args:
      devices: that compute one copy of the model.
      split: whether they divide its tensors, instead of its batches' rows.
      kind: of iterator: "initializable", "one_shot", or "generated" for a generator's rows.

    Returns:
      The rows that the first copy of this worker took in each step of each epoch, and the weight in the end.
    """
    common.init(epl, dict(config, **{"io.shard_dataset": True}))
    if epl and devices > 1:
        epl.set_default_strategy((epl.split if split else epl.replicate)(devices))
    data = tf.data.Dataset.range(1, count + 1)
    if kind == "generated":
        data = tf.data.Dataset.from_generator(lambda: iter(range(1, count + 1)), tf.int64, [])
    data = data.map(lambda row: (row, tf.cast(row, tf.float32))).batch(batch)
    one_shot = kind == "one_shot"
    iterator = (tf.data.make_one_shot_iterator if one_shot else tf.data.make_initializable_iterator)(data)
    rows, x = iterator.get_next()
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_mean(x * weight))
    found = []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(epochs):
            if not one_shot:
                sess.run(iterator.initializer)
            found.append([])
            try:
                while True:
                    found[-1].append(sess.run([rows, train_op])[0].tolist())
            except tf.errors.OutOfRangeError:
                continue
        return found, float(sess.run(weight))


class _AtEnd(tf.train.SessionRunHook):
    """Reads the global step and the weight when the session ends."""

    def begin(self):
        self._read = [tf.train.get_global_step(), tf.global_variables("weight")[0]]

    def end(self, session):
        self.values = session.run(self._read)


def unequal_estimator(epl, config, count, batch):
    """The same by an Estimator; its global step and weight."""
    common.init(epl, dict(config, **{"io.shard_dataset": True}))

    def model(features, labels, mode):
        del labels
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_mean(features * weight)
        train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def data():
        return tf.data.Dataset.range(1, count + 1).map(lambda row: tf.cast(row, tf.float32)).batch(batch)

    hook = _AtEnd()
    tf.estimator.Estimator(model).train(data, hooks=[hook])
    return int(hook.values[0]), float(hook.values[1])
