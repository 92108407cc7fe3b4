"""Programs about the ways in which a script can run its graph."""

import collections
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 5
Pair = collections.namedtuple("Pair", "first second")


def _model(epl, feeds):
    """(loss, train op, global step) of the small classifier."""
    loss = common.classifier(feeds.x, feeds.labels)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    return common.mean_everywhere(epl, loss), train_op, step


def _monitored(**kwargs):
    return tf.train.MonitoredTrainingSession(config=common.threads(), **kwargs)


def extra_layer(epl, worker):
    """Worker `worker` has a layer more than the others."""
    common.init(epl, {"communication.timeout_s": 6.0})
    feeds = common.Feeds(epl)
    loss, train_op, _ = _model(epl, feeds)
    if common.workers(epl)[0] == worker:
        tf.get_variable("extra/kernel", [3, 4])
    with _monitored() as session:
        session.run([loss, train_op], feeds.of(0))


class Recorder(tf.train.SessionRunHook):
    """A hook that fetches something of its own in a nest, and records the order in which it is called."""

    def __init__(self, fetches):
        self._fetches = fetches
        self.calls = []
        self.values = []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("create")

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"nest": [self._fetches]})

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results["nest"][0])

    def end(self, session):
        self.calls.append("end")


def hooks(epl, folder):
    """MonitoredTrainingSession with stop, logging, checkpoint and summary hooks, and one of the script's own."""
    common.init(epl)
    index, _ = common.workers(epl)
    folder = os.path.join(folder, "worker_%d" % index)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    summary = tf.summary.merge(
        [tf.summary.scalar("loss", loss), tf.summary.histogram("bias", tf.trainable_variables()[-1])]
    )
    recorder, lines = Recorder({"loss": loss}), []
    logging = tf.train.LoggingTensorHook(
        {"loss": loss}, every_n_iter=1, formatter=lambda values: lines.append(values["loss"])
    )
    saving = tf.train.SummarySaverHook(save_steps=1, output_dir=folder, summary_op=summary)
    losses = []
    with _monitored(
        hooks=[tf.train.StopAtStepHook(num_steps=STEPS), recorder, logging, saving],
        checkpoint_dir=folder,
        save_checkpoint_steps=2,
        save_summaries_steps=2,
        log_step_count_steps=2,
    ) as sess:
        while not sess.should_stop():
            losses.append(sess.run([loss, train_op], feeds.of(len(losses)))[0])
    return {
        "losses": losses,
        "calls": recorder.calls,
        "recorded": [value["loss"] for value in recorder.values],
        "logged": lines,
        "files": sorted(os.listdir(folder)) if os.path.isdir(folder) else [],
    }


def read_checkpoint(epl, folder):
    """The tensors of the newest checkpoint by name, and the steps of the kept ones."""
    path = tf.train.latest_checkpoint(folder)
    reader = tf.train.load_checkpoint(path)
    kept = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}, [
        os.path.basename(one) for one in kept
    ]


def read_summaries(epl, folder):
    """(step, value of loss) of all scalar summaries, and whether the events hold a graph."""
    points, graph = [], False
    for name in sorted(os.listdir(folder)):
        if "tfevents" in name:
            for event in tf.train.summary_iterator(os.path.join(folder, name)):
                graph = graph or bool(event.graph_def)
                points.extend((event.step, value.simple_value) for value in event.summary.value if value.tag == "loss")
    return sorted(points), graph


def interactive(epl):
    """InteractiveSession, Tensor.eval and Operation.run."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    sess = tf.InteractiveSession(config=common.threads())
    try:
        tf.global_variables_initializer().run()
        losses = []
        for number in range(STEPS):
            losses.append(loss.eval(feeds.of(number)))
            train_op.run(feeds.of(number))
        return losses, step.eval(), common.state(sess)
    finally:
        sess.close()


def callables(epl):
    """make_callable with fed tensors, a nest and an operation."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    losses = []
    with common.session() as sess:
        sess.make_callable(tf.global_variables_initializer())()
        run = sess.make_callable({"loss": loss, "pair": (step, [train_op])}, feed_list=[feeds.x, feeds.labels])
        for number in range(STEPS):
            feed = feeds.of(number)
            losses.append(run(feed[feeds.x], feed[feeds.labels])["loss"])
        return losses, common.state(sess)


