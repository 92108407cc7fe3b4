"""Losses and feeds that do not divide as a mean over the rows of a batch does."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def fixed_beside_open(epl, rows, config=None):
    """The weights after training on `rows` rows, of which the observations have a placeholder of a fixed shape."""
    common.init(epl, config)
    own = rows // common.workers(epl)[1]
    x = tf.placeholder(tf.float32, [own, common.FEATURES], name="observations")
    y = tf.placeholder(tf.float32, [None, 1], name="labels")
    scale = tf.placeholder(tf.float32, [common.FEATURES], name="scale")  # one row for each feature, not a batch
    w = tf.get_variable("w", [common.FEATURES, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x * scale, w) - y))
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    random = np.random.RandomState(5)
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(4):
            given = random.normal(size=[rows, common.FEATURES]), random.normal(size=[rows, 1])
            given = [common.share(epl, each) for each in given]
            feeds = {x: given[0], y: given[1], scale: np.linspace(0.5, 1.5, common.FEATURES)}
            sess.run(train, feeds)
        return sess.run(w)


def model(kind, x, y, labels):
    """A loss of one of these kinds, over the rows of x, y and labels; how `w` is penalised beside it."""
    # Of a reference variable an operation might see what the same step has made of it already.
    w = tf.get_variable("w", [common.FEATURES, 1], initializer=tf.ones_initializer(), use_resource=True)
    errors = tf.square(tf.matmul(x, w) - y)
    penalty = 0.5 * tf.nn.l2_loss(w)
    mean = tf.losses.mean_squared_error(y, tf.matmul(x, w))
    logits = tf.layers.dense(x, common.CLASSES, kernel_initializer=tf.ones_initializer(), name="logits")
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    sigma = tf.get_variable("sigma", [], initializer=tf.zeros_initializer(), use_resource=True)
    mask = tf.cast(labels > 0, tf.float32)
    mean_of_some = tf.reduce_sum(mask * each) / tf.maximum(tf.reduce_sum(mask), 1.0)
    by_weights = tf.losses.mean_squared_error(y, tf.matmul(x, w), weights=tf.expand_dims(mask, 1))
    some = tf.boolean_mask(each, labels > 1)  # as few as none in a copy of the model
    return {
        "mean_of_chosen": lambda: tf.reduce_mean(some) + penalty,
        "mean_of_chosen_logits": lambda: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tf.boolean_mask(labels, labels > 0), logits=tf.boolean_mask(logits, labels > 0)
            )
        ),
        "ratio": lambda: by_weights,
        "ratio_sum_and_penalty": lambda: 0.1 * tf.reduce_sum(errors) + 2.0 * by_weights + penalty,
        "ratio_of_at_least_1": lambda: mean_of_some + penalty,
        "sum": lambda: tf.reduce_sum(errors),
        "vector": lambda: tf.squeeze(errors, 1) + 0.1 * each,
        "mean": lambda: mean,
        "mean_and_penalty": lambda: tf.reduce_mean(errors) + penalty,
        "sum_by_rows": lambda: tf.reduce_sum(each) / tf.cast(tf.shape(x)[0], tf.float32),
        "sum_and_penalty": lambda: tf.reduce_sum(errors) + penalty,
        "sum_mean_and_penalty": lambda: 0.1 * tf.reduce_sum(each) + mean + penalty,
        "weighted_sum": lambda: tf.add_n([tf.exp(-sigma) * tf.reduce_sum(errors), sigma, penalty, 3.0 * mean]),
        "stacked": lambda: tf.reduce_mean(tf.stack([tf.nn.l2_loss(tf.matmul(x, w) - y), mean - penalty])),
    }[kind]()


def train_by(epl, kind, config=None, weights=(), stages=False, rows=12, steps=3, cuts=()):
    """Trains by a loss of a kind, in one stage or with a layer before it in another: what is reported of the loss at
    each step, and the variables at the end. `cuts`: of two workers, how many rows the first one is fed at each step."""
    common.init(epl, dict(config or {}, **{"cluster.device_weights": list(weights)} if weights else {}))
    x = tf.placeholder(tf.float32, [None, common.FEATURES])
    y = tf.placeholder(tf.float32, [None, 1])
    labels = tf.placeholder(tf.int64, [None])
    inputs = x
    if stages:
        with epl.replicate(1, name="first") if epl else common.no_scope():
            kernel = tf.get_variable("first", initializer=np.eye(common.FEATURES, dtype=np.float32), use_resource=True)
            inputs = tf.tanh(tf.matmul(x, kernel))
    with epl.replicate(2 if weights else 1) if epl else common.no_scope():
        loss = model(kind, inputs, y, labels)
        train = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss)
    if epl:
        from epl.capture.collections import report_loss

        report_loss(loss, epl.Env.get().config)
    losses, random = [], np.random.RandomState(7)
    with common.session() as sess:
        common.initialize(sess)
        for step in range(steps):
            given, own = common.batch(step, rows), random.normal(size=[rows, 1])
            feeds = {x: given[0], y: own, labels: given[1]}
            if epl and cuts:
                part = slice(cuts[step], None) if common.workers(epl)[0] else slice(cuts[step])
                feeds = {placeholder: value[part] for placeholder, value in feeds.items()}
            else:
                feeds = {placeholder: common.share(epl, value) for placeholder, value in feeds.items()}
            losses.append(sess.run([loss, train], feeds)[0])
        return {"losses": losses, "states": [common.state(sess)]}


def train_to_the_end(epl, kind, config=None, rows=29, size=16):
    """Trains by a loss of a kind on a data set whose last batch is shorter: what is reported of the loss at each step,
    and the variables at the end."""
    common.init(epl, config)
    x, labels = common.batch(0, rows)
    y = np.random.RandomState(7).normal(size=[rows, 1]).astype(np.float32)
    index, count = common.workers(epl)
    size //= common.replicas(epl)
    own = [row for row in range(rows) if row // size % count == index]  # every batch of one device is a step's
    data = tf.data.Dataset.from_tensor_slices((x[own], y[own], labels[own])).batch(size)
    given = tf.data.make_one_shot_iterator(data).get_next()
    with epl.replicate(1) if epl else common.no_scope():
        loss = model(kind, *given)
        train = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss)
    if epl:
        from epl.capture.collections import report_loss

        report_loss(loss, epl.Env.get().config)
    losses = []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(2):
            losses.append(sess.run([loss, train])[0])
        return {"losses": losses, "states": [common.state(sess)]}


def counted_rows(epl, config=None):
    """Rows that a program counts by the size of a batch of fixed size, and how many it has trained on by then."""
    common.init(epl, config)
    data = tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.zeros([4], tf.int64))).repeat()
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    w = tf.get_variable("w", [3, 2], initializer=tf.ones_initializer())
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.matmul(x, w))
    seen = tf.get_variable("seen", [], tf.int32, tf.zeros_initializer(), trainable=False)
    steps = tf.get_variable("steps", [], tf.int32, tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([tf.assign_add(seen, tf.size(labels)), tf.assign_add(steps, 1)]):
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(3):
            sess.run(train)
        micro_batches = (config or {}).get("pipeline.num_micro_batch", 1)
        return sess.run([seen, steps]), [3 * 4 * micro_batches * common.replicas(epl), 3]


def fed_by_weights(epl, rows, weights=(3, 1)):
    """Trains two devices of different weights, in one worker each, on so many rows for each: the weights that come of
    it, or the error."""
    common.init(epl, {"cluster.device_weights": list(weights)} if epl else None)
    feeds = common.Feeds(epl)
    with epl.replicate(2) if epl else common.no_scope():
        loss = common.classifier(feeds.x, feeds.labels)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    x, labels = common.batch(0, sum(rows))
    index, count = common.workers(epl)
    own = slice(sum(rows[:index]), sum(rows[: index + 1])) if count > 1 else slice(None)
    with common.session() as sess:
        common.initialize(sess)
        try:
            sess.run(train, {feeds.x: x[own], feeds.labels: labels[own]})
        except Exception as error:  # what it says is looked at
            return str(error)
        return common.state(sess)
