"""Programs about what is shown and written of a training run: metrics, summaries, merged fetches."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 4


def metrics(epl, micro_batches=1):
    """Streaming metrics of many kinds over a training run: their values after each step, and their totals."""
    common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    # A batch whose size is known while the graph is built, as that of drop_remainder=True is.
    fixed = tf.reshape(feeds.x[:, 0], [common.BATCH // (common.replicas(epl) * micro_batches)])
    scores = tf.sigmoid(feeds.x[:, 0] * 3.0)
    truth = tf.equal(feeds.labels, 1)
    guess = tf.cast(tf.argmax(feeds.x[:, :3], 1), tf.int64)
    weights = tf.abs(feeds.x[:, 1])
    made = {
        "accuracy": tf.metrics.accuracy(feeds.labels, guess),
        "weighted": tf.metrics.accuracy(feeds.labels, guess, weights=weights),
        "mean": tf.metrics.mean(feeds.x[:, 2]),
        "fixed": tf.metrics.mean(fixed),
        "mean_tensor": tf.metrics.mean_tensor(tf.reduce_mean(feeds.x, 0)),
        "auc": tf.metrics.auc(truth, scores, num_thresholds=20),
        "precision": tf.metrics.precision(truth, scores > 0.5),
        "recall": tf.metrics.recall(truth, scores > 0.5),
        "recall_at_k": tf.metrics.recall_at_k(feeds.labels, feeds.x[:, :3], 2),
        "average_precision": tf.metrics.average_precision_at_k(feeds.labels, feeds.x[:, :3], 2),
        "sensitivity": tf.metrics.sensitivity_at_specificity(truth, scores, 0.5, num_thresholds=20),
        "mean_iou": tf.metrics.mean_iou(feeds.labels, guess, 3),
        "per_class": tf.metrics.mean_per_class_accuracy(feeds.labels, guess, 3),
        "rmse": tf.metrics.root_mean_squared_error(feeds.x[:, 0], feeds.x[:, 1]),
        "absolute": tf.metrics.mean_absolute_error(feeds.x[:, 0], feeds.x[:, 1]),
        "relative": tf.metrics.mean_relative_error(feeds.x[:, 0], feeds.x[:, 1], tf.ones_like(feeds.x[:, 0])),
        "cosine": tf.metrics.mean_cosine_distance(
            tf.nn.l2_normalize(feeds.x, 1), tf.nn.l2_normalize(tf.ones_like(feeds.x), 1), 1
        ),
        "below": tf.metrics.percentage_below(feeds.x[:, 0], 0.5),
        "false_negatives": tf.metrics.false_negatives(truth, scores > 0.5),
        "thresholds": tf.metrics.true_positives_at_thresholds(truth, scores, [0.3, 0.6]),
    }
    values = {name: pair[0] for name, pair in made.items()}
    updates = {name: pair[1] for name, pair in made.items()}
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    reset = tf.variables_initializer(tf.local_variables())
    history = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            if step == 2:
                sess.run(reset)  # as at the start of an epoch
            if step == 3:  # without training, as in an evaluation
                updated = sess.run(updates, feeds.of(step))
            else:
                updated = sess.run([updates, train_op], feeds.of(step))[0]
            history.append((updated, sess.run(values)))
        totals = {variable.op.name: value for variable, value in zip(*_with_values(sess, tf.local_variables()))}
    return history, totals


def _with_values(sess, variables):
    return variables, sess.run(variables)


class Gauge(object):
    """A loss and rows, of which the collections make what one device has."""

    def __init__(self, epl, feeds):
        self.loss = common.mean_everywhere(epl, common.classifier(feeds.x, feeds.labels))
        self.rows = common.rows_everywhere(epl, feeds.x[:, 0])
        self.hits = tf.reduce_sum(tf.cast(tf.equal(feeds.labels, 1), tf.int32))
        if epl:
            epl.add_to_collection(self.hits, epl.GraphKeys.GLOBAL_SUM_OBJECTS)


def summaries(epl, folder, in_graph=False):
    """A run with summaries of merged tensors, written by the session and by a SummarySaverHook."""
    common.init(epl)
    index, _ = common.workers(epl)
    folder = os.path.join(folder, "worker_%d" % index)
    feeds = common.Feeds(epl)
    gauge = Gauge(epl, feeds)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(gauge.loss, global_step=step)
    tf.summary.scalar("loss", gauge.loss)
    tf.summary.scalar("hits_direct", gauge.hits)
    tf.summary.histogram("rows", gauge.rows)
    tf.summary.text("note", tf.constant("a note"))
    own = tf.summary.scalar("own", gauge.loss, collections=[])
    shown = []
    logging = tf.train.LoggingTensorHook(
        [gauge.loss.name, gauge.hits.name],
        every_n_iter=1,
        formatter=lambda values: shown.append(sorted(values.items())),
    )
    hooks = [
        tf.train.StopAtStepHook(num_steps=STEPS),
        logging,
        tf.train.ProfilerHook(save_steps=2, output_dir=folder),
        tf.train.SummarySaverHook(save_steps=2, output_dir=os.path.join(folder, "own"), summary_op=own),
    ]
    with tf.train.MonitoredTrainingSession(
        config=common.threads(),
        hooks=hooks,
        checkpoint_dir=folder,
        save_checkpoint_steps=100,
        save_summaries_steps=1,
        log_step_count_steps=100,
    ) as sess:
        number = 0
        while not sess.should_stop():
            sess.run(train_op, feeds.of(number))
            number += 1
    return {
        "shown": [dict(each) for each in shown],
        "files": events(None, folder),
        "own": events(None, folder + "/own"),
        "names": sorted(name for name in _names(folder) if "tfevents" not in name),
    }


def _names(folder):
    return [name for _, _, names in os.walk(folder) for name in names]


def events(epl, folder):
    """What event files of a folder say: a list for each file of (step, tag, value), and how many graphs it has."""
    result = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if "tfevents" not in name:
            continue
        points, graphs = [], 0
        for event in tf.train.summary_iterator(os.path.join(folder, name)):
            graphs += bool(event.graph_def)
            for value in event.summary.value:
                points.append((event.step, value.tag, _content(value)))
        result.append((points, graphs))
    return result


def _content(value):
    kind = value.WhichOneof("value")
    if kind == "histo":
        histogram = value.histo
        return np.array([histogram.num, histogram.min, histogram.max, histogram.sum, histogram.sum_squares])
    if kind == "tensor":
        return tf.make_ndarray(value.tensor).tolist()
    return np.float32(value.simple_value)


def written_by_the_graph(epl, folder):
    """Summaries that operations of the graph write (tf.contrib.summary); TF 1.15 only."""
    from tensorflow.contrib import summary as contrib_summary  # pylint: disable=import-error

    common.init(epl)
    index, _ = common.workers(epl)
    folder = os.path.join(folder, "worker_%d" % index)
    feeds = common.Feeds(epl)
    loss = common.mean_everywhere(epl, common.classifier(feeds.x, feeds.labels))
    step = tf.train.get_or_create_global_step()
    writer = contrib_summary.create_file_writer(folder, flush_millis=1000)
    with writer.as_default(), contrib_summary.always_record_summaries():
        contrib_summary.scalar("loss", loss, step=step)
    with tf.control_dependencies(contrib_summary.all_summary_ops()):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(contrib_summary.summary_writer_initializer_op())
        losses = [sess.run([loss, train_op], feeds.of(number))[0] for number in range(STEPS)]
        sess.run(writer.flush())
    return losses, events(None, folder)


def merged(epl, micro_batches=1):
    """Merged fetches of all types and shapes that the collections take."""
    common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    index, _ = common.workers(epl)
    x = tf.placeholder(tf.float32, [None, 2])
    names = tf.placeholder(tf.string, [None])
    uneven = tf.placeholder(tf.float32, [None])
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(x * weight))
    kept = tf.boolean_mask(uneven, uneven > 0.0)
    fetches = {}

    def fetch(name, tensor, key):
        fetches[name] = tf.identity(tensor)
        epl.add_to_collection(fetches[name], getattr(epl.GraphKeys, key + "_OBJECTS"))

    for where in ("GLOBAL", "LOCAL"):
        fetch(where + " scalar concat", tf.reduce_sum(x), where + "_CONCAT")
        fetch(where + " string concat", names, where + "_CONCAT")
        fetch(where + " scalar string concat", names[0], where + "_CONCAT")
        fetch(where + " uneven concat", kept, where + "_CONCAT")
        fetch(where + " bool concat", x > 2.0, where + "_CONCAT")
        fetch(where + " int64 sum", tf.cast(tf.reduce_sum(x), tf.int64), where + "_SUM")
        fetch(where + " matrix sum", tf.reduce_sum(x, 0, keepdims=True), where + "_SUM")
        fetch(where + " double mean", tf.cast(tf.reduce_mean(x), tf.float64), where + "_MEAN")
        fetch(where + " half mean", tf.cast(tf.reduce_mean(x), tf.float16), where + "_MEAN")
    everything = {key: [t.op.name for t in tensors] for key, tensors in epl.get_all_collections().items()}
    rows = np.arange(16, dtype=np.float32).reshape([8, 2])
    texts = np.array(["text %d" % number for number in range(8)], dtype=object)
    signs = np.array([1, -1, 2, 3, -4, -5, 6, 7], np.float32)
    with common.session() as sess:
        common.initialize(sess)
        feed = {x: common.share(epl, rows), names: common.share(epl, texts), uneven: common.share(epl, signs)}
        values = sess.run([fetches, train_op], feed)[0]
    names_of = {name: tensor.op.name for name, tensor in fetches.items()}
    return {"index": index, "values": values, "collections": everything, "names": names_of}


def merged_later(epl):
    """Losses that are merged when the session has run already, and operations `a/b` were made before `a` is needed."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = 1.0 * common.classifier(feeds.x, feeds.labels)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        first = sess.run(train, feeds.of(0))
        if epl:
            epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        return first, [sess.run([loss, train], feeds.of(step))[0] for step in range(1, 4)]


def refused_merges(epl):
    """What collections answer to tensors that they cannot merge."""
    texts = []

    def attempt(make, key):
        common.init(epl)
        with tf.Graph().as_default(), common.session() as sess:
            x = tf.placeholder(tf.float32, [None])
            weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
            train_op = tf.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_mean(x * weight))
            try:
                tensor = make(x)
                epl.add_to_collection(tensor, key)
                sess.run(tf.global_variables_initializer())
                sess.run([tensor, train_op], {x: np.ones([4], np.float32)})
                texts.append("")
            except (ValueError, RuntimeError, NotImplementedError) as error:
                texts.append("%s: %s" % (type(error).__name__, error))

    attempt(lambda x: tf.shape(x)[0], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    attempt(lambda x: tf.as_string(x), epl.GraphKeys.GLOBAL_SUM_OBJECTS)
    attempt(lambda x: x > 1.0, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    attempt(lambda x: x, "means")
    attempt(lambda x: 1.0, epl.GraphKeys.LOCAL_SUM_OBJECTS)
    return texts