def nests(epl):
    """Fetches of many kinds, twice: with a train op and without."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    constant = tf.constant([1.0, 2.0], name="constant")
    sparse = tf.SparseTensor([[0, 1]], tf.constant([3.0]), [1, 2])
    slices = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([2]), tf.constant([5, 1]))
    fetches = {
        "list": [constant, [constant, {"deep": (constant,)}]],
        "pair": Pair(constant, [loss]),
        "ordered": collections.OrderedDict([("b", constant), ("a", loss)]),
        "names": [constant.name, "constant"],
        "variable": tf.trainable_variables()[0],
        "op": constant.op,
        "sparse": sparse,
        "slices": slices,
        "empty": [],
        "twice": (loss, loss),
        "text": tf.constant("text"),
    }
    with common.session() as sess:
        common.initialize(sess)
        values = sess.run(fetches, feeds.of(0))
        trained = sess.run([fetches["pair"], train_op, step], feeds.of(0))
        single = sess.run(loss, feeds.of(0))
    return values, (type(trained).__name__, trained[0], trained[1]), single


def queues(epl, epochs=1):
    """An input queue with queue runners and a coordinator; all rows that the replicas consumed."""
    common.init(epl)
    index, count = common.workers(epl)
    mine = np.arange(40, dtype=np.float32)[index::count]
    row = tf.train.input_producer(tf.constant(mine), shuffle=False, num_epochs=epochs, capacity=4).dequeue()
    rows = tf.train.batch([row], batch_size=common.BATCH // common.replicas(epl), capacity=16)
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(rows * weight - 1.0)) * 1e-4
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    everywhere = common.rows_everywhere(epl, rows)
    seen = []
    with common.session() as sess:
        common.initialize(sess)
        coordinator = tf.train.Coordinator()
        runners = tf.train.start_queue_runners(sess, coordinator)
        try:
            while not coordinator.should_stop():
                seen.append(sess.run([everywhere, train_op])[0])
        except tf.errors.OutOfRangeError:
            coordinator.request_stop()
        coordinator.join(runners, stop_grace_period_secs=10)
        return seen, sess.run(weight)


def generator(epl, rows=40):
    """Dataset.from_generator until its end, in a MonitoredTrainingSession; all rows that the replicas consumed."""
    common.init(epl)
    index, count = common.workers(epl)

    def numbers():
        for number in range(index, rows, count):
            yield np.float32(number), str(number)

    dataset = tf.data.Dataset.from_generator(numbers, (tf.float32, tf.string), ([], []))
    dataset = dataset.batch(common.BATCH // common.replicas(epl), drop_remainder=True)
    numbers, texts = tf.data.make_one_shot_iterator(dataset).get_next()
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(numbers * weight - 1.0)) * 1e-4
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    everywhere = common.rows_everywhere(epl, tf.strings.to_number(texts))
    seen = []
    with _monitored() as sess:
        while not sess.should_stop():
            seen.append(sess.run([everywhere, train_op])[0])
    return seen


def metadata(epl):
    """A traced run."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, _ = _model(epl, feeds)
    with common.session() as sess:
        common.initialize(sess)
        record = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        sess.run([loss, train_op], feeds.of(0), options=options, run_metadata=record)
    return {
        "devices": [each.device for each in record.step_stats.dev_stats if each.node_stats],
        "graphs": len(record.partition_graphs),
    }


def user_graph(epl):
    """The user's graph before and after runs, growth between runs, and two sessions over one graph."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    graph = tf.get_default_graph()
    start = tf.global_variables_initializer()
    before = graph.as_graph_def().SerializeToString(deterministic=True)
    with common.session() as sess:
        same = sess.graph is graph
        sess.run(start)
        sess.run(train_op, feeds.of(0))
        sess.run(train_op, feeds.of(1))
        after = graph.as_graph_def().SerializeToString(deterministic=True)
        later = step + tf.constant(10, tf.int64)
        grown = sess.run([later, loss], feeds.of(2))
        with common.session() as other:
            other.run(start)
            second = other.run([step, later])
        first = sess.run([step, later])
    return {"same": same, "unchanged": before == after, "grown": grown[0], "second": second, "first": first}


def failing_run(epl):
    """A run that fails in a kernel, and one with a wrong fetch; the session can be used afterwards."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train_op, step = _model(epl, feeds)
    errors = []
    with common.session() as sess:
        common.initialize(sess)
        wrong = dict(feeds.of(0))
        wrong[feeds.labels] = wrong[feeds.labels] + 100
        for fetch, feed in (
            (train_op, wrong),
            (object(), None),
            ("nothing:0", None),
            (loss, {feeds.x: np.zeros([2, 3])}),
        ):
            try:
                sess.run(fetch, feed)
            except (tf.errors.OpError, TypeError, ValueError) as error:
                errors.append(type(error).__name__)
        sess.run(train_op, feeds.of(0))
        return errors, int(sess.run(step))


