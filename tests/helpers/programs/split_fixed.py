"""Models of a batch of a size that the graph knows, whose rows the devices of `epl.replicate(k)` divide."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.pipelines import devices_of
from tests.helpers.programs.split import OPTIMIZERS, history_of, share_of_copy


def _rows_of(kind):
    """(rows of features, labels) of a data set: batches of 8 that the graph knows, or a row at a time."""
    rows, labels = common.batch(0, size=32)
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat()
    data = data.batch(8, drop_remainder=True) if kind == "batches" else data
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    return (x, labels) if kind == "batches" else (x[None], labels[None])


def fixed_batch(epl, device_count, optimizer, kind, resource=False, **config):
    """A model of a batch of a fixed size, which the devices divide by rows; `kind`: "batches", "rows" or "fed".

    With a list for `device_count` it has two stages, with so many devices.
    """
    staged = isinstance(device_count, (list, tuple))
    with devices_of(sum(device_count)) if epl and staged else common.no_scope():
        common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(11)
    if epl and not staged:
        epl.set_default_strategy(epl.replicate(device_count))

    def scope(stage):
        return epl.replicate(device_count[stage]) if epl and staged else common.no_scope()

    feeds = [{}] * 3
    if kind == "fed":
        x, labels = tf.placeholder(tf.float32, [8, common.FEATURES]), tf.placeholder(tf.int64, [8])
        feeds = [dict(zip((x, labels), common.batch(number))) for number in range(3)]
    else:
        x, labels = _rows_of(kind)
    size = int(x.shape[0])
    with tf.variable_scope("model", use_resource=resource), scope(0):
        hidden = tf.tensordot(tf.stack([x, 2.0 * x], 1), tf.get_variable("first", [common.FEATURES, 8]), [[2], [0]])
        hidden = tf.nn.dropout(tf.nn.tanh(tf.reshape(hidden, [size, 16])), rate=0.25)
        average = tf.get_variable("average", [16], trainable=False)
        update = tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(hidden, 0))
    with tf.variable_scope("model", use_resource=resource), scope(1):
        logits = tf.layers.dense(hidden, common.CLASSES, name="logits")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    made = OPTIMIZERS[optimizer]()
    gradients, variables = zip(*made.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
    with tf.control_dependencies([update]):
        step = made.apply_gradients(list(zip(clipped, variables)), tf.train.get_or_create_global_step())
    return history_of([loss, logits], step, feeds)


def fixed_copies(epl, device_count, optimizer, kind, resource=False, **config):
    """What every step gives of the whole batch of 16 rows, and all variables after it, of copies of a model whose rows
    devices divide: each copy has a batch of its own, of a size that the graph knows; `kind`: "batches", "fed", or
    "divided" for batches of which EPL divides the rows, in another order, so that the loss alone is fetched."""
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(11)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    batches = [common.batch(step, size=16) for step in range(3)]
    given = [[share_of_copy(epl, device_count, part) for part in batch] for batch in batches]
    size, feeds = len(given[0][0]), [{}] * 3
    if kind == "fed":
        x, labels = tf.placeholder(tf.float32, [size, common.FEATURES]), tf.placeholder(tf.int64, [size])
        feeds = [dict(zip((x, labels), parts)) for parts in given]
    else:
        read = zip(*(batches if kind == "divided" else given))
        data = tf.data.Dataset.from_tensor_slices(tuple(np.concatenate(parts) for parts in read))
        x, labels = tf.data.make_one_shot_iterator(data.batch(size, drop_remainder=True)).get_next()
    with tf.variable_scope("model", use_resource=resource):
        hidden = tf.tensordot(tf.stack([x, 2.0 * x], 1), tf.get_variable("first", [common.FEATURES, 8]), [[2], [0]])
        hidden = tf.nn.tanh(tf.reshape(hidden, [size, 16]))
        logits = tf.layers.dense(hidden, common.CLASSES, name="logits")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if epl:
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(logits, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    made = OPTIMIZERS[optimizer]()
    step = made.minimize(loss, tf.train.get_or_create_global_step())
    return history_of([loss] if kind == "divided" else [loss, logits], step, feeds)
