"""Programs whose optimizer's state is divided over workers: they save, restore and read it."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, estimators, pipelines
from tests.helpers.zoo import model as m


def _start(epl, config):
    """(placeholders, loss, train op) of the small classifier with Adam."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = m.OPTIMIZERS["adam"]().minimize(loss, global_step=tf.train.get_or_create_global_step())
    return feeds, common.mean_everywhere(epl, loss), train_op


def goes_on(epl, config, begin, until, before=None, after=None):
    """Trains from one step to another: the losses, and the variables after each step, slots among them.

    Args:
      before: a checkpoint to restore; None: first values.
      after: where to save a checkpoint at the end.
    """
    feeds, loss, train_op = _start(epl, config)
    return common.goes_on(feeds, loss, train_op, begin, until, before, after)


def monitored(epl, config, folder, until):
    """A monitored session goes on from what the folder has, up to a step."""
    feeds, loss, train_op = _start(epl, config)
    losses, states = [], []
    saving = dict(checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=None)
    with tf.train.MonitoredTrainingSession(config=common.threads(), **saving) as sess:
        variables = {v.op.name: v for v in tf.global_variables()}
        for step in range(int(sess.run(tf.train.get_global_step())), until):
            losses.append(sess.run([loss, train_op], feeds.of(step))[0])
            states.append(sess.run(variables))
    return {"losses": losses, "states": states}


def restored_by_the_chief_alone(epl, config, folder):
    """The message of the error when the other workers do not restore what they alone hold."""
    feeds, _, train_op = _start(epl, config)
    saver = tf.train.Saver()
    try:
        with common.session() as sess:
            common.initialize(sess)
            sess.run(train_op, feeds.of(0))
            path = saver.save(sess, os.path.join(folder, "model"))
            if common.workers(epl)[0] == 0:
                saver.restore(sess, path)
            sess.run(train_op, feeds.of(1))
    except epl.errors.EplError as error:
        return str(error)
    return ""


def kinds_of_variables(epl, config):
    """Trains resource variables, of float64 too, a scalar and an empty one; losses, and variables after each step."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    with tf.variable_scope("all", use_resource=True):
        kernel = tf.get_variable("kernel", [common.FEATURES, 4], initializer=m.initial(1))
        wide = tf.get_variable("wide", [4, common.CLASSES], tf.float64, initializer=m.initial(2))
        scale = tf.get_variable("scale", [], initializer=tf.ones_initializer())
        empty = tf.get_variable("empty", [0, 3], initializer=tf.zeros_initializer())
        hidden = tf.cast(scale * tf.tanh(tf.matmul(feeds.x, kernel)), tf.float64)
        loss = m.classification(tf.matmul(hidden, wide), feeds.labels)
        loss = tf.cast(loss, tf.float32) + tf.reduce_sum(empty)
        train_op = m.OPTIMIZERS["adam"]().minimize(loss)
    return common.trained(feeds, common.mean_everywhere(epl, loss), train_op, 4)[0]


class Adafactor(tf.train.Optimizer):
    """Shazeer and Stern, 2018: of a matrix it keeps means over rows and columns; a step's size follows from norms."""

    def __init__(self, rate):
        super(Adafactor, self).__init__(False, "Adafactor")
        self._rate = rate

    def _create_slots(self, var_list):
        for var in var_list:
            shapes = [var.shape[:1], var.shape[1:]] if var.shape.ndims == 2 else [var.shape]
            for name, shape in zip(("rows", "columns"), shapes):
                first = tf.constant_initializer(0.01)
                self._get_or_make_slot_with_initializer(var, first, shape, tf.float32, name, self._name)

    def _apply_dense(self, grad, var):
        square, means = tf.square(grad) + 1e-10, []
        for axis, name in ((1, "rows"), (0, "columns")) if var.shape.ndims == 2 else ((None, "rows"),):
            slot = self.get_slot(var, name)
            mean = square if axis is None else tf.reduce_mean(square, axis)
            means.append(tf.convert_to_tensor(slot.assign(0.9 * slot + 0.1 * mean)))
        if len(means) == 2:
            means = [means[0][:, None] * means[1][None, :] / tf.reduce_mean(means[0])]
        step = grad * tf.rsqrt(means[0])
        step /= tf.maximum(1.0, tf.sqrt(tf.reduce_mean(tf.square(step))))
        size = tf.maximum(0.001, tf.sqrt(tf.reduce_mean(tf.square(var))))
        return var.assign_sub(self._rate * size * step).op

    _resource_apply_dense = _apply_dense

    def _apply_sparse(self, grad, var):
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad, handle, indices):
        return self._apply_dense(tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(handle))), handle)