def uneven_failures(epl):
    """Worker 0 tries a broken step again that the other has given up. Returns the classes of the errors."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    errors = []
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, feeds.of(0))
        worker = common.workers(epl)[0]
        epl.Env.get().config.communication.start_timeout_s = 2
        wrong = dict(feeds.of(1))
        wrong[feeds.labels] = wrong[feeds.labels][:1]
        for attempt in range(3 if worker == 0 else 1):
            try:
                sess.run(train_op, wrong if worker == 0 and attempt == 0 else feeds.of(1))
            except (tf.errors.OpError, epl.errors.EplError, ValueError) as error:
                errors.append(type(error).__name__)
    return errors


def uneven(epl, sizes, micro_batches=1, stages=1, optimizer="momentum", **config):
    """Trains with batches of different sizes; a metric is updated, and rows are fetched, in the same runs.

    Over several stages every worker is fed all rows. `config`: further keys, with `__` for the dot.

    Returns:
      dict of losses, states, what the metric came to, the fetched rows, and predictions for three rows.
    """
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, dict(config, **{"pipeline.num_micro_batch": micro_batches}))
    feeds = common.Feeds(epl)
    with common.scope_of(epl)() if stages > 1 else common.no_scope():
        hidden = tf.layers.dense(feeds.x, 8, tf.nn.tanh, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
    with common.scope_of(epl)() if stages > 1 else common.no_scope():
        logits = tf.layers.dense(hidden, common.CLASSES, kernel_initializer=tf.glorot_uniform_initializer(seed=2))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds.labels, logits=logits))
    accuracy, update = tf.metrics.accuracy(feeds.labels, tf.argmax(logits, -1))
    makers = {"momentum": tf.train.MomentumOptimizer(0.1, 0.9), "adam": tf.train.AdamOptimizer(0.01)}
    train_op = makers[optimizer].minimize(loss, global_step=tf.train.get_or_create_global_step())
    rows = common.rows_everywhere(epl, tf.gather(feeds.x, 0, axis=1))
    loss = common.mean_everywhere(epl, loss)
    losses, states, metrics, seen = [], [], [], []
    epl = None if stages > 1 else epl
    with common.session() as sess:
        common.initialize(sess)
        for number, size in enumerate(sizes):
            x, labels = (common.share(epl, column) for column in common.batch(number, size))
            fed = {feeds.x: x, feeds.labels: labels}
            value, fetched, _, _ = sess.run([loss, rows, train_op, update], fed)
            losses.append(value)
            seen.append(fetched)
            metrics.append(sess.run(accuracy))
            states.append(common.state(sess))
        predicted = sess.run(logits, {feeds.x: common.batch(20, 3)[0]})
    return {"losses": losses, "states": states, "metrics": metrics, "rows": seen, "predicted": predicted}


def said_of_uneven(epl, sizes):
    """What EPL says of batches of different sizes that are trained with two sets of fetches."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.messages() as said, common.session() as sess:
        common.initialize(sess)
        for number, size in enumerate(sizes):
            fed = dict(zip((feeds.x, feeds.labels), common.batch(number, size)))
            sess.run([loss, train_op] if number % 2 else train_op, fed)
    return [each for each in said if "divide evenly" in each]


def late_summaries(epl):
    """Gradients clipped by their global norm, which needs a constant that is no number; the graph grows twice."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    train_op = optimizer.apply_gradients(list(zip(tf.clip_by_global_norm(gradients, 100.0)[0], variables)))
    tf.summary.scalar("loss", loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, feeds.of(0))
        summary = tf.summary.merge_all()
        text, _ = sess.run([summary, train_op], feeds.of(1))
        saver = tf.train.Saver()
        sess.run(train_op, feeds.of(2))
        return common.state(sess), len(text) > 0, saver.saver_def.filename_tensor_name


def not_taken(epl):
    """What fetches of branches come to: a value, or the first words of the error."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    taken = tf.reduce_sum(feeds.x) < 1e9
    other, this = tf.raw_ops.Switch(data=tf.constant(2.0), pred=taken)
    text, _ = tf.raw_ops.Switch(data=tf.constant(["a"]), pred=taken)
    empty = tf.boolean_mask(tf.cast(feeds.labels, tf.float32), feeds.labels < 0)
    found, x = [], common.batch(0, 4)
    with common.session() as sess:
        common.initialize(sess)
        for fetches in (this, other, text, [train, other], empty):
            try:
                found.append(np.shape(sess.run(fetches, {feeds.x: x[0], feeds.labels: x[1]})))
            except tf.errors.InvalidArgumentError:
                found.append("no value")
    return found
