"""Training with stages whose devices have parts of different size of a batch, and the same on one device."""

from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, pipelines
from tests.helpers.zoo import model as m

ROWS = 12  # of a micro-batch
STEPS = 3


def trained(epl, devices, counts, weights=(), micro_batches=1, source="feed", replicas=1, norms=False, **config):
    """Trains on fed batches or on a data set: the merged losses, what rows were seen, a metric, and all variables.

    Args:
      devices: of each worker.
      counts: of each stage, its devices in a model replica.
      weights: those of the devices of a model replica, or "auto".
      source: "feed" or "data".
      norms: whether the batch is normalised, in both forms.
      **config: keys with "__" for the dot.
    """
    if epl:
        given = weights if weights == "auto" else list(weights)
        keys = {"cluster.device_weights": given, "pipeline.num_micro_batch": micro_batches}
        keys.update((key.replace("__", "."), value) for key, value in config.items())
        with pipelines.devices_of(devices):
            common.init(epl, keys)

    numbers, tokens, x, mine = _batches(epl, counts, weights, micro_batches, replicas, source)
    for count, layers in zip(counts, pipelines._cut(3, len(counts))):
        with epl.replicate(count) if epl else pipelines._nothing():
            if 0 in layers:
                table = tf.get_variable("table", [10, 4], initializer=m.initial(1))
                hidden = tf.tanh(m.dense(tf.concat([tf.gather(table, tokens), x], 1), 8, "hidden", seed=2))
            if 1 in layers:
                deeper = m.dense(hidden, 8, "deeper", seed=3)
                deeper = _normalised(tf.tanh(deeper)) if norms else tf.tanh(deeper)
                skipped = tf.reduce_mean(deeper * deeper)
            if 2 in layers:
                outputs = m.dense(deeper + 0.5 * hidden, 1, "outputs", seed=4)[:, 0]
                loss = 0.1 * skipped + tf.reduce_mean(tf.square(outputs - tf.cos(tf.cast(numbers, tf.float32))))
                average, moved = _averages(outputs, micro_batches)
    common.mean_everywhere(epl, loss)
    rows = common.rows_everywhere(epl, numbers)
    here = tf.identity(loss)
    if epl:
        epl.add_to_collection(here, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
    with tf.control_dependencies(moved + tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdamOptimizer(0.01, epsilon=1e-3).minimize(loss)
    losses, seen, local = [], [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            value, of_worker, found, _ = sess.run([loss, here, rows, train_op], mine(step))
            losses.append(value)
            local.append(of_worker)
            seen.append(sorted(found))
        return {"losses": losses, "local": local, "rows": seen, "mean": sess.run(average), "state": common.state(sess)}


def _normalised(x):
    for fused in (True, False):
        x = tf.tanh(tf.layers.batch_normalization(x[:, None, None], training=True, fused=fused)[:, 0, 0])
    return x


def trained_by_speed(epl, speeds, source, **config):
    """Trains by `cluster.device_weights="auto"` two workers with a device each whose measured speeds are planted: as
    `trained`, with the weights and how often was measured."""
    if not epl:
        return trained(epl, 1, [2], source=source)
    from epl.session import versions

    def planted(mesh, proto):
        assert proto.allow_soft_placement
        return [speeds[mesh.worker_index]] * mesh.devices_per_worker

    with mock.patch.object(versions, "device_speeds", side_effect=planted) as measured:
        found = trained(epl, 1, [2], "auto", source=source, **config)
    return dict(found, weights=epl.Env.get().config.cluster.device_weights, measured=measured.call_count)


def _averages(outputs, micro_batches):
    """(a metric's value, what changes it and a moving average)."""
    average, update = tf.metrics.mean(outputs)
    level = tf.get_variable("level", [], initializer=tf.zeros_initializer(), trainable=False)
    if micro_batches > 1:  # each of which would move it
        return average, [update]
    return average, [update, level.assign(0.5 * level + 0.5 * tf.reduce_mean(outputs))]


def _batches(epl, counts, weights, micro_batches, replicas, source):
    """(numbers, tokens and features of rows, function from a step to what this worker feeds)."""
    size = ROWS * micro_batches * replicas
    if source == "data":
        data = tf.data.Dataset.range(STEPS * size).batch(ROWS if epl else size)
        index, workers = common.workers(epl)
        if epl and replicas > 1:
            data = data.shard(workers, index)
        numbers = tf.data.make_one_shot_iterator(data).get_next()
    else:
        numbers = tf.placeholder(tf.int64, [None], "numbers")
    x = tf.sin(tf.cast(numbers, tf.float32)[:, None] * [1.0, 2.0, 3.0])

    def mine(step):
        if source == "data":
            return {}
        rows = np.arange(step * size, (step + 1) * size)
        found = epl.Env.get().config.cluster.device_weights if epl else weights  # numbers, after the first run
        begin, end = _share(epl, list(found or [1] * counts[0]) * replicas)
        return {numbers: rows[int(round(begin * size)) : int(round(end * size))]}

    return numbers, numbers % 10, x, mine


def _share(epl, weights):
    """Where the rows of this worker's devices begin and end, of one."""
    index, workers = common.workers(epl)
    if len(weights) % workers:  # a replica over all of them, of which some have no part of the first stage
        return 0, 1
    devices = len(weights) // workers
    ends = np.cumsum([0] + weights) / sum(weights)
    return ends[index * devices], ends[(index + 1) * devices]