def fetches_of_clipping(epl, config=None):
    """What each step clips: the norm of all gradients and those that are clipped, with the step and once before it."""
    common.init(epl, config)
    feeds, found = common.Feeds(epl), []
    loss = common.classifier(feeds.x, feeds.labels)
    gradients, variables = zip(*m.OPTIMIZERS["adam"]().compute_gradients(loss))
    clipped, norm = tf.clip_by_global_norm(gradients, 0.05)
    train_op = m.OPTIMIZERS["adam"]().apply_gradients(zip(clipped, variables))
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            before = sess.run([norm] + list(clipped), feeds.of(step))
            found.append(before + sess.run([norm, train_op], feeds.of(step))[:1])
        return found, common.state(sess)


def adafactor(epl, config=None, resource=False):
    """The small classifier with Adafactor: losses, and variables after each step."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    with tf.variable_scope("all", use_resource=resource):
        loss = common.classifier(feeds.x, feeds.labels)
        train_op = Adafactor(0.05).minimize(loss)
    return common.trained(feeds, common.mean_everywhere(epl, loss), train_op, 5)[0]


def _bert(features, labels, mode):
    loss = pipelines.bert_loss(features, labels, lambda _: common.no_scope(), layers=1)
    train_op = pipelines.optimizer().minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def bert_by_an_estimator(epl, folder, config=None, steps=3):
    """Fine-tunes a small BERT: losses of the steps, and on the chief the variables of the checkpoint."""
    common.init(epl, config)
    rng, rows = np.random.RandomState(3), 8
    batches = [(rng.randint(0, 10, [rows, 5]), rng.randint(0, 3, rows)) for _ in range(steps)]
    tokens, labels = (
        np.concatenate([common.share(epl, batch[part]) for batch in batches]).astype(kind)
        for part, kind in enumerate((np.int32, np.int64))
    )

    def data():
        return tf.data.Dataset.from_tensor_slices((tokens, labels)).batch(rows // common.workers(epl)[1])

    hook = estimators.Losses()
    estimator = tf.estimator.Estimator(_bert, config=estimators.run_config(folder))
    estimator.train(data, hooks=[hook])
    return {"losses": hook.losses, "state": estimators.variables(estimator)[-1]}


def uneven(epl, sizes, strategy, config):
    """Trains with batches of different sizes a model with a table, batch normalisation and clipped gradients.

    Args:
      strategy: "split" and "replicate" over two devices; None: each device has a copy of the model.
    """
    common.init(epl, config)
    if strategy:
        epl.set_default_strategy(getattr(epl, strategy)(2))
    feeds = common.Feeds(epl)
    table = tf.get_variable("table", [common.CLASSES, 4], initializer=tf.glorot_uniform_initializer(seed=5))
    x = tf.concat([feeds.x, tf.nn.embedding_lookup(table, feeds.labels)], 1)
    hidden = tf.layers.dense(x, 8, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
    hidden = tf.layers.batch_normalization(hidden, momentum=0.9, training=True)
    logits = tf.layers.dense(hidden, common.CLASSES, kernel_initializer=tf.glorot_uniform_initializer(seed=2))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds.labels, logits=logits))
    optimizer = m.OPTIMIZERS["adam"]()
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.apply_gradients(zip(clipped, variables), tf.train.get_or_create_global_step())
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for number, size in enumerate(sizes):
            x, labels = (common.share(epl, column) for column in common.batch(number, size))
            losses.append(sess.run([loss, train_op], {feeds.x: x, feeds.labels: labels})[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states}
